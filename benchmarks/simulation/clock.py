"""An event loop on simulated time: minutes of waiting run in milliseconds, and always in the same order.

Time stands still while callbacks run and jumps to the next timer when there is nothing left to do. So
``asyncio.sleep``, timeouts and ``loop.call_later`` behave as ever, and ``loop.time()`` is the simulated time.
taken. Work in other threads takes no simulated time: a timer may overtake it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps until a timer: it moves the clock there instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer at all: only a file or another thread can wake the loop
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class SimulatedClockLoop(asyncio.SelectorEventLoop):
    """A selector event loop whose ``time()`` starts at 0 and jumps to the next timer when idle.

    >>> async def nap():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=SimulatedClockLoop) as runner:
    ...     runner.run(nap())
    3600.0
    """

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the simulated seconds since the loop was made."""
        return self._clock.now


def run_simulated(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``asyncio.run`` on simulated time."""
    results: list[_T] = []

    async def run() -> None:
        results.append(await main)

    # Without a result of the task: Python 3.11 writes the task out as text when it takes its signal handler back, and
    # with it the result, which for thousands of episodes takes longer than the simulation.
    with asyncio.Runner(loop_factory=SimulatedClockLoop) as runner:
        runner.run(run())
    return results[0]
