"""Patterns of goals: programs without their names and values, and a fifth of them held out.

A pattern has the verbs, fields and kinds of records of a program, in its order: "tell the *budget* of the *team* of a
*person*". Its hash decides whether it is one to train on or one that is held out, in every world.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any, Literal, get_args

from .goals import Goal, Named
from .goals import Literal as Value

#: All goals; those of four fifths of the patterns; those of the other fifth.
Goals = Literal["all", "train", "test"]
GOALS: tuple[str, ...] = get_args(Goals)


def pattern_of(goal: Goal) -> str:
    """Return the pattern of a program as text."""
    return _text(goal)


def is_drawn(goal: Goal, goals: str) -> bool:
    """Return whether a program is one of the ``goals``."""
    if goals == "all":
        return True
    held_out = hashlib.sha256(pattern_of(goal).encode()).digest()[0] % 5 == 0
    return held_out == (goals == "test")


def _text(part: Any) -> str:
    if isinstance(part, Named):
        return part.entity
    if isinstance(part, Value):
        return "_"
    if isinstance(part, tuple):
        return f"[{' '.join(map(_text, part))}]"
    if dataclasses.is_dataclass(part):
        # What a request excludes is no part of the pattern (of a name, neither is the label).
        inner = (getattr(part, field.name) for field in dataclasses.fields(part) if field.name != "other")
        return f"{type(part).__name__}({' '.join(map(_text, inner))})"
    return str(part)
