"""Fewer and shorter pauses of Python's garbage collector.

A run holds a few hundred thousand objects that live to its end (torch, transformers, the tokenizer), and thousands of
episodes make many more that live for seconds. With Python's own settings the collector walks all of them again and
again, on the event loop: a fifth of the time of a collector of episodes at full load
(``benchmarks/collector_throughput.py``). Reference counting frees nearly everything; only cycles wait a little longer.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (20_000, 20, 20)  # objects made, and collections of each younger generation, before one is due


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Leave out of garbage collection what there is now, and collect the rest more rarely, until the block ends.

    Process-wide: for programs, once everything that lasts is there, not for libraries.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
