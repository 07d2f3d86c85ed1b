"""The peak memory of a block, by the kernel's own count (``VmHWM``; Linux) or torch's on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    if sys.platform != "linux":
        raise SystemExit("memory: the peak of the resident set is read from /proc, which only Linux has")
    empty_heap()
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    usage = {"before": status("VmRSS")}
    yield usage
    usage["peak"] = status("VmHWM") - usage["before"]
