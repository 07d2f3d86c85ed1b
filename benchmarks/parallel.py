"""Runs of a benchmark side by side, each in a process with one thread, begun until a deadline."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from typing import TypeVar

Key = TypeVar("Key")
Result = TypeVar("Result")

#: What the libraries below torch and NumPy read, once, when they are loaded.
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def finished(
    run: Callable[[Key], Result], ready: Callable[[], Iterable[Key]], workers: int, minutes: float
) -> Iterator[tuple[Key, Result]]:
    """Yield each run and its result, as soon as it ends.

    Args:
        run: What a process does; picklable, unless there is one worker.
        ready: The keys of runs that can begin now, the first ones first. It is asked again after each result, and must
            leave out what has ended; it need not leave out what is running.
        workers: Processes. With one, runs are made one after the other in this process.
        minutes: None begins after so many. Those that run then are waited for.

    Raises:
        Exception: What a run raised; the others that run are waited for, and their results are lost.
    """
    ends = time.monotonic() + 60 * minutes
    if workers == 1:
        while time.monotonic() < ends:
            key = next(iter(ready()), None)
            if key is None:
                return
            yield key, run(key)
        return
    os.environ.update(THREADS)  # processes are started with it
    running: dict[Future[Result], Key] = {}
    with ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent) as pool:
        while True:
            if time.monotonic() < ends:
                for key in ready():
                    if len(running) == workers:
                        break
                    if key not in running.values():
                        running[pool.submit(run, key)] = key
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _end_with_parent() -> None:
    """End this process with its parent: one that is killed ends no others, which would run on, and wait forever."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
