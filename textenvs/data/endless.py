"""What all endless, generated task sets have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

from ..task import SPLITS, Split, Task


class Endless(ABC):
    """An endless :class:`~textenvs.task.TaskSet`: a task for every integer, by the number alone.

    Subclasses are frozen dataclasses with ``seed`` and ``split``, perhaps ``level``. They define :meth:`_generate`, and
    either ``levels`` and ``what``, or ``name`` and a ``__post_init__`` that calls :meth:`check_choices`.
    """

    #: The values of ``level``.
    levels: ClassVar[Collection[Any]] = ()
    #: What the tasks are called in the set's name.
    what: ClassVar[str] = "tasks"

    seed: int
    split: Split

    def __post_init__(self) -> None:
        self.check_choices(self.levels)

    def check_choices(self, levels: Collection[Any] = ()) -> None:
        """Raise ``ValueError`` for an unknown level or split, or a seed that is not an integer."""
        if levels and (level := getattr(self, "level", None)) not in levels:
            raise ValueError(f"level must be one of {', '.join(levels)}, not {level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, not {self.seed!r}")

    @property
    def name(self) -> str:
        return f"generated {getattr(self, 'level', '')} {self.what} ({self.split}, seed {self.seed})"

    @property
    def size(self) -> None:
        return None

    def __getitem__(self, index: int) -> Task:
        if index < 0:
            raise IndexError(f"{self.name}: index {index} is negative; generated tasks count from 0")
        return self._generate(int(index))

    @abstractmethod
    def _generate(self, index: int) -> Task:
        """The task at ``index``, which is at least 0."""
