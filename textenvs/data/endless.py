"""What all endless, generated task sets have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from ..task import SPLITS, Split, Task


class Endless(ABC):
    """An endless :class:`~textenvs.task.TaskSet`: a task for every integer, by the number alone.

    Subclasses are frozen dataclasses with ``seed`` and ``split``, perhaps ``level``; they call :meth:`check_choices`
    first in ``__post_init__``, and define ``name`` and :meth:`_generate`.
    """

    seed: int
    split: Split

    def check_choices(self, levels: Collection[Any] = ()) -> None:
        """Check ``split`` and ``seed``, and ``level`` where there are levels.

        Raises:
            ValueError: An unknown level or split, or a seed that is not an integer.
        """
        if levels and (level := getattr(self, "level", None)) not in levels:
            raise ValueError(f"level must be one of {', '.join(levels)}, not {level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, not {self.seed!r}")

    @property
    @abstractmethod
    def name(self) -> str:
        """Which tasks these are, in a line."""

    @property
    def size(self) -> None:
        """Endless."""
        return None

    def __getitem__(self, index: int) -> Task:
        """The task at ``index``.

        Raises:
            IndexError: ``index`` is negative.
        """
        if index < 0:
            raise IndexError(f"{self.name}: index {index} is negative; generated tasks count from 0")
        return self._generate(int(index))

    @abstractmethod
    def _generate(self, index: int) -> Task:
        """The task at ``index``, which is at least 0."""
