"""Which replica serves a request: the state machine of :class:`trainers.engines.replicas.Replicas`.

A pure state machine: no I/O, no clock, no asyncio. The shell calls :meth:`Router.place` when a request comes,
:meth:`Router.finish` when it has left its replica, whatever became of it, and :meth:`Router.down` and
:meth:`Router.up` as replicas go and come.

Load
    The load of a replica is the sum over its requests in flight of ``PREFILL_WEIGHT * uncached + expected``, in
    tokens: ``uncached`` prompt tokens are those that the replica is not known to have computed before, and ``expected``
    is how many new ones will come: the running mean of recent replies, at least 1 and at most ``max_new_tokens``. A
    prompt token counts less than a new one, because prompts are computed many tokens a step and replies one. The charge
    is fixed when the request is placed, so that what is added is what is taken off.

Rules, in this order
    1. A replica that is down gets nothing; one to ``avoid`` (it failed this request before) only if no other is up.
    2. A session that has a home goes home, except as rule 5 says.
    3. A request without a home goes to the replica that shares the longest prefix with it, of those that do not shed,
       if that is at least ``min_share`` of the prompt; among equals to the least loaded.
    4. Otherwise to the least loaded of those that do not shed; among equals to the one with the fewest sessions.
    5. *Rebalancing.* A replica begins to shed when its load is above ``high`` times the mean of the others plus
       ``slack`` mean requests, and stops when it is at most ``low`` times that mean plus half the slack. While it
       sheds, a session at home there moves to the least loaded replica with its next request, provided that the
       session has nothing else in flight and was not moved by this rule in its last ``settle`` requests.

Why that does not thrash: between the two limits of rule 5 nothing changes, the slack keeps a handful of requests from
looking like an imbalance, not all replicas can shed at once (each would be above the mean of the others), and a session
pays for at most one move, that is one prefill of its context, in ``settle`` requests.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainers.engines.prefixes import Keys, PrefixIndex

PREFILL_WEIGHT = 0.25  #: of a prompt token, where a new token counts 1
_MEMORY = 0.05  # of the running means: the weight of the newest request

Reason = Literal["home", "prefix", "load", "balance"]


@dataclass(frozen=True, eq=False)
class Placement:
    """One attempt of one request on one replica.

    Args:
        replica: Which.
        prompt: The prompt, ``[n]``.
        keys: Of the prompt, in the prefix index.
        session: The session's name, if any.
        charge: What it adds to the replica's load.
        reason: Which rule chose the replica: 2, 3, 4 or 5.
        left: The session's home until now, if this placement moved it.
    """

    replica: int
    prompt: NDArray[np.integer]
    keys: Keys
    session: str | None
    charge: float
    reason: Reason
    left: int | None = None


@dataclass
class _Session:
    home: int | None = None
    length: int = 0  # tokens that the home has of it
    in_flight: int = 0
    settled: int = 0  # requests since rule 5 moved it
    lost: bool = False  # its home went down
    released: bool = False  # to be forgotten when nothing is in flight
    holders: set[int] = field(default_factory=set)  # replicas that may keep something of it


class Router:
    """Places requests; see the module's docstring for the rules.

    Args:
        replicas: How many there are; all begin as up.
        high: Rule 5, above 1.
        low: Rule 5, from 1 to ``high``.
        slack: Rule 5, in mean requests.
        settle: Rule 5, requests of a session between two moves.
        min_share: Rule 3, the share of a prompt that makes a prefix worth following.
        block: See :class:`~trainers.engines.prefixes.PrefixIndex`.
        max_blocks: Likewise.
        max_sessions: Sessions to remember; of those with nothing in flight the least recently used is forgotten first,
            which costs it its home and nothing else.

    Raises:
        ValueError: ``low`` and ``high`` contradict each other.

    Attributes:
        replicas: How many there are, up or not.
        load: Of each, in tokens; see the module's docstring.
        in_flight: Requests on each.
        at_home: Sessions at home on each.
        healthy: Those that are up.
        shedding: Those that shed sessions (rule 5).
        counters: ``prefix_hits`` (requests placed by rule 3), ``prefix_tokens`` (how much they shared), ``moves``
            (sessions that went to another home, for balance or because theirs was lost).
    """

    def __init__(
        self,
        replicas: int,
        *,
        high: float = 1.5,
        low: float = 1.1,
        slack: float = 4.0,
        settle: int = 4,
        min_share: float = 0.5,
        block: int = 16,
        max_blocks: int = 65536,
        max_sessions: int = 65536,
    ) -> None:
        if not 1.0 <= low <= high or high == 1.0:
            raise ValueError(f"rebalancing needs 1 <= low <= high and high above 1, not low={low}, high={high}")
        self.counters = Counter(prefix_hits=0, prefix_tokens=0, moves=0)
        self._high, self._low, self._slack, self._settle = high, low, slack, settle
        self._min_share, self._max_sessions = min_share, max_sessions
        self._index = PrefixIndex(replicas, block=block, max_blocks=max_blocks)
        self.replicas = replicas
        self.load = [0.0] * replicas
        self.in_flight = [0] * replicas
        self.at_home = [0] * replicas
        self.healthy = set(range(replicas))
        self.shedding: set[int] = set()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()  # the one used longest ago first
        self._mean_charge: float | None = None
        self._mean_reply: float | None = None

    def home(self, session: str) -> int | None:
        """Where a session is at home, if anywhere."""
        known = self._sessions.get(session)
        return None if known is None else known.home

    # ------------------------------------------------------------------ requests

    def place(
        self,
        prompt: NDArray[np.integer],
        max_new_tokens: int,
        session: str | None = None,
        avoid: Collection[int] = (),
    ) -> Placement | None:
        """Choose a replica for a request and charge it; ``None`` if all are down.

        Args:
            prompt: Token ids ``[n]``.
            max_new_tokens: The request's limit.
            session: Its session's name, if any.
            avoid: Replicas that failed this very request.
        """
        candidates = sorted(self.healthy.difference(avoid)) or sorted(self.healthy)
        if not candidates:
            return None
        keys = self._index.keys(prompt)
        shared = self._index.shared(keys)
        known = None if session is None else self._session(session)
        replica, reason = self._choose(candidates, len(prompt), shared, known)
        if reason == "prefix":
            self.counters["prefix_hits"] += 1
            self.counters["prefix_tokens"] += shared[replica]

        cached, left = shared[replica], None
        if known is not None:
            if known.home == replica:
                cached = max(cached, min(known.length, len(prompt)))
            else:
                left = self._move_in(known, replica)
                known.settled = -1 if reason == "balance" else known.settled
            known.settled += 1
            known.in_flight += 1
            known.released = False
            known.holders.add(replica)
        expected = max_new_tokens if self._mean_reply is None else min(max_new_tokens, max(1.0, self._mean_reply))
        charge = PREFILL_WEIGHT * (len(prompt) - cached) + expected
        self._mean_charge = _mean(self._mean_charge, charge)
        self.load[replica] += charge
        self.in_flight[replica] += 1
        self._index.add(keys, replica)  # those that come next may follow it at once
        self._rebalance()
        return Placement(replica, prompt, keys, session, charge, reason, left)

    def finish(self, placement: Placement, new_tokens: NDArray[np.integer] | None = None) -> None:
        """The request has left its replica. Call once a placement.

        Args:
            placement: From :meth:`place`.
            new_tokens: The whole reply, if there is one.
        """
        replica = placement.replica
        self.in_flight[replica] -= 1
        self.load[replica] = self.load[replica] - placement.charge if self.in_flight[replica] else 0.0
        known = None if placement.session is None else self._sessions[placement.session]
        if placement.session is not None and known is not None:
            known.in_flight -= 1
            if known.released and not known.in_flight:
                self._forget(placement.session)
        if new_tokens is not None:
            self._mean_reply = _mean(self._mean_reply, float(len(new_tokens)))
            if replica in self.healthy:
                whole = np.concatenate([placement.prompt, new_tokens])
                self._index.add(self._index.keys(whole, placement.keys), replica)
                if known is not None and known.home == replica:
                    known.length = len(whole)
        self._rebalance()

    # ------------------------------------------------------------------ what else happens

    def release(self, session: str) -> list[int]:
        """Forget a session: the replicas that may keep something of it (all that are up, if it is not known)."""
        known = self._sessions.get(session)
        if known is None:
            return sorted(self.healthy)
        holders, known.holders = sorted(known.holders & self.healthy), set()
        known.released, known.length = True, 0
        if not known.in_flight:
            self._forget(session)
        return holders

    def down(self, replica: int) -> None:
        """A replica is lost, with what it kept: its sessions have no home any more."""
        self.healthy.discard(replica)
        self.shedding.discard(replica)
        self._index.forget(replica)
        for known in self._sessions.values():
            known.holders.discard(replica)
            if known.home == replica:
                self._move_out(known)
                known.lost = True
        self._rebalance()

    def up(self, replica: int) -> None:
        """A replica is there again, with nothing in it."""
        self.healthy.add(replica)
        self._rebalance()

    def forget_computed(self) -> None:
        """New weights: nothing that was computed counts any more, so that moving a session costs nothing now."""
        self._index.clear()
        for known in self._sessions.values():
            known.length, known.settled = 0, self._settle

    # ------------------------------------------------------------------ inside

    def _choose(
        self, candidates: list[int], size: int, shared: list[int], known: _Session | None
    ) -> tuple[int, Reason]:
        calm = [replica for replica in candidates if replica not in self.shedding] or candidates
        if known is not None and known.home in candidates:
            least = min(calm, key=self._pressure)
            moves = known.home in self.shedding and known.in_flight == 0 and known.settled >= self._settle
            if moves and least != known.home:
                return least, "balance"
            return known.home, "home"
        longest = max(shared[replica] for replica in calm)
        if longest and longest >= self._min_share * size:
            return min((r for r in calm if shared[r] == longest), key=self._pressure), "prefix"
        return min(calm, key=self._pressure), "load"

    def _pressure(self, replica: int) -> tuple[float, int, int]:
        return self.load[replica], self.at_home[replica], replica

    def _session(self, name: str) -> _Session:
        if name not in self._sessions:
            self._sessions[name] = _Session(settled=self._settle)
            if (surplus := len(self._sessions) - self._max_sessions) > 0:
                idle = (old for old, known in self._sessions.items() if not known.in_flight and old != name)
                for oldest in list(islice(idle, surplus)):
                    self._forget(oldest)
        self._sessions.move_to_end(name)
        return self._sessions[name]

    def _forget(self, name: str) -> None:
        self._move_out(self._sessions.pop(name))

    def _move_in(self, known: _Session, replica: int) -> int | None:
        left = known.home
        self._move_out(known)
        if left is not None or known.lost:
            self.counters["moves"] += 1
        known.home, known.lost = replica, False
        self.at_home[replica] += 1
        return left

    def _move_out(self, known: _Session) -> None:
        if known.home is not None:
            self.at_home[known.home] -= 1
        known.home, known.length = None, 0

    def _rebalance(self) -> None:
        """Which replicas shed now, by the hysteresis of rule 5."""
        if len(self.healthy) < 2 or self._mean_charge is None:
            self.shedding.clear()
            return
        total, slack = sum(self.load[replica] for replica in self.healthy), self._slack * self._mean_charge
        for replica in self.healthy:
            others = (total - self.load[replica]) / (len(self.healthy) - 1)
            if self.load[replica] > self._high * others + slack:
                self.shedding.add(replica)
            elif self.load[replica] <= self._low * others + slack / 2:
                self.shedding.discard(replica)


def _mean(before: float | None, value: float) -> float:
    """A running mean that forgets slowly."""
    return value if before is None else before + _MEMORY * (value - before)
