"""A machine that a run is planned for, and the error that says that it does not fit there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_GIB = 2**30


class PlanError(ValueError):
    """The configuration cannot be placed; the message says which numbers clash, and what would do."""


@dataclass(frozen=True)
class Machine:
    """What the plan is for: this machine, or one that is not here (:meth:`described`)."""

    gpus: int = 0  #: that torch sees here, or that each of the machines has
    gpu_bytes: int | None = None  #: memory of the smallest; ``None`` where it is not known
    gpu_free: int | None = None  #: what is free on the fullest, likewise
    ram_bytes: int | None = None  #: what processes can still take of the main memory, likewise
    world: int = 1  #: processes that were started together, as by torchrun: ranks of a learner that is in this process
    nodes: int | None = None  #: machines that are not here; ``None`` is this one, to which Ray may add others

    @classmethod
    def described(cls, text: str) -> Machine:
        """``GPUS@GIB``, or ``NODESxGPUS@GIB``: so many GPUs each, of so much memory; PlanError where it is neither."""
        found = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)@([1-9]\d*(?:\.\d+)?)", text)
        if found is None:
            raise PlanError(
                f"--plan-for {text}: it must be GPUS@GIB (4@80: 4 GPUs of 80 GiB), or NODESxGPUS@GIB (2x8@80)"
            )
        return cls(int(found[2]), int(float(found[3]) * _GIB), nodes=int(found[1] or 1))

    @property
    def says(self) -> str:
        return f"torch sees {self.gpus} here" if self.nodes is None else f"each machine of --plan-for has {self.gpus}"


def available(root: Path = Path("/")) -> int | None:
    """Bytes that processes of this machine, or of this container, can still take; ``None`` where no file says so.

    The least of ``MemAvailable`` and, for each control group from this process's own upwards, its limit less what it
    uses (page cache that can be dropped does not count as used). ``proc`` and ``sys`` are in ``root``.
    """
    found = [*_of_machine(root), *_of_groups(root)]
    return max(0, min(found)) if found else None


def _of_machine(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            yield int(rest.split()[0]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's; the container's own limit is then at the base.
        own = base / path.strip("/")
        for folder in [each for each in (own, *own.parents) if each.is_relative_to(base)]:
            limit, used = _read(folder / names[0]).strip(), _read(folder / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + _dropped(folder, names[2])


def _dropped(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
