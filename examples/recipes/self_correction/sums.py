"""Sums in two attempts: `textenv/self-correct` with problems that a tiny model learns within minutes."""

from __future__ import annotations

from typing import Any

import gymnasium

from textenvs import Task, user
from textenvs.envs.self_correct import SelfCorrect
from textenvs.task import Rows, Split


class Sums(SelfCorrect):
    """`self-correct` about sums of two numbers, of which both splits have all.

    Args:
        highest: The highest number.
        split: ``"train"`` or ``"test"``, which changes nothing.
        **options: As in :class:`~textenvs.envs.self_correct.SelfCorrect`.
    """

    def __init__(self, *, highest: int = 9, split: Split = "train", **options: Any) -> None:
        numbers = range(1, highest + 1)
        tasks = Rows("sums", [_sum(first, second) for first in numbers for second in numbers])
        super().__init__(tasks, split=split, **options)


def _sum(first: int, second: int) -> Task:
    question = user(f"What is {first} + {second}?")
    return Task(f"{first}+{second}", "recipes/sums", (question,), str(first + second), "math")


gymnasium.register("recipes/self-correct-sums", entry_point=f"{__name__}:Sums")
