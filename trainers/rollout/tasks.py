"""Which task a group plays and with which seeds: functions of the run's seed and of numbers, with no state at all.

That is what makes a run reproducible and resumable: group 17 plays the same task with the same randomness whenever, and
however often, it is played.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def derive_seed(*parts: int | str, bits: int = 63) -> int:
    """A seed in ``[0, 2**bits)`` that depends on every part, the same on every machine and in every process.

    Args:
        parts: Whole numbers and strings; ``1`` and ``"1"`` are different parts.
        bits: 63 fits a signed 64-bit seed (torch), 32 the oldest of NumPy's generators.
    """
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - bits)


class TaskOrder:
    """The task of group ``n``: every epoch a new permutation of all tasks, or the tasks in their own order.

    Args:
        size: How many tasks there are; ``None`` for an endless set, whose group ``n`` plays task ``n``.
        seed: Decides the permutations.
        shuffle: Permute; has no effect on an endless set.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, size: int | None, *, seed: int = 0, shuffle: bool = True) -> None:
        if size is not None and size < 1:
            raise ValueError(f"there are {size} tasks; at least one is needed")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle

    def __call__(self, group: int) -> int:
        """The index of the task that group number ``group`` plays."""
        if self.size is None:
            return group
        epoch, place = divmod(group, self.size)
        return int(_permutation(self.size, self.seed, epoch)[place]) if self.shuffle else place


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(size)
