"""A machine that a run is planned for, and the error that says that it does not fit there."""

from __future__ import annotations

import re
from dataclasses import dataclass

_GIB = 2**30


class PlanError(ValueError):
    """The configuration cannot be placed; the message says which numbers clash, and what would do."""


@dataclass(frozen=True)
class Machine:
    """What the plan is for: this machine, or one that is not here (:meth:`described`).

    Args:
        gpus: That torch sees here, or that each of the machines has.
        gpu_bytes: Memory of the smallest; ``None`` where it is not known.
        gpu_free: What is free on the fullest, likewise.
        ram_bytes: What processes can still take of the main memory, likewise.
        world: Processes that were started together, as by torchrun: ranks of a learner that is in this process.
        nodes: Machines that are not here; ``None`` is this one, to which Ray may add others.
    """

    gpus: int = 0
    gpu_bytes: int | None = None
    gpu_free: int | None = None
    ram_bytes: int | None = None
    world: int = 1
    nodes: int | None = None

    @classmethod
    def described(cls, text: str) -> Machine:
        """``GPUS@GIB``, or ``NODESxGPUS@GIB``: machines with so many GPUs each, of so much memory.

        Raises:
            PlanError: It is neither.
        """
        found = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)@([1-9]\d*(?:\.\d+)?)", text)
        if found is None:
            raise PlanError(
                f"--plan-for {text}: it must be GPUS@GIB (4@80: 4 GPUs of 80 GiB), or NODESxGPUS@GIB (2x8@80)"
            )
        return cls(int(found[2]), int(float(found[3]) * _GIB), nodes=int(found[1] or 1))

    @property
    def says(self) -> str:
        """How many GPUs there are, and who says so."""
        return f"torch sees {self.gpus} here" if self.nodes is None else f"each machine of --plan-for has {self.gpus}"
