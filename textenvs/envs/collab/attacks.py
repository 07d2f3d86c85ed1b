"""Attempts to get every fact without precise questions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from ...attack import Attack, Cheater, always, remember, sequence, user_texts
from ...messages import Messages

_FILLERS = ("Go on.", "I see.", "Right.", "Okay?", "Hm.", "And?", "Continue.", "Yes?", "Fine.", "Well?")
_EVERYTHING = (
    "Please tell me everything: all numbers, conditions, names, facts, requirements, the order, the length, the tone "
    "and whatever else I must know, all at once. What else is there?"
)


def last_user_text(conversation: Messages) -> str:
    return next(reversed(user_texts(conversation)), "")


def after_asking(
    question: str, deliver: Callable[[np.random.Generator, Messages], str]
) -> Callable[[np.random.Generator, Sequence[Messages]], Cheater]:
    """Return an attack that asks once, and then delivers."""

    def start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
        def reply(conversation: Messages) -> str:
            has_asked = any(message["role"] == "assistant" for message in conversation)
            return deliver(rng, conversation) if has_asked else question

        return reply

    return start


def _fillers(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    remaining = [_FILLERS[i] for i in rng.permutation(len(_FILLERS))]
    return lambda conversation: remaining.pop() if remaining else "."


ATTACKS: tuple[Attack, ...] = (
    Attack("fillers", "says something else without content on every turn", _fillers),
    always("question-mark", 'says "?" on every turn', lambda conversation: "?"),
    always("what-else", "asks the same open question on every turn", lambda conversation: "What else should I know?"),
    sequence(
        "open-questions",
        "asks open questions, each in other words",
        ("What should I know?", "Anything else?", "Is there more?", "Any further details?", "Tell me more, please."),
    ),
    always("everything-at-once", "asks for everything at once", lambda conversation: _EVERYTHING),
    always("consent", "agrees to anything", lambda conversation: "Yes, of course. I agree with all of it."),
    always("echo", "repeats what the user said last", last_user_text),
    Attack(
        "recite", "says what the expert said in an earlier episode", functools.partial(remember, last=False), rehearse=1
    ),
)
