"""Failures of calls that the policy can overcome: sessions that expire, busy services."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Problem = Literal["expired", "busy"]


@dataclass(frozen=True)
class Incidents:
    """Problems by the number of the call (of an application's tools, from 1) that has them.

    A busy service is free at the next call; after a session has expired, all calls of its application fail until it is
    signed in again.
    """

    drawn: tuple[tuple[int, Problem], ...] = ()
    calls: int = 0
    expired: frozenset[str] = frozenset()

    @classmethod
    def draw(cls, count: int, within: int, rng: np.random.Generator) -> Incidents:
        """Draw so many problems within the first calls."""
        places = sorted(rng.choice(within, min(count, within), replace=False).tolist())
        return cls(tuple((place + 1, "expired" if rng.random() < 0.5 else "busy") for place in places))

    def called(self, application: str) -> tuple[Incidents, Problem | None]:
        """Return the state after a call of an application, and the problem that the call has."""
        if application in self.expired:
            return self, "expired"
        number = self.calls + 1
        problem = dict(self.drawn).get(number)
        expired = self.expired | {application} if problem == "expired" else self.expired
        return replace(self, calls=number, expired=expired), problem

    def signed_in(self, application: str) -> Incidents:
        return replace(self, expired=self.expired - {application})
