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

from .result import CommandLimits, Limits, SandboxFailure, transient

#: MiB for members of the group besides the code: the launcher, process 1, and the kernel's records of the box.
_OVERHEAD_MB = 96
_OVERHEAD_PROCESSES = 8


class Group:
    """One run's control group, from the start of the run to its end.

    Raises:
        SandboxFailure: It could not be made; the message says where, and what to do.
    """

    def __init__(self, parent: Path, limits: Limits | CommandLimits) -> None:
        # Not by the process id alone: an earlier process that had it may have left its groups.
        self.path = parent / f"textenvs-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            self.path.mkdir()
        except OSError as error:
            raise _failure(parent, error) from error
        try:
            self._set("memory.max", (limits.memory_mb + limits.disk_mb + _OVERHEAD_MB) << 20)
            with suppress(FileNotFoundError):  # a kernel without swap accounting
                self._set("memory.swap.max", 0)
            self._set("memory.oom.group", 1)
            self._set("pids.max", limits.processes + _OVERHEAD_PROCESSES)
            #: A process that writes ``0`` here becomes a member, with all its later children.
            self.entry = os.open(self.path / "cgroup.procs", os.O_WRONLY)
        except OSError as error:
            self._remove()
            raise _failure(parent, error) from error

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


def _failure(parent: Path, error: OSError) -> SandboxFailure:
    return SandboxFailure(
        f"the sandbox's control group could not be made in {parent}: {error}. An earlier one was made there, so look "
        "whether this user may write the folder still, whether its cgroup.max.descendants is reached, and whether it "
        "has many empty groups named textenvs-*, which may be removed (rmdir)."
    )


@functools.cache
def parent() -> Path | None:
    """Return a group that can have children, tested by making one and entering it; ``None`` if there is none.

    Raises:
        SandboxFailure: There may be one, and this machine could not test it now.
    """
    for folder in candidates():
        try:
            group = Group(folder, Limits())
        except SandboxFailure as failure:
            if transient(failure):
                raise
            continue
        try:
            enter = [sys.executable, "-I", "-S", "-c", f"import os; os.write({group.entry}, b'0')"]
            if subprocess.run(enter, pass_fds=(group.entry,), capture_output=True, check=False).returncode == 0:
                return folder
        except OSError as error:
            raise SandboxFailure(f"no program could be started to test the control group {folder}: {error}") from error
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
