"""Task sets of imported environments: a task is a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ...messages import user
from ...task import SPLITS, Endless, Split, Task, TaskError


@dataclass(frozen=True)
class Seeds(Endless):
    """The episodes of a foreign environment as an endless task set: one for every seed it may be begun with.

    A task only names its seed: what is said first comes from the environment itself. Seeds are drawn by a hash of
    ``seed`` and the task's index, the same on every machine, and are below 2**31, which every generator takes. Those of
    training and test tasks differ (even and odd). Two tasks of a set may come to the same seed, one in 2**30 pairs.
    """

    source: str
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        self.check_choices()
        if self.seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, not {self.seed!r}")

    @property
    def name(self) -> str:
        return f"{self.source} ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        digest = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=4).digest()
        drawn = int.from_bytes(digest, "big") >> 2
        return Task(
            key=f"{self.source}/{self.split}/{self.seed}/{index}",
            data_source=self.source,
            prompt=(user(f"{self.source}, number {index}"),),
            ground_truth=None,
            extra={"seed": 2 * drawn + SPLITS.index(self.split)},
        )


def seed_of(task: Task) -> int:
    """Return the seed that a task names; ``TaskError`` where it has none."""
    seed = task.extra.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise TaskError(f"task {task.key}: extra_info.seed must be an integer of at least 0, not {seed!r}")
    return seed
