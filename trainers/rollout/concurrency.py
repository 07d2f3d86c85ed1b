"""How many episodes to run at a time: found from what the engine says of itself.

A pure state machine: no I/O, no clock. The collector calls :meth:`Concurrency.observe` at steady intervals with the
engine's ``stats`` and the number of episodes that run, and keeps to the limit that it answers.

What is being looked for is the point where the engine is busy and nothing waits. Below it, throughput grows with every
episode. Above it, an engine without memory for all its requests preempts some and computes them again, and requests in
a queue only get older: the same work, done later and with older weights.

Three states of the engine are told apart, by the names that :meth:`trainers.engines.base.Engine.stats` explains:

* *overloaded*: requests were preempted since the last observation; or more than ``queue`` of the requests wait, in
  ``patience`` observations in a row.
* *clear*: nothing waits, nothing was preempted, and ``kv_use`` is below ``kv_full``.
* *full*: anything between. That is the goal: the limit stays.

The law is additive increase, multiplicative decrease, with three changes. There is one controller and no other to be
fair to, so the search may be quick where nothing is known: until the first overload the limit is multiplied by ``fast``
(as in TCP's slow start); after one it is multiplied up to where the overload began, less a tenth, and creeps from there
by ``step`` of itself, at least by one. ``kv_use`` tells how far the goal is, so no increase goes beyond where it would
be reached if every episode took its share: ``limit * kv_full / kv_use``. And a queue tells by how much there are too
many: it takes off the share that waits, where preemptions, which say no such thing, take off ``1 - cut``.

Two delays are reckoned with. An episode that starts fills the engine's memory only as it grows, so after a change the
limit is not raised for ``settle`` observations. And one that runs cannot be stopped, so after a cut the overload lasts
until enough have ended: nothing is cut again before the number that runs has come down to the limit and ``settle``
observations are over. A limit that does not bind (less than nine tenths of it run) says nothing about the engine, and
is not raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass


@dataclass
class Concurrency:
    """The controller; see the module's docstring for its law.

    Args:
        high: The limit is never above.
        low: ... nor below; at least 1.
        initial: The limit to begin with, within the bounds.
        kv_full: ``kv_use`` below which there is room, in (0, 1].
        queue: The share of waiting among all requests of the engine that is too much, in [0, 1).
        fast: Factor of a quick increase, above 1.
        step: Share of the limit that a slow increase adds, above 0.
        cut: Factor of a decrease, in (0, 1); no decrease is greater.
        patience: So many observations in a row make an overload of what may be a moment's.
        settle: Observations between a change and the next.

    Attributes:
        limit: Episodes that may run now.
        cuts: Decreases so far.
    """

    high: int
    _: KW_ONLY
    low: int = 1
    initial: int = 32
    kv_full: float = 0.9
    queue: float = 0.1
    fast: float = 1.5
    step: float = 0.02
    cut: float = 0.75
    patience: int = 3
    settle: int = 3

    def __post_init__(self) -> None:
        self.limit = self._bounded(self.initial)
        self.cuts = 0
        self._known: float = math.inf  # quick increases end here
        self._queued = 0  # observations in a row with too many that wait
        self._since = self.settle  # observations since the last change
        self._draining = False
        self._preemptions: float | None = None
        self._excused = 0  # observations whose preemptions are not for want of memory

    def updated(self) -> None:
        """New weights are out: some engines preempt what they have in flight for them, which says nothing of memory."""
        self._excused = 2  # an engine's numbers may be one observation old

    def observe(self, stats: Mapping[str, float], running: int) -> int:
        """The limit from now on, with the engine's ``stats`` (names that it lacks count as 0) and episodes running."""
        preemptions, kv_use, waiting = (_number(stats, name) for name in ("preemptions", "kv_use", "waiting"))
        preempted = not self._excused and self._preemptions is not None and preemptions > self._preemptions
        self._preemptions, self._excused = preemptions, max(0, self._excused - 1)
        requests = waiting + _number(stats, "running")
        self._queued = self._queued + 1 if waiting > self.queue * requests else 0
        self._since += 1
        if self._draining and running <= self.limit:
            self._draining, self._since = False, 0

        if preempted or self._queued >= self.patience:
            if not self._draining and self._since > self.settle:
                self._decrease(running, self.cut if preempted else 1 - waiting / requests)
        elif waiting == 0 and kv_use < self.kv_full and running >= 0.9 * self.limit and self._since > self.settle:
            self._increase(kv_use)
        return self.limit

    def _decrease(self, running: int, factor: float) -> None:
        before = min(self.limit, max(running, self.low))  # what did not run did not overload it
        self._known = 0.9 * before
        self.limit = self._bounded(math.floor(max(factor, self.cut) * before))
        self.cuts += 1
        self._since = self._queued = 0
        self._draining = running > self.limit

    def _increase(self, kv_use: float) -> None:
        slow = self.limit + max(1, math.floor(self.step * self.limit))
        wanted = max(slow, min(math.floor(self.fast * self.limit), self._known))
        reach = self.limit * self.kv_full / kv_use if kv_use > 0 else math.inf
        limit = self._bounded(math.floor(min(wanted, max(reach, self.limit + 1))))
        if limit != self.limit:
            self.limit, self._since = limit, 0

    def _bounded(self, limit: int) -> int:
        return max(self.low, min(limit, self.high))


def _number(stats: Mapping[str, float], name: str) -> float:
    value = float(stats.get(name, 0.0))
    return value if math.isfinite(value) and value > 0 else 0.0
