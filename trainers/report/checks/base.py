"""A check of a run as a function of its metrics, and thresholds that several share."""

from __future__ import annotations

from collections.abc import Callable

from ..diagnosis import Check, History, Symptom

GOOD = 0.9  #: share solved from which on a run has little left to learn
GAINED = 2.0  #: standard errors that count as a gain


def check(name: str, *needs: str) -> Callable[[Callable[[History], Symptom | None]], Check]:
    """Make a check of a function; it needs these metrics."""

    def made(find: Callable[[History], Symptom | None]) -> Check:
        return Check(name, needs, find)

    return made
