"""The memory of a computing process: its peak, and the return of freed memory to the system.

glibc learns from what is freed: after the first large tensors it takes all up to 32 MiB from its heap, where what lives
longer keeps what was freed below it from going back to the system. A rank then held twice what it used
(``benchmarks/real_size.py``). With a fixed limit, what is larger comes from the system and goes back at once. That
makes an update of SmolLM2 half as long again, for pages that are new every time. So ranks of a cluster, which share a
machine, do it; a run in one process keeps the heap while it learns, and empties it after each iteration.

glibc also keeps heaps by thread: what one thread freed, another does not get. So one thread computes all that a learner
in this process does (:class:`LearnerThread`).
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")

_MMAP_THRESHOLD = -3  #: glibc's number of that parameter (malloc.h)
_LIMIT = 2**20


class LearnerThread:
    """An ``asyncio.to_thread`` that always uses the same thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="learner")

    async def __call__(self, call: Callable[_Args, _Result], *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        """Run ``call`` in the thread; return or raise as it does."""
        run = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    def close(self) -> None:
        """Wait until all its calls are done."""
        self._pool.shutdown()


def give_back_freed_memory() -> None:
    """Let tensors of a MiB and more go back to the system when they are freed; process-wide, and only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LIMIT)


def empty_heap() -> None:
    """Give back to the system now what is free; about 0.1 s where there are GiB of it, and only with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes of a GPU that this process can still allocate; ``None`` on a CPU."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def give_back_gpu_memory(device: torch.device) -> None:
    """Give back to the GPU what torch keeps of it and does not use."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak(device: torch.device) -> dict[str, float]:
    """Return ``peak_gib``, this process's peak memory: on a GPU as torch allocates; on CPUs only with Linux."""
    if device.type == "cuda":
        return {"peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    # Not getrusage, whose figure begins with that of the process which started this one.
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    _, label, rest = status.partition("VmHWM:")  # which gVisor does not have
    return {"peak_gib": int(rest.split()[0]) / 2**20} if label else {}
