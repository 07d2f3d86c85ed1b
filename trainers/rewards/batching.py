"""Which requests make a batch, and how much of scoring is beside generating: pure, without a clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """The queue in front of one model, first in, first out; a batch is due when full, or after ``max_wait`` seconds.

    A batch has at most ``max_size`` requests and ``max_tokens`` tokens; a request with more is a batch of its own.
    """

    def __init__(self, max_size: int, max_tokens: int | None, max_wait: float) -> None:
        self._max_size, self._max_tokens, self._max_wait = max_size, max_tokens, max_wait
        self._queue: deque[tuple[Item, int, float]] = deque()  # with tokens, and since when

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: Item, tokens: int, now: float) -> None:
        self._queue.append((item, tokens, now))

    def remove(self, item: Item) -> None:
        """Nothing happens if it does not wait."""
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not item)

    def due(self, now: float) -> float | None:
        """Seconds until there is a batch (0: now), if nothing else comes; ``None`` while nothing waits."""
        if not self._queue:
            return None
        if self._fitting() < len(self._queue) or len(self._queue) == self._max_size:
            return 0.0  # it is full: another would not fit, or does not
        return max(0.0, self._queue[0][2] + self._max_wait - now)

    def take(self, now: float) -> list[tuple[Item, float]]:
        """The next batch, each request with the seconds it waited; empty unless one is due."""
        if self.due(now) != 0.0:
            return []
        batch = [self._queue.popleft() for _ in range(self._fitting())]
        return [(item, now - since) for item, _, since in batch]

    def _fitting(self) -> int:
        """How many of the oldest fit in a batch."""
        total = 0
        for count, (_, tokens, _) in enumerate(self._queue):
            total += tokens
            if count and (count == self._max_size or (self._max_tokens is not None and total > self._max_tokens)):
                return count
        return len(self._queue)


class Overlap:
    """Seconds in which a batch was computed, and of them those in which episodes generated; side by side count once."""

    def __init__(self) -> None:
        self._running = 0
        self._since = (0.0, 0.0)
        self._busy = self._beside = self._watched = 0.0
        self._generating_s: Callable[[], float] | None = None

    def watch(self, generating_s: Callable[[], float], now: float) -> None:
        """Measure against this clock from now on."""
        self._take(now)
        self._generating_s, self._watched, self._beside = generating_s, 0.0, 0.0
        self._since = (now, generating_s())

    def begin(self, now: float) -> None:
        self._take(now)
        self._running += 1

    def end(self, now: float) -> None:
        self._take(now)
        self._running -= 1

    def stats(self, now: float | None) -> dict[str, float]:
        """``computing_s``, and ``overlap`` where it can be said; up to the last batch without ``now``."""
        if now is not None:
            self._take(now)
        share = {"overlap": self._beside / self._watched} if self._watched > 0 else {}
        return {"computing_s": self._busy, **share}

    def _take(self, now: float) -> None:
        generated = 0.0 if self._generating_s is None else self._generating_s()
        if self._running:
            passed = now - self._since[0]
            self._busy += passed
            if self._generating_s is not None:
                self._watched += passed
                self._beside += generated - self._since[1]
        self._since = (now, generated)
