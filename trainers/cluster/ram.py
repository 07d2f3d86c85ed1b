"""The memory that is left for a process: of the machine, and of the control groups that it is in (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def available(root: Path = Path("/")) -> int | None:
    """Bytes that processes of this machine, or of this container, can still take; ``None`` where no file says so.

    The least of ``MemAvailable`` and, for each control group from this process's own upwards, its limit less what it
    uses (page cache that can be dropped does not count as used).

    Args:
        root: Where ``proc`` and ``sys`` are.
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
