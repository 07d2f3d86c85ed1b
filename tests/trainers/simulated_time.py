"""Simulated time: for tests of coroutines, and for code that is given a clock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from benchmarks.simulation.clock import run_simulated

P = ParamSpec("P")
T = TypeVar("T")


def simulated(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an asynchronous function on simulated time, as a function that waits for it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_simulated(test(*args, **kwargs))

    return run


class Clock:
    """Time that passes when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
