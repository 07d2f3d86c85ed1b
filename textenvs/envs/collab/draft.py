"""What every family of generated collaboration tasks draws, and where its phrases come from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, get_args

import yaml

from .tasks import Piece

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[str, ...] = get_args(Level)

#: How many pieces the user holds back at each level.
PIECES: Mapping[str, int] = {"easy": 3, "medium": 4, "hard": 5}


def content(package: str | None, name: str) -> Any:
    """What the YAML file ``name`` beside the modules of ``package`` holds."""
    assert package is not None
    text = (resources.files(package) / name).read_text(encoding="utf-8")
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


#: What the scripted user says, by occasion.
PHRASES: Mapping[str, Sequence[str]] = content(__package__, "phrases.yaml")


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
    return f"{rng.choice(PHRASES['beginning'])} {rng.choice(wants)}".strip()


def told(sayings: Sequence[str], **values: object) -> tuple[str, ...]:
    """Sayings with their values filled in."""
    return tuple(saying.format(**values) for saying in sayings)
