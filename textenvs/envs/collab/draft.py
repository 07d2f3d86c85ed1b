"""What every domain of generated collaboration tasks draws."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .tasks import Piece

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[str, ...] = get_args(Level)

#: How many pieces the user holds back at each level.
PIECES: Mapping[str, int] = {"easy": 3, "medium": 4, "hard": 5}

#: How a user begins before saying, vaguely, what it wants.
_BEGINNINGS = ("", "", "Can you help me?", "A quick question.", "I need some help.", "Hello!")


@dataclass(frozen=True)
class Draft:
    """A task before it is a row.

    Args:
        opening: The user's first, vague message.
        request: The whole task in a single turn.
        pieces: What there is to tell.
        ground_truth: What a delivery is scored against.
        content: What the task is apart from its wording; decides its split.
        extra: More for the row's ``extra_info``.
    """

    opening: str
    request: str
    pieces: tuple[Piece, ...]
    ground_truth: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def begin(rng: random.Random, wants: Sequence[str]) -> str:
    """A vague first message: perhaps a word of greeting, and one of ``wants``."""
    return f"{rng.choice(_BEGINNINGS)} {rng.choice(wants)}".strip()


def told(sayings: Sequence[str], **values: object) -> tuple[str, ...]:
    """Sayings with their values filled in."""
    return tuple(saying.format(**values) for saying in sayings)
