"""An agent with a tool, written as for OpenAI's service, and trained as it is.

::

    python -m trainers.ppo env.id=textenv/agent env.backend=thread env.kwargs.agent=examples.agents.calculator:agent \
        env.kwargs.expert=textenvs.envs.agent.example:expert env.kwargs.careless=textenvs.envs.agent.example:careless

The expert and the careless replies are those of the example program of ``textenv/agent``, whose tool has the same name
and arguments; they teach a model from scratch what a call is. A language model needs neither.
"""

from __future__ import annotations

import json
import operator
import re
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from textenvs import Task

#: One for all episodes: a new client reads the certificates of the machine, which takes longer than its calls.
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="of the episode")
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
NUMBER = {"type": "number"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": NUMBER, "sign": {"type": "string"}, "b": NUMBER},
    "required": ["a", "sign", "b"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "calculate", "description": "Work out one operation.", "parameters": PARAMETERS},
    }
]


def calculate(arguments: str) -> str:
    """Return the result of the operation, or what is wrong with it."""
    try:
        values = json.loads(arguments)
        a, b = float(values["a"]), float(values["b"])  # a model may write anything: a text times 10**9 fills the memory
        return f"{OPERATORS[values['sign']](a, b):g}"
    except Exception as error:
        return f"error: {error}"


def agent(task: Task, base_url: str, key: str) -> float:
    """Work out an expression; return 1.0 for the right answer."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": 'Use the tool for every operation. Then end with "#### " and the number.'},
        {"role": "user", "content": task.question},
    ]
    client = CLIENT.with_options(base_url=base_url, api_key=key)
    for _ in range(8):
        completion = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
        reply = completion.choices[0].message
        messages.append(reply.to_dict())  # type: ignore[arg-type]
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            result = calculate(call.function.arguments)  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answer = re.search(r"#### (\S+)", reply.content or "")
    return float(answer is not None and answer[1] == task.ground_truth)
