"""How much of the scoring was beside generating: two clocks read at the right moments, and no timer."""

from __future__ import annotations

from collections.abc import Callable


class Overlap:
    """Seconds in which a batch was computed, and those of them in which episodes generated.

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
