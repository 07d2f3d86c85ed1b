"""Python's garbage collector, where a great many episodes wait.

CPython (up to 3.13) looks for cycles whenever 700 more objects were made than freed, among the young ones, which become
old if they live. What an episode makes for a turn lives as long as it waits for its user: at thousands of episodes, for
many such looks. So everything becomes old before it is freed, and nearly half of all time goes into looking at it, for
nothing: a turn leaves no cycles.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Objects that an episode makes for a turn, and some more: then most are freed before anybody looks.
_PER_EPISODE = 20
# Below so many episodes it makes no difference.
_MANY = 1000

_lock = threading.Lock()
_wanted: list[int] = []
_before = _set = 0  # the threshold that we found, and the one that we set


@contextmanager
def rarely_collected(episodes: int) -> Iterator[None]:
    """While inside, the collector looks only after 20 new objects an episode, if there are 1000 episodes or more.

    It is process-wide, and what was there before is put back by whoever leaves last, unless somebody else has changed
    it meanwhile. A collector that is off, or looks less often already, is left alone. What cycles there are may take
    so many objects' memory longer.

    Args:
        episodes: That wait at a time.
    """
    if episodes < _MANY:
        yield
        return
    wanted = _PER_EPISODE * episodes
    _enter(wanted)
    try:
        yield
    finally:
        _leave(wanted)


def _enter(wanted: int) -> None:
    global _before
    with _lock:
        if not _wanted:
            _before = gc.get_threshold()[0]
        _wanted.append(wanted)
        _raise_to(max(_wanted))


def _leave(wanted: int) -> None:
    global _set
    with _lock:
        _wanted.remove(wanted)
        threshold, *others = gc.get_threshold()
        if not _set or threshold != _set:  # nothing was changed, or somebody else did
            return
        if _wanted:
            _raise_to(max(_wanted))
        else:
            gc.set_threshold(_before, *others)
            _set = 0


def _raise_to(wanted: int) -> None:
    global _set
    threshold, *others = gc.get_threshold()
    if threshold and (threshold == _set or threshold < wanted):  # 0 is off
        _set = max(_before, wanted)
        gc.set_threshold(_set, *others)
