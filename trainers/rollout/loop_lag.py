"""Lag of the event loop."""

from __future__ import annotations

import asyncio
import math

_MOST_AT_ONCE = 10_000  # probes that one long block counts as, at most


class LoopLag:
    """Measures by a timer, every ``interval`` seconds, how much later than due the loop runs a callback.

    All probes that were due while a loop was blocked are counted, each with its own delay ("coordinated omission", as
    corrected by HdrHistogram's ``recordValueWithExpectedInterval``).
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._lags: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """Return ``loop_lag_p50_s``, ``loop_lag_p99_s``, ``loop_lag_max_s`` since the last call; {} without a probe."""
        lags, self._lags = sorted(self._lags), []
        if not lags:
            return {}
        # A percentile is the smallest value that at least this share of all do not exceed.
        p50, p99 = (lags[math.ceil(share * len(lags)) - 1] for share in (0.50, 0.99))
        return {"loop_lag_p50_s": p50, "loop_lag_p99_s": p99, "loop_lag_max_s": lags[-1]}

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self.interval
        self._timer = loop.call_at(due, self._probe, loop, due)

    def _probe(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = loop.time() - due
        missed = min(int(lag / self.interval), _MOST_AT_ONCE)
        self._lags += [max(0.0, lag - i * self.interval) for i in range(missed + 1)]
        self._arm(loop)
