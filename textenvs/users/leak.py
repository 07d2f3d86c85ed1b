"""How much of a hidden goal a user gives away word by word, over a whole conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..messages import Messages, text_of

#: Words in a row that count as one copied piece. Fewer would find what any two texts on one subject share.
PIECE = 4
#: Goals of fewer pieces can hardly be paraphrased, and are not guarded.
FEWEST_PIECES = 8

_WORD = re.compile(r"\w+")


def leaked(conversation: Messages, goal: str) -> float:
    """The share of the goal's runs of :data:`PIECE` words that the user has given away so far, in 0..1.

    All messages of the user count together, and as one text, so that a goal told in pieces is told. What the assistant
    said first is not given away. Goals too short to be guarded give 0.

    Args:
        conversation: What was said, by ``user`` and ``assistant``; see
            :func:`~textenvs.messages.visible_conversation`.
        goal: The text to keep.
    """
    secret = _pieces(_words(goal))
    if len(secret) < FEWEST_PIECES:
        return 0.0
    told: set[tuple[str, ...]] = set()
    heard: set[tuple[str, ...]] = set()
    last: list[str] = []  # the user's words that may begin a piece that the next message ends
    for message in conversation:
        words = _words(text_of(message))
        if message["role"] == "user":
            told |= _pieces(last + words) - heard
            last = (last + words)[-(PIECE - 1) :]
        else:
            heard |= _pieces(words) - told
    return len(secret & told) / len(secret)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _pieces(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + PIECE]) for i in range(len(words) - PIECE + 1)}
