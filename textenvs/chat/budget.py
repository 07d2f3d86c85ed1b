"""Money and tokens: what is spent, what requests under way may still cost, and whether one more fits.

A request is let through only when the budget has room for the *most* it can cost, so a budget is never exceeded by a
request that fits its own limits. What it really cost is booked when the answer is there. Where that cannot be known
(the connection broke, time ran out), the most it can have cost is booked, since the service may bill it.

Invariants: ``spent + reserved <= limit`` after every reservation; every reservation is settled exactly once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .errors import BudgetExceeded
from .spec import Budget, ChatSpec

_RECHECK_S = 0.02  # how often a request that may still fit looks again


@dataclass
class Amount:
    """Tokens and dollars."""

    tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.dollars + other.dollars)


@dataclass(eq=False)
class Reservation:
    """The most that a request under way can cost; ``actual`` is booked in its place once it is known."""

    worst: Amount
    actual: Amount | None = None

    @property
    def booked(self) -> Amount:
        """What it comes to."""
        return self.worst if self.actual is None else self.actual


class Ledger:
    """What is spent of one budget, shared by all clients of a process that have it, in any thread or event loop.

    Args:
        budget: The limits; ``None`` for none (then nothing is ever refused).
    """

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.spent = Amount()
        self.under_way: set[Reservation] = set()
        # Reentrant: an abandoned booking may end in the garbage collector, while its own thread holds the lock.
        self._lock = threading.RLock()

    @property
    def reserved(self) -> Amount:
        """The most that requests under way can cost."""
        with self._lock:
            return sum((each.worst for each in self.under_way), Amount())

    @contextmanager
    def booking(self, reservation: Reservation) -> Iterator[Reservation]:
        """Book a reservation made by :meth:`reserve` when the block ends: what ``actual`` says, else the worst."""
        try:
            yield reservation
        finally:
            with self._lock:
                self.under_way.discard(reservation)
                self.spent += reservation.booked

    async def reserve(self, worst: Amount) -> Reservation:
        """Wait until ``worst`` fits beside what is spent and under way, and take it.

        It waits only while requests under way may turn out cheaper than the most they can cost.

        Raises:
            BudgetExceeded: It does not fit beside what is spent.
        """
        while True:
            with self._lock:
                if problem := self._over(worst, Amount()):
                    raise BudgetExceeded(problem)
                if self._over(worst, self.reserved) is None:
                    reservation = Reservation(worst)
                    self.under_way.add(reservation)
                    return reservation
            await asyncio.sleep(_RECHECK_S)

    def _over(self, worst: Amount, reserved: Amount) -> str | None:
        if self.budget is None:
            return None
        for unit, shown in (("tokens", ",d"), ("dollars", ".6f")):
            limit, spent = getattr(self.budget, unit), getattr(self.spent, unit)
            wanted = getattr(worst, unit)
            if limit is not None and spent + getattr(reserved, unit) + wanted > limit:
                return (
                    f"of the budget of {limit:{shown}} {unit}, {spent:{shown}} are spent, and the next request may "
                    f"cost up to {wanted:{shown}}; raise the budget, or lower max_tokens"
                )
        return None


def ledger_of(spec: ChatSpec) -> Ledger:
    """The ledger of this process for a spec's budget: one per ``budget.name``, else one per spec.

    Raises:
        ValueError: The name is in use with other limits.
    """
    name = spec.key if spec.budget is None or spec.budget.name is None else f"named {spec.budget.name}"
    ledger = _ledgers.setdefault(name, Ledger(spec.budget))
    if ledger.budget != spec.budget:
        raise ValueError(
            f"the budget {spec.budget.name if spec.budget else None!r} is in use with other limits ({ledger.budget}); "
            f"give this one ({spec.budget}) another name"
        )
    return ledger


def reset_budgets() -> None:
    """Start every budget of this process anew, for a new run. What is under way is still booked."""
    for ledger in list(_ledgers.values()):
        ledger.spent = Amount()


_ledgers: dict[str, Ledger] = {}


def _after_fork_in_child() -> None:
    """What is under way belongs to the parent, which books it; a child has only what is spent."""
    for ledger in _ledgers.values():
        ledger.under_way, ledger._lock = set(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
