"""What a server of environments says, checked before any of it becomes part of an episode here.

A server may be wrong, or hostile. It cannot put words into the policy's mouth (what the assistant said is known here),
and no number of it overflows a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from typing import Any

from ..env import FAILURE_STOPS, check_numbers
from ..messages import Message, Messages, check_conversation, clean_messages
from ..text import excerpt, quoted
from .protocol import Json, encode

_COUNTS = ("assistant_turns", "user_turns")
_MANY_TURNS = 2**31


class BadAnswer(ValueError):
    """An answer that is none; the message says what should have been answered, and what was."""


@dataclass(frozen=True)
class Stepped:
    """A step that was answered as the contract of environments has it.

    Args:
        messages: The reply and what follows it.
        reward: The turn's reward.
        terminated: The task is over.
        truncated: A budget ran out, or something failed.
        info: With ``terms``, ``metrics``, ``stop``, ``failed`` and the counts of turns.
    """

    messages: Messages
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def field(answer: Json, name: str, kind: Any) -> Any:
    """A field of an answer.

    Raises:
        BadAnswer: It is missing, or of another type; a truth value is no number.
    """
    value = answer.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadAnswer(f"{name!r}" if name not in answer else f"{name!r} (it says {quoted(value)})")
    return value


def info_of(answer: Json) -> dict[str, Any]:
    """The info of an answer: an object of JSON, without NaN and infinity."""
    info: dict[str, Any] = field(answer, "info", dict)
    try:
        encode(info)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadAnswer(f"an 'info' of JSON ({error})") from error
    return info


def messages_of(answer: Json) -> Messages:
    """The messages of an answer, with clean texts."""
    try:
        return clean_messages(check_conversation(field(answer, "messages", list), "messages"))
    except BadAnswer:
        raise
    except ValueError as error:
        raise BadAnswer(f"messages ({excerpt(str(error))})") from error


def stepped(answer: Json, reply: Message) -> Stepped:
    """What a server made of ``reply``.

    Raises:
        BadAnswer: Anything in it is not as the contract of environments has it.
    """
    messages = messages_of(answer)
    if not messages or messages[0] != reply:
        found = quoted(dict(messages[0])) if messages else "nothing"
        raise BadAnswer(f"a conversation that the reply is in, as it was sent (instead of it there is {found})")
    for message in messages[1:]:
        if message["role"] not in ("user", "tool"):
            raise BadAnswer(f"messages of the environment (one of them is said as {message['role']!r})")
    reward, info = field(answer, "reward", (int, float)), info_of(answer)
    terms, metrics = _numbers(info, "terms"), _numbers(info, "metrics")
    _in_bounds("a reward", {"reward": reward})
    if not isclose(reward, sum(terms.values()), rel_tol=1e-6, abs_tol=1e-6):
        raise BadAnswer(f"terms that sum to the reward (the reward is {reward:g}, the terms are {quoted(terms)})")
    terminated, truncated = field(answer, "terminated", bool), field(answer, "truncated", bool)
    if terminated and truncated:
        raise BadAnswer("an end (it says both terminated and truncated)")
    stop, failed = info.get("stop"), field(info, "failed", bool)
    if (stop is not None) != (terminated or truncated) or not isinstance(stop, (str, type(None))):
        raise BadAnswer(f"why the episode is over, and only then ('stop' is {quoted(stop)})")
    if failed != (stop in FAILURE_STOPS) or (failed and not truncated):
        raise BadAnswer(f"whether the episode failed ('failed' is {failed}, and 'stop' {quoted(stop)})")
    for name in _COUNTS:
        if not 0 <= field(info, name, int) < _MANY_TURNS:
            raise BadAnswer(f"{name!r} (it says {quoted(info[name])})")
    if failed:
        info["failure"] = excerpt(str(info.get("failure")))
    return Stepped(messages, float(reward), terminated, truncated, {**info, "terms": terms, "metrics": metrics})


def described(facts: Any) -> tuple[Json, dict[str, int | None], tuple[Any, Any]]:
    """What an environment there is: its tasks' name and size, its limits, its tools and those apart."""
    if not isinstance(facts, dict):
        raise BadAnswer("what the environment is")
    tasks = field(facts, "tasks", dict)
    field(tasks, "name", str)
    limits = {name: facts.get(name) for name in ("max_assistant_turns", "max_user_turns")}
    for name, value in {**limits, "size": tasks.get("size")}.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadAnswer(f"{name!r} (it says {quoted(value)})")
    tools = tuple(field(facts, name, list) for name in ("tool_schemas", "tools_not_in_prompt"))
    if not all(isinstance(tool, dict) for each in tools for tool in each):
        raise BadAnswer("the schemas of its tools")
    return tasks, limits, (tools[0], tools[1])


def _numbers(info: Mapping[str, Any], name: str) -> dict[str, float]:
    values = field(dict(info), name, dict)
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values.values()):
        raise BadAnswer(f"numbers as {name!r} (it says {quoted(values)})")
    _in_bounds(f"{name!r}", values)
    return {str(key): float(value) for key, value in values.items()}


def _in_bounds(what: str, values: Mapping[str, float]) -> None:
    try:
        check_numbers(what, values)
    except ValueError as error:
        raise BadAnswer(f"{what} ({error})") from error
