"""How late the event loop is: whatever blocks it makes every episode wait."""

from __future__ import annotations

import asyncio
import math

#: Probes that one long block counts as, at most.
_MOST_AT_ONCE = 10_000


class LoopLag:
    """Measures by a timer how much later than due the loop runs a callback.

    The lag is what a callback due at a random moment would wait. A loop that is blocked for a second delays one probe,
    but would have delayed all those due within that second; they are counted as well, each with its own delay, or a
    percentile would hardly show the block ("coordinated omission", as corrected by HdrHistogram's
    ``recordValueWithExpectedInterval``).

    Args:
        interval: Seconds between probes.

    Raises:
        ValueError: The interval is not positive.
    """

    def __init__(self, interval: float = 0.02) -> None:
        if not interval > 0:
            raise ValueError(f"the interval between probes of the event loop must be above 0, not {interval}")
        self.interval = interval
        self._lags: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin on the running loop; a second call does nothing."""
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """``loop_lag_p50_s``, ``loop_lag_p99_s`` and ``loop_lag_max_s`` since the last call; empty without a probe."""
        lags, self._lags = sorted(self._lags), []
        if not lags:
            return {}
        return {
            "loop_lag_p50_s": _percentile(lags, 0.50),
            "loop_lag_p99_s": _percentile(lags, 0.99),
            "loop_lag_max_s": lags[-1],
        }

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self.interval
        self._timer = loop.call_at(due, self._probe, loop, due)

    def _probe(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = loop.time() - due
        missed = min(int(lag / self.interval), _MOST_AT_ONCE)
        self._lags += [max(0.0, lag - i * self.interval) for i in range(missed + 1)]
        self._arm(loop)


def _percentile(ordered: list[float], share: float) -> float:
    """The smallest value that at least this share of all do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
