"""Money and tokens: what is spent, what requests under way may still cost, and whether one more fits.

A request is let through only when the budget has room for the *most* it can cost, so a budget is never exceeded by a
request that fits its own limits. What it really cost is booked when the answer is there. Where nobody can know (the
connection broke, time ran out), the most it can have cost is booked, since the service may bill it.

Invariants: ``spent + reserved <= limit`` after every reservation; every reservation is settled exactly once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .errors import BudgetExceeded
from .spec import Budget, ChatSpec


@dataclass
class Amount:
    """Tokens and dollars."""

    tokens: int = 0
    dollars: float = 0.0

    def add(self, other: Amount, sign: int = 1) -> None:
        """Add (or with ``sign=-1`` take away) in place."""
        self.tokens += sign * other.tokens
        self.dollars += sign * other.dollars


@dataclass
class Reservation:
    """The most that a request under way can cost; ``actual`` is booked in its place once it is known."""

    worst: Amount
    actual: Amount | None = None

    @property
    def booked(self) -> Amount:
        """What it comes to."""
        return self.worst if self.actual is None else self.actual


class Ledger:
    """The books of one budget, shared by all clients of a process that have it. Safe between threads and event loops.

    Bookings end wherever Python ends them; for an abandoned coroutine that is in the garbage collector, which may run
    while this very thread holds the lock. So settling never waits for the lock: who holds it finishes what came in
    meanwhile, after letting it go.

    Args:
        budget: The limits; ``None`` for none (then nothing is ever refused).
    """

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.spent = Amount()
        self.reserved = Amount()
        self.under_way = 0
        self._lock = threading.Lock()
        self._ended: deque[Reservation] = deque()  # to be booked
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @contextmanager
    def booking(self, reservation: Reservation) -> Iterator[Reservation]:
        """Book a reservation made by :meth:`reserve` when the block ends: what ``actual`` says, else the worst."""
        try:
            yield reservation
        finally:
            self._ended.append(reservation)
            self._book()

    async def reserve(self, worst: Amount) -> Reservation:
        """Wait until ``worst`` fits beside what is spent and under way, and take it.

        It waits only while requests under way may turn out cheaper than the most they can cost.

        Raises:
            BudgetExceeded: It does not fit beside what is spent.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._book()
            future: asyncio.Future[None] = loop.create_future()
            with self._lock:
                problem = self._over(worst, Amount())
                fits = problem is None and self._over(worst, self.reserved) is None
                if fits:
                    self.reserved.add(worst)
                    self.under_way += 1
                elif problem is None:
                    self._waiting.append((loop, future))
            self._book()
            if fits:
                return Reservation(worst)
            if problem is not None:
                raise BudgetExceeded(problem)
            await future

    def _book(self) -> None:
        """Book what has ended, and wake who waits. Where the lock is taken, its holder does it next."""
        while self._ended and self._lock.acquire(blocking=False):
            try:
                while self._ended:
                    reservation = self._ended.popleft()
                    self.reserved.add(reservation.worst, -1)
                    self.spent.add(reservation.booked)
                    self.under_way -= 1
                if not self.under_way:
                    self.reserved = Amount()  # adding and taking away leaves dust in a float
                waiting, self._waiting = self._waiting, []
            finally:
                self._lock.release()
            for loop, future in waiting:
                _wake(loop, future)

    def _over(self, worst: Amount, reserved: Amount) -> str | None:
        budget = self.budget
        if budget is None:
            return None
        for unit, limit, spent, more, wanted in (
            ("tokens", budget.tokens, self.spent.tokens, reserved.tokens, worst.tokens),
            ("dollars", budget.dollars, self.spent.dollars, reserved.dollars, worst.dollars),
        ):
            if limit is not None and spent + more + wanted > limit:
                shown = ",d" if unit == "tokens" else ".6f"
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
    with _lock:
        ledger = _ledgers.setdefault(name, Ledger(spec.budget))
    if ledger.budget != spec.budget:
        raise ValueError(
            f"the budget {spec.budget.name if spec.budget else None!r} is in use with other limits ({ledger.budget}); "
            f"give this one ({spec.budget}) another name"
        )
    return ledger


def reset_budgets() -> None:
    """Start every budget of this process anew, for a new run. What is under way is still booked."""
    with _lock:
        for ledger in _ledgers.values():
            ledger.spent = Amount()


_lock = threading.Lock()
_ledgers: dict[str, Ledger] = {}


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def wake() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):  # its loop is closed, and with it who waited
        loop.call_soon_threadsafe(wake)


def _after_fork_in_child() -> None:
    """What is under way belongs to the parent, which books it; a child has only what is spent."""
    global _lock
    _lock = threading.Lock()
    for ledger in _ledgers.values():
        ledger.reserved, ledger.under_way = Amount(), 0
        ledger._lock, ledger._ended, ledger._waiting = threading.Lock(), deque(), []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
