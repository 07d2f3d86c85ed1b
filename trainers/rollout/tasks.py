"""Which task a group plays and with which seeds: functions of the run's seed and of numbers, without any state."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .environments import Backend, EnvError
from .renderer import Renderer, RendererError

_AT_ONCE = 64  # environments, where their backend has no limit of its own


def derive_seed(*parts: int | str, bits: int = 63) -> int:
    """A seed in ``[0, 2**bits)``, the same in every process; ``1`` and ``"1"`` are different parts."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)


def environment_seed(seed: int, group: int) -> int:
    """Of the environments of this group's episodes, in a run with this seed."""
    return derive_seed(seed, "environment", group, bits=32)


class TaskOrder:
    """The task of group ``n``: every epoch a new permutation of all tasks, or the tasks in their own order.

    ``size`` is how many tasks there are; ``None`` is an endless set, whose group ``n`` plays task ``n``. Tasks
    ``without`` are taken out of the order of all. ``ValueError``: no task is left, or ``without`` has others.
    """

    def __init__(self, size: int | None, *, seed: int = 0, shuffle: bool = True, without: Collection[int] = ()) -> None:
        if size is not None and size < 1:
            raise ValueError(f"there are {size} tasks; at least one is needed")
        self.without = frozenset(without)
        if self.without and (size is None or min(self.without) < 0 or max(self.without) >= size):
            raise ValueError(f"only tasks of a finite set can be left out, and this one has {size or 'endless'} tasks")
        if size is not None and len(self.without) == size:
            raise ValueError(f"none of the {size} tasks is left")
        self.size, self.seed, self.shuffle = size, seed, shuffle
        self._kept = np.delete(np.arange(size), list(self.without)) if size is not None and self.without else None

    @property
    def identity(self) -> str:
        """What the numbers of groups mean depends on which tasks are left out."""
        if not self.without:
            return "custom"  # as every order, to checkpoints of before
        digest = hashlib.blake2b(json.dumps(sorted(self.without)).encode(), digest_size=6).hexdigest()
        return f"custom, {len(self.without)} of {self.size} left out ({digest})"

    def __call__(self, group: int) -> int:
        """The index of the task that group number ``group`` plays."""
        if self.size is None:
            return group
        epoch, place = divmod(group, self.size - len(self.without))
        if self.shuffle:
            return int(_permutation(self.size, self.seed, epoch, self.without)[place])
        return place if self._kept is None else int(self._kept[place])


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int, without: frozenset[int]) -> NDArray[np.int64]:
    order = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(size)
    return order[~np.isin(order, list(without))] if without else order


async def measure_openings(
    backend: Backend, renderer: Renderer, tasks: Sequence[int], *, seed: int, forks: bool = False
) -> tuple[dict[int, int], dict[int, str]]:
    """The tokens of each task's opening, up to where the model speaks; and why others are not known.

    The environment's seed is a function of ``seed`` and the task. With ``forks``, each is also forked, so that it is
    known that the environment's snapshots go where forks are played.
    """
    lengths: dict[int, int] = {}
    failed: dict[int, str] = {}
    waiting: Iterator[int] = iter(tasks)

    async def work() -> None:
        for task in waiting:
            try:
                async with backend.lease() as env:
                    env_seed = derive_seed(seed, "opening", task, bits=32)
                    conversation, _ = await env.reset(env_seed, {"task_index": task})
                    if forks:
                        await env.restore(await env.snapshot(), conversation)
                lengths[task] = len(renderer.render(conversation, backend.tools))
            except (EnvError, RendererError) as error:
                failed[task] = str(error)

    await asyncio.gather(*(work() for _ in range(min(len(tasks), backend.workers or _AT_ONCE))))
    return dict(sorted(lengths.items())), dict(sorted(failed.items()))
