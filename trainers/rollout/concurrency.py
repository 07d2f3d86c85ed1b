"""The number of episodes to run at a time, steered by the engine's statistics.

A pure state machine: the collector calls :meth:`Concurrency.observe` at steady intervals. The goal is the point where
the engine is busy and nothing waits: above it, an engine preempts requests and computes them again, or those in its
queue get older. By the names that
:meth:`trainers.engines.base.Engine.stats` explains, the engine is

* *overloaded*: requests were preempted since the last observation; or more than ``_QUEUE`` of them wait, in
  ``_PATIENCE`` observations in a row.
* *clear*: nothing waits, nothing was preempted, and ``kv_use`` is below ``_KV_FULL``.
* *full*: anything between. The limit stays.

The law is additive increase, multiplicative decrease, with three changes. Until the first overload the limit is
multiplied by ``_FAST`` (as in TCP's slow start); after one it is multiplied up to where the overload began, less a
tenth, and creeps from there by ``_STEP`` of itself, at least by one. No increase goes beyond where ``kv_use`` would be
full if every episode took its share: ``limit * _KV_FULL / kv_use``. And a queue takes off the share that waits;
preemptions take off ``1 - _CUT``.

An episode fills the engine's memory only as it grows, so after a change the limit is not raised for ``settle``
observations; and nothing is cut again before the number that runs has come down to the limit. A limit of which less
than nine tenths run says nothing about the engine, and is not raised.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_KV_FULL = 0.9  # `kv_use` below which there is room
_QUEUE = 0.1  # the share of waiting among all requests that is too much
_FAST, _STEP = 1.5, 0.02  # a quick increase multiplies the limit, a slow one adds a share of it
_CUT = 0.75  # no decrease is greater
_PATIENCE = 3  # so many observations in a row make an overload of what may be a moment's


class Concurrency:
    """The controller: the ``limit`` is from 1 to ``high``, and not changed twice within ``settle`` observations."""

    def __init__(self, high: int, initial: int = 32, settle: int = 3) -> None:
        self._high, self._settle = high, settle
        self.limit = self._bounded(initial)  # episodes that may run now
        self.cuts = 0  # decreases so far
        self._fast_until: float = math.inf  # quick increases end here
        self._queued = 0  # observations in a row with too many that wait
        self._since = settle  # observations since the last change
        self._draining = False
        self._preemptions: float | None = None
        self._excused = 0  # observations whose preemptions are not caused by a lack of memory

    def updated(self) -> None:
        """Excuse preemptions by a weight update: some engines preempt requests in flight for it."""
        self._excused = 2  # an engine's numbers may be one observation old

    def observe(self, stats: Mapping[str, float], running: int) -> int:
        """Return the new limit, given the engine's ``stats`` (missing names count as 0) and the episodes running."""
        preemptions, kv_use, waiting = (_number(stats, name) for name in ("preemptions", "kv_use", "waiting"))
        preempted = not self._excused and self._preemptions is not None and preemptions > self._preemptions
        self._preemptions, self._excused = preemptions, max(0, self._excused - 1)
        requests = waiting + _number(stats, "running")
        self._queued = self._queued + 1 if waiting > _QUEUE * requests else 0
        self._since += 1
        if self._draining and running <= self.limit:
            self._draining, self._since = False, 0

        if preempted or self._queued >= _PATIENCE:
            if not self._draining and self._since > self._settle:
                self._decrease(running, _CUT if preempted else 1 - waiting / requests)
        elif waiting == 0 and kv_use < _KV_FULL and running >= 0.9 * self.limit and self._since > self._settle:
            self._increase(kv_use)
        return self.limit

    def _decrease(self, running: int, factor: float) -> None:
        before = min(self.limit, max(running, 1))  # what did not run did not overload it
        self._fast_until = 0.9 * before
        self.limit = self._bounded(math.floor(max(factor, _CUT) * before))
        self.cuts += 1
        self._since = self._queued = 0
        self._draining = running > self.limit

    def _increase(self, kv_use: float) -> None:
        slow = self.limit + max(1, math.floor(_STEP * self.limit))
        target = max(slow, min(math.floor(_FAST * self.limit), self._fast_until))
        reach = self.limit * _KV_FULL / kv_use if kv_use > 0 else math.inf
        limit = self._bounded(math.floor(min(target, max(reach, self.limit + 1))))
        if limit != self.limit:
            self.limit, self._since = limit, 0

    def _bounded(self, limit: int) -> int:
        return max(1, min(limit, self._high))


def _number(stats: Mapping[str, float], name: str) -> float:
    value = float(stats.get(name, 0.0))
    return value if math.isfinite(value) and value > 0 else 0.0
