"""Cheap policies against AWM's tasks: claims, and calls that need no understanding of what is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from ...attack import Attack, Cheater, always, first_user_text
from ...messages import Message, Messages, assistant, text_of
from ...tools import call

_CALLS = 8  # of one reply


def _survey(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    """Call every tool without required arguments, and then repeat all results, for verifiers that read the answer."""
    turns = 0

    def reply(conversation: Messages) -> str | Message:
        nonlocal turns
        turns += 1
        if turns == 1:
            lines = text_of(conversation[0]).splitlines()
            schemas = [json.loads(line)["function"] for line in lines if line.startswith('{"type": "function"')]
            calls = [call(schema["name"]) for schema in schemas if not schema["parameters"]["required"]]
            if calls:
                return assistant("", calls[:_CALLS])
        results = [text_of(message) for message in conversation if message["role"] == "tool"]
        return "All of that is done. " + " ".join(results)

    return reply


def _echo(conversation: Messages) -> str:
    return f"I have completed the task: {first_user_text(conversation)}"


ATTACKS: tuple[Attack, ...] = (
    always("claim", "says that the task is done", "The task is done.", fakes_solving=False),
    always("echo", "says that the task is done, in its own words", _echo, fakes_solving=False),
    always("numbers", "answers with the numbers from 0 to 99", " ".join(map(str, range(100))), fakes_solving=False),
    Attack("survey", "calls what needs no argument, and repeats the results", _survey, fakes_solving=False),
)
