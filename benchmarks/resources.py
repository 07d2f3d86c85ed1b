"""Use of memory, processes, open files, mounts and temporary files by this process and all below it, from `/proc`."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.terminal import below

_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@dataclass(frozen=True)
class Resources:
    """Resources that are used at one moment; sums over this process and all below it, unless it says otherwise."""

    memory_mb: float  # proportional resident memory: a page that n processes share counts 1/n in each
    own_mb: float  # resident memory of this process alone
    processes: int
    threads: int  # of this process
    open_files: int
    mounts: int  # in all mount namespaces that these processes are in
    temporary: int  # files and folders in this process's folder for temporary files
    disk_mb: float  # of these


def adopt_orphans() -> None:
    """Make processes whose parents have ended children of this one, so that they are counted; this cannot be undone."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a new folder this process's place for temporary files, and yield it; restore the old folder afterwards."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before


def resources(temporary: str) -> Resources:
    """Measure what is used now; processes that end meanwhile are left out. ``temporary`` is the folder of that name."""
    pids = [*below(os.getpid())]
    memory, files, mounts = 0.0, 0, dict[str, int]()
    for pid in pids:
        with suppress(OSError):
            memory += _proportional_mb(pid)
            files += len(os.listdir(f"/proc/{pid}/fd"))
            mounts[os.readlink(f"/proc/{pid}/ns/mnt")] = len(Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines())
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    sizes = []
    for folder, folders, names in os.walk(temporary):
        sizes += [0] * len(folders)
        for name in names:
            with suppress(FileNotFoundError):
                sizes.append(os.lstat(os.path.join(folder, name)).st_blocks * 512)
    threads = len(os.listdir("/proc/self/task"))
    return Resources(memory, own, len(pids), threads, files, sum(mounts.values()), len(sizes), sum(sizes) / 2**20)


def _proportional_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024  # none of one that has ended
