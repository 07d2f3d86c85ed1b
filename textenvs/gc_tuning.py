"""Python's garbage collector, where thousands of episodes wait.

CPython (up to 3.13) looks for cycles whenever 700 more objects were made than freed, among the young ones. What an
episode makes for a turn lives while it waits for its user, so all of it becomes old before it is freed, and a third of
the time goes into looking at it in vain (``benchmarks/vector_throughput.py one_core``): a turn leaves no cycles.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PER_EPISODE = 20  # objects that an episode makes for a turn, and some more
_MANY = 1000  # fewer episodes make no difference

_lock = threading.Lock()
_wanted: list[int] = []
_found, _ours = 0, -1  # the threshold that was there, and the one that was set here


@contextmanager
def rarely_collected(episodes: int) -> Iterator[None]:
    """While inside, the collector looks after 20 new objects an episode, if 1000 episodes or more wait at a time.

    This is process-wide; the last to leave puts back what was there. A collector that is off (0), or looks less often
    already, is left alone.
    """
    wanted = [_PER_EPISODE * episodes] if episodes >= _MANY else []
    with _lock:
        _wanted.extend(wanted)
        _apply()
    try:
        yield
    finally:
        with _lock:
            for each in wanted:
                _wanted.remove(each)
            _apply()


def _apply() -> None:
    global _found, _ours
    now, *others = gc.get_threshold()
    if now != _ours:  # it was chosen elsewhere
        _found = now
    _ours = max([_found, *_wanted]) if _found else 0
    gc.set_threshold(_ours, *others)
