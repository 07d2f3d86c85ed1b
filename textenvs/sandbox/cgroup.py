"""A control group for a run, where this machine lets one be made (cgroup v2).

It closes gaps of resource limits: the kernel's own memory (socket and pipe buffers, file locks) counts, and the
memory of all processes together has a hard limit without polling. A group can be made below an ancestor of this
process's own group that gives its children the controllers ``memory`` and ``pids`` and that this user may write: as
root nearly always, otherwise in a delegated subtree (``systemd-run --user --scope -p Delegate=yes``).
"""

from __future__ import annotations

import functools
import itertools
import os
import secrets
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from .result import CommandLimits, Limits

#: MiB for members of the group besides the code: the launcher, process 1, and the kernel's records of the box.
_OVERHEAD_MB = 96
_OVERHEAD_PROCESSES = 8


class Group:
    """One run's control group, from the start of the run to its end; an OSError where it cannot be made."""

    def __init__(self, parent: Path, limits: Limits | CommandLimits) -> None:
        # Not by the process id alone: an earlier process that had it may have left its groups.
        self.path = parent / f"textenvs-{os.getpid()}-{secrets.token_hex(8)}"
        self.path.mkdir()
        try:
            self._set("memory.max", (limits.memory_mb + limits.disk_mb + _OVERHEAD_MB) << 20)
            with suppress(FileNotFoundError):  # a kernel without swap accounting
                self._set("memory.swap.max", 0)
            self._set("memory.oom.group", 1)
            self._set("pids.max", limits.processes + _OVERHEAD_PROCESSES)
            #: A process that writes ``0`` here becomes a member, with all its later children.
            self.entry = os.open(self.path / "cgroup.procs", os.O_WRONLY)
        except OSError:
            self._remove()
            raise

    def ran_out(self) -> bool:
        """Return whether the kernel ended the group because its memory was used up."""
        with suppress(OSError):
            events = dict(map(str.split, (self.path / "memory.events").read_text().splitlines()))
            return any(int(events.get(name, 0)) for name in ("oom_kill", "oom_group_kill"))
        return False

    def close(self) -> None:
        """Kill the remaining processes of the group, and remove it."""
        os.close(self.entry)
        with suppress(OSError):
            self._set("cgroup.kill", 1)
        self._remove()

    def _set(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))

    def _remove(self) -> None:
        with suppress(OSError):  # busy for the moment that a killed process takes; an empty group costs nothing
            self.path.rmdir()


@functools.cache
def parent() -> Path | None:
    """Return a group that can have children, tested by making one and entering it; ``None`` if there is none."""
    for folder in candidates():
        try:
            group = Group(folder, Limits())
        except OSError:
            continue
        try:
            enter = [sys.executable, "-I", "-S", "-c", f"import os; os.write({group.entry}, b'0')"]
            if subprocess.run(enter, pass_fds=(group.entry,), capture_output=True, check=False).returncode == 0:
                return folder
        finally:
            group.close()
    return None


def candidates(proc: Path = Path("/proc/self")) -> list[Path]:
    """List the ancestors of this process's group that give their children the controllers, the nearest first."""
    try:
        fields = [line.split() for line in (proc / "mountinfo").read_text().splitlines()]
        own = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return []
    roots = [Path(line[4]) for line in fields if line[line.index("-") + 1] == "cgroup2"]
    places = [line.removeprefix("0::") for line in own if line.startswith("0::")]
    usable = []
    for root, place in itertools.product(roots, places):
        folder = root / place.strip("/")
        for ancestor in (folder, *folder.parents):
            with suppress(OSError):
                if {"memory", "pids"} <= set((ancestor / "cgroup.subtree_control").read_text().split()):
                    usable.append(ancestor)
            if ancestor == root:
                break
    return usable
