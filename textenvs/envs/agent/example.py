"""The example program: an arithmetic agent with one tool, written as a user would write it, over HTTP alone.

It works out an expression with the tool ``calculate``, one operation at a time. A call that works out the next
operation earns a share of 0.1 at once, any other call costs 0.05; the right answer earns 1 at the end.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ...messages import Message, Messages, assistant
from ...scoring.gsm8k import judge
from ...task import Task
from ...tools.calculator import as_text, bounded, exact
from ...tools.formats import call
from ...tools.jsontext import JsonProblem, read_object
from ...tools.schema import ToolError
from ..gsm8k.env import hasty_answer
from ..math_expression.tasks import MadeUp, Operation, after_step, expression_of, next_step, operations, value, write

SYSTEM = 'Work out the expression with the tool, one operation at a time. Then end with "#### " and the number.'
HINT = 'Call the tool, or end with "#### " and the number.'
#: Calls of the model, at most.
MOST_CALLS = 12
#: Calls of the tool in one reply, at most.
MOST_TOOLS = 4
PROGRESS, WASTED = 0.1, -0.05
NUMBER = {"type": "number"}
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Work out one operation.",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "sign": {"type": "string"}, "b": NUMBER},
            "required": ["a", "sign", "b"],
        },
    },
}


def arithmetic(task: Task, base_url: str, key: str) -> float:
    """Play one task; return 1.0 for the right answer, else 0.0."""
    remaining, made_up = expression_of(task.extra)
    whole = operations(remaining) or 1
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": task.question},
    ]
    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(address.netloc)

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", f"{address.path}/{path}", json.dumps(body), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise RuntimeError(answer["error"]["message"])
        return answer

    try:
        for _ in range(MOST_CALLS):
            completion = post("chat/completions", {"model": "policy", "messages": messages, "tools": [TOOL]})
            reply = completion["choices"][0]["message"]
            messages.append(reply)
            calls = reply.get("tool_calls") or []
            if not calls:
                verdict = judge(reply["content"], task.ground_truth, "marked")
                if verdict.answer is not None:
                    return float(verdict.correct)
                messages.append({"role": "user", "content": HINT})
                continue
            earned = 0.0
            for number, made in enumerate(calls):
                content, step = "Too many calls in one reply.", None
                if number < MOST_TOOLS:
                    content, step = _carried_out(made["function"], made_up)
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": content})
                before = operations(remaining)
                remaining = remaining if step is None else after_step(remaining, step, made_up)
                done = before - operations(remaining)
                earned += PROGRESS * done / whole if done else WASTED
            post("rewards", {"reward": earned})
        return 0.0
    finally:
        connection.close()


def _carried_out(function: dict[str, Any], made_up: MadeUp) -> tuple[str, Operation | None]:
    """Return the tool's answer to a call, and the operation that was carried out."""
    if function["name"] != "calculate":
        return "There is no such tool.", None
    try:
        arguments = read_object(function["arguments"])
        step = Operation(str(arguments["sign"]), exact(arguments["a"]), exact(arguments["b"]))
        return as_text(bounded(value(step, made_up))), step
    except (JsonProblem, KeyError, TypeError, ValueError, ArithmeticError, ToolError) as error:
        return f"That does not work: {str(error)[:100]}", None


def expert(task: Task, messages: Messages, rng: np.random.Generator) -> Message:
    """Return the next operation from the left as a call, or the answer when none is left."""
    remaining, made_up = expression_of(task.extra)
    for step in _steps(messages):
        remaining = after_step(remaining, step, made_up)
    following = next_step(remaining)
    if following is None:
        return assistant(f"#### {as_text(value(remaining, made_up))}")
    a, b = (_as_json(value(side, made_up)) for side in (following.first, following.second))
    return assistant(f"First {write(following)}.", [call("calculate", a=a, sign=following.sign, b=b)])


def careless(task: Task, messages: Messages, rng: np.random.Generator) -> Message:
    """Return an answer without the tool, near the right one."""
    return assistant(hasty_answer(task.ground_truth, rng))


def _steps(messages: Messages) -> Iterator[Operation]:
    for message in messages:
        for made in message.get("tool_calls", ())[:MOST_TOOLS]:
            _, step = _carried_out(dict(made["function"]), (1, 1))
            if step is not None:
                yield step


def _as_json(number: Fraction) -> int | float:
    return number.numerator if number.denominator == 1 else float(number)
