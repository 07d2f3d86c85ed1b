"""The peak memory of a block, by the kernel's own count (``VmHWM``; Linux) or torch's on a GPU.

Of this process (:func:`peak`), or of a server's processes (:func:`peak_of_session`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from trainers.learner.memory import empty_heap


@contextmanager
def peak(device: str = "cpu") -> Iterator[dict[str, float]]:
    """Yield ``before``, this process's memory in MiB, and after the block ``peak``: how far it grew at most.

    It is the resident set; on a GPU, what torch allocates.
    """
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        usage = {"before": torch.cuda.memory_allocated() / 2**20}
        yield usage
        torch.cuda.synchronize()
        usage["peak"] = torch.cuda.max_memory_allocated() / 2**20 - usage["before"]
        return

    _need_linux()
    empty_heap()
    _reset("self")
    usage = {"before": _status("self", "VmRSS")}
    yield usage
    usage["peak"] = _status("self", "VmHWM") - usage["before"]


@contextmanager
def peak_of_session(session: int) -> Iterator[dict[str, float]]:
    """Yield a dictionary, and after the block how far the memory of a session's processes grew at most, in MiB.

    ``mapped``: of their resident sets, with memory that they share, by the kernel's count. ``private``: of what is
    theirs alone, without shared buffers; a sample is taken each ms, so what is shorter may be missed. Both are sums of
    the processes' peaks, which are not at the same time.
    """
    _need_linux()
    processes = processes_of(session)
    for process in processes:
        _reset(process)
    before = {process: _status(process, "VmRSS") for process in processes}
    private = {process: _status(process, "RssAnon") for process in processes}
    most = dict(private)
    usage: dict[str, float] = {}
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.001):
            for process in processes:
                with suppress(OSError):  # it has ended
                    most[process] = max(most[process], _status(process, "RssAnon"))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield usage
    finally:
        over.set()
        thread.join()
    usage["mapped"] = sum(_status(process, "VmHWM") - rss for process, rss in before.items())
    usage["private"] = sum(most[process] - private[process] for process in processes)


def processes_of(session: int) -> list[str]:
    """Return the ids of a session's processes."""
    return [path.name for path in Path("/proc").glob("[0-9]*") if _session_of(path) == session]


def _need_linux() -> None:
    if sys.platform != "linux":
        raise SystemExit("memory: the peak of the resident set is read from /proc, which only Linux has")


def _reset(process: str) -> None:
    Path("/proc", process, "clear_refs").write_text("5")  # resets the high-water mark


def _status(process: str, name: str) -> float:
    lines = Path("/proc", process, "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def _session_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:  # it has ended
        return None
