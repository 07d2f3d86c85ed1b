"""Cheap policies against the leaderboard's tasks: claims, and calls that need no understanding of what is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...attack import Attack, Cheater, always
from ...messages import Message, Messages, ToolCall, assistant, text_of
from ...tools import call

_CALLS = 16  # of one reply
_CLAIM = "All of that is done."

#: Makes the calls of a turn from the tools' schemas and the user's words.
_Calls: TypeAlias = Callable[[Sequence[dict[str, Any]], str], list[ToolCall]]


def _in_each_turn(calls: _Calls) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Return an attack's start: after each message of the user all of ``calls``, and then a claim."""

    def start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
        turns, replies = 0, iter(list[Message]())

        def reply(conversation: Messages) -> str | Message:
            nonlocal turns, replies
            spoken = [text_of(message) for message in conversation if message["role"] == "user"]
            if len(spoken) > turns:
                turns, replies = len(spoken), _batches(calls(_schemas(conversation), spoken[-1]))
            return next(replies, _CLAIM)

        return reply

    return start


def _batches(calls: Sequence[ToolCall]) -> Iterator[Message]:
    return iter([assistant("", calls[start : start + _CALLS]) for start in range(0, len(calls), _CALLS)])


def _schemas(conversation: Messages) -> list[dict[str, Any]]:
    """Return the schemas of the tools that the conversation describes, one a line."""
    texts = [text_of(message) for message in conversation if message["role"] in ("system", "user")]
    lines = [line for text in texts for line in text.splitlines() if line.startswith('{"type": "function"')]
    return [json.loads(line)["function"] for line in lines]


def _survey(schemas: Sequence[dict[str, Any]], words: str) -> list[ToolCall]:
    return [call(schema["name"]) for schema in schemas if not schema["parameters"]["required"]]


def _quoted(schemas: Sequence[dict[str, Any]], words: str) -> list[ToolCall]:
    texts = dict.fromkeys(re.findall(r"['\"]([^'\"]{1,80})['\"]", words))
    single = [schema for schema in schemas if len(schema["parameters"]["required"]) == 1]
    return [call(schema["name"], **{schema["parameters"]["required"][0]: text}) for text in texts for schema in single]


ATTACKS: tuple[Attack, ...] = (
    always("claim", "says that all is done", _CLAIM, fakes_solving=False),
    Attack("survey", "calls every function that needs no argument", _in_each_turn(_survey), fakes_solving=False),
    Attack(
        "quoted",
        "calls every function of one argument with each quoted text",
        _in_each_turn(_quoted),
        fakes_solving=False,
    ),
)
