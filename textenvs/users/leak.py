"""How much of a hidden goal a message gives away word by word."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: Words in a row that count as one copied piece. Fewer would find what any two texts on one subject share.
PIECE = 4
#: Goals of fewer pieces can hardly be paraphrased, and are not guarded.
FEWEST_PIECES = 8

_WORD = re.compile(r"\w+")


def pieces(text: str) -> set[tuple[str, ...]]:
    """All runs of :data:`PIECE` words of a text, without case and punctuation."""
    words = _WORD.findall(text.casefold())
    return {tuple(words[i : i + PIECE]) for i in range(len(words) - PIECE + 1)}


def leaked(message: str, goal: str, said_before: Iterable[str] = ()) -> float:
    """The share of the goal's pieces that ``message`` gives away, in 0..1.

    What was said before, by either side, is given away no more. Goals too short to be guarded give 0.

    Args:
        message: What is about to be said.
        goal: The text to keep.
        said_before: What was said already.
    """
    secret = pieces(goal)
    if len(secret) < FEWEST_PIECES:
        return 0.0
    known: set[tuple[str, ...]] = set()
    known.update(*(pieces(text) for text in said_before))
    return len(secret & pieces(message) - known) / len(secret)
