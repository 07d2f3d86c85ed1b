"""Which requests make a batch, and how much of scoring is beside generating: pure, without a clock of its own.

Requests come one by one, and a model computes many at nearly the price of one. A batch is *due* as soon as it is full
(so many requests, or so many tokens), or its oldest request has waited long enough. Requests leave in the order in
which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass
class _Waiting(Generic[Item]):
    item: Item
    tokens: int
    since: float


class Batcher(Generic[Item]):
    """The queue in front of one model.

    Args:
        max_size: Requests in a batch, at most.
        max_tokens: Tokens in a batch, at most; ``None`` for no limit. A request with more is a batch of its own.
        max_wait: Maximum batching delay in seconds; 0 takes whatever is there.
    """

    def __init__(self, *, max_size: int, max_tokens: int | None = None, max_wait: float = 0.0) -> None:
        self.max_size = max_size
        self.max_tokens = max_tokens
        self.max_wait = max_wait
        self._queue: deque[_Waiting[Item]] = deque()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def add(self, item: Item, tokens: int, now: float) -> None:
        """A request comes."""
        self._queue.append(_Waiting(item, tokens, now))

    def remove(self, item: Item) -> None:
        """A request that waits is not needed any more; nothing happens if it does not wait."""
        self._queue = deque(waiting for waiting in self._queue if waiting.item is not item)

    def due(self, now: float) -> float | None:
        """Seconds until there is a batch (0: now), if nothing else comes; ``None`` while nothing waits."""
        if not self._queue:
            return None
        if len(self._fitting()) < len(self._queue) or len(self._queue) == self.max_size:
            return 0.0  # it is full: another would not fit, or does not
        return max(0.0, self._queue[0].since + self.max_wait - now)

    def take(self, now: float) -> list[tuple[Item, float]]:
        """The next batch, each request with the seconds it waited; empty unless one is due."""
        if self.due(now) != 0.0:
            return []
        batch = self._fitting()
        for _ in batch:
            self._queue.popleft()
        return [(waiting.item, now - waiting.since) for waiting in batch]

    def _fitting(self) -> list[_Waiting[Item]]:
        """As many of the oldest as fit in a batch."""
        batch: list[_Waiting[Item]] = []
        tokens = 0
        for waiting in self._queue:
            tokens += waiting.tokens
            if batch and (len(batch) == self.max_size or (self.max_tokens is not None and tokens > self.max_tokens)):
                break
            batch.append(waiting)
        return batch


class Overlap:
    """Seconds in which a batch was computed, and those of them in which episodes generated: two clocks, and no timer.

    Batches side by side count once. ``generating_s`` says for how many seconds, so far, anything has been generating
    (:meth:`trainers.rollout.collector.Collector.generating_s`); the difference between two readings of it is exactly
    the time in between.
    """

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
        """A batch begins."""
        self._take(now)
        self._running += 1

    def end(self, now: float) -> None:
        """A batch has ended."""
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
