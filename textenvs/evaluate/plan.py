"""The episodes of an evaluation: a function of its settings and of numbers, with no state.

So an evaluation that was interrupted knows its missing episodes, in whatever order others were played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..task import TaskSet

# Endless task sets are sampled from this many indices; TextEnv does the same.
_ENDLESS = 2**31 - 1


@dataclass(frozen=True)
class Job:
    """One episode to play."""

    task: int  # its number in the evaluation, from 0
    sample: int  # which of the task's episodes, from 0
    task_index: int  # in the task set
    seed: int  # for the environment's reset and for the policy, different for every episode

    @property
    def place(self) -> tuple[int, int]:
        return self.task, self.sample


def choose_tasks(tasks: TaskSet, count: int | None, seed: int) -> tuple[int, ...]:
    """Choose the indices of the tasks to play, in ascending order: ``count`` without repeats, or all (``None``)."""
    size = tasks.size
    if count is None and size is None:
        raise ValueError(f"{tasks.name} is endless; say how many tasks to play")
    if count is not None and (count < 1 or (size is not None and count > size)):
        raise ValueError(f"cannot play {count} tasks: {tasks.name} has {'no end' if size is None else size}")
    if count is None or count == size:
        return tuple(range(size or 0))
    rng = np.random.default_rng([seed, 0])
    if size is not None:
        return tuple(sorted(int(index) for index in rng.choice(size, count, replace=False)))
    drawn: set[int] = set()
    while len(drawn) < count:
        drawn.add(int(rng.integers(_ENDLESS)))
    return tuple(sorted(drawn))


def jobs(indices: Sequence[int], samples: int, seed: int) -> Iterator[Job]:
    """Yield all episodes, task by task."""
    for task, index in enumerate(indices):
        for sample in range(samples):
            (drawn,) = np.random.SeedSequence([seed, 1, index, sample]).generate_state(1)
            yield Job(task, sample, index, int(drawn) >> 1)  # 31 bits: what a service takes as a seed


def fingerprint(tasks: TaskSet, indices: Sequence[int]) -> str:
    """Return a short digest of the rows to be played: it changes with their file."""
    digest = hashlib.blake2b(digest_size=8)
    for index in indices:
        row: Any = tasks[index].to_row()
        try:
            text = json.dumps(row, sort_keys=True, default=_stable)
        except TypeError:  # keys of several types, which have no order
            text = json.dumps(_with_text_keys(row), sort_keys=True, default=_stable)
        digest.update(text.encode())
    return digest.hexdigest()


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_stable(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list | tuple) else value


def _stable(value: Any) -> str:
    """Return text that is the same in every process: no addresses, no order of a set."""
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_stable, value)))
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text
