"""The C library's heap, in a process that computes on the CPU.

glibc learns from what is freed: after the first large tensors it takes all up to 32 MiB from its heap, where what lives
longer keeps what was freed below it from going back to the system. A rank then held twice what it used
(``benchmarks/real_size.py``). With a fixed limit, what is larger comes from the system and goes back to it at once.
"""

from __future__ import annotations

import ctypes

_MMAP_THRESHOLD = -3  #: glibc's number of that parameter (malloc.h)
_LIMIT = 2**20


def give_back_freed_memory() -> None:
    """Let tensors of a MiB and more go back to the system when they are freed; process-wide, and only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LIMIT)
