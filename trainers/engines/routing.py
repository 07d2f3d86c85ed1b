"""The choice of a request's replica: the state machine of :class:`trainers.engines.replicas.Replicas`, without I/O.

The load of a replica is the sum over its requests in flight of ``PREFILL_WEIGHT * uncached + expected``, in tokens:
``uncached`` prompt tokens are those that it is not known to have computed before, ``expected`` is the running mean of
recent replies, at most ``max_new_tokens``. The charge is fixed when the request is placed.

Rules, in this order:

1. A replica that is down gets nothing; one to ``avoid`` (it failed this request before) only if no other is up.
2. A session that has a home goes home, except as rule 5 says.
3. A request without a home goes to the replica that shares the longest prefix with it, of those that do not shed, if
   that is at least ``min_share`` of the prompt; among equals to the least loaded.
4. Otherwise to the least loaded of those that do not shed; among equals to the one with the fewest sessions.
5. A replica begins to shed when its load is above ``high`` times the mean of the others plus ``slack`` mean requests,
   and stops when it is at most ``low`` times that mean plus half the slack. While it sheds, a session at home there
   moves to the least loaded replica with its next request, provided that the session has nothing else in flight and
   was not moved by this rule in its last ``settle`` requests.

A session pays for at most one move, that is one prefill of its context, in ``settle`` requests.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PREFILL_WEIGHT = 0.25  #: of a prompt token, where a new token counts 1
_MEMORY = 0.05  # of the running means: the weight of the newest request

Keys = tuple[int, ...]
Reason = Literal["home", "prefix", "load", "balance"]


class PrefixIndex:
    """An index of the prefixes that each of ``replicas`` replicas has computed.

    The key of a block of ``block`` tokens is a hash of the block and of the key before it, as vLLM names its cached
    blocks: two sequences share exactly the keys of their common prefix. A wrong guess costs a prefill. Of more than
    ``max_blocks`` keys (200 bytes each) the least recently used are forgotten, of one sequence the end first.
    """

    block, max_blocks = 16, 65536

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._holders: OrderedDict[int, int] = OrderedDict()  # key -> bits of the replicas; least recently used first

    def __len__(self) -> int:
        return len(self._holders)

    def keys(self, tokens: Sequence[int] | NDArray[np.integer], prefix_keys: Keys = ()) -> Keys:
        """Return the keys of all whole blocks of ``tokens``; ``prefix_keys`` of a prefix are not computed again."""
        data = np.asarray(tokens, np.int32).tobytes()
        keys, size = list(prefix_keys), self.block * np.int32().nbytes
        for start in range(len(keys) * size, len(data) - size + 1, size):
            keys.append(hash((keys[-1] if keys else 0, data[start : start + size])))
        return tuple(keys)

    def add(self, keys: Keys, replica: int) -> None:
        for key in reversed(keys):  # the beginning is used last, so it is forgotten last
            self._holders[key] = self._holders.get(key, 0) | 1 << replica
            self._holders.move_to_end(key)
        while len(self._holders) > self.max_blocks:
            self._holders.popitem(last=False)

    def shared(self, keys: Keys) -> list[int]:
        """Return the number of the sequence's tokens that each replica is known to have computed, ``[replicas]``."""
        shared, alive = [0] * self._replicas, (1 << self._replicas) - 1
        for key in keys:
            if not (alive := alive & self._holders.get(key, 0)):
                break
            shared = [length + self.block * (alive >> replica & 1) for replica, length in enumerate(shared)]
        return shared

    def forget(self, replica: int) -> None:
        remaining = ((key, bits & ~(1 << replica)) for key, bits in self._holders.items())
        self._holders = OrderedDict((key, bits) for key, bits in remaining if bits)

    def clear(self) -> None:
        self._holders.clear()


@dataclass(frozen=True, eq=False)
class Placement:
    """One attempt of one request on one replica."""

    replica: int
    prompt: NDArray[np.integer]  # [n]
    keys: Keys  # of the prompt, in the prefix index
    session: str | None
    charge: float  # what it adds to the replica's load
    reason: Reason  # which rule chose the replica: 2, 3, 4 or 5
    previous_home: int | None = None  # the session's home until now, if this placement moved it


@dataclass
class _Session:
    home: int | None = None
    length: int = 0  # tokens that the home has of it
    in_flight: int = 0
    settled: int = 0  # requests since rule 5 moved it
    lost: bool = False  # its home went down
    released: bool = False  # to be forgotten when nothing is in flight


class Router:
    """Places requests on ``replicas`` replicas, which all begin as up; see the module's docstring for the rules.

    ``counters`` has ``prefix_hits`` (requests placed by rule 3), ``prefix_tokens`` (how much they shared) and ``moves``
    (sessions that went to another home, for balance or because theirs was lost).
    """

    high, low, slack, settle, min_share = 1.5, 1.1, 4.0, 4, 0.5

    def __init__(self, replicas: int) -> None:
        self.counters = Counter(prefix_hits=0, prefix_tokens=0, moves=0)
        self.load = [0.0] * replicas  #: in tokens
        self.in_flight = [0] * replicas  #: requests
        self.at_home = [0] * replicas  #: sessions
        self.healthy = set(range(replicas))
        self.shedding: set[int] = set()
        self.index = PrefixIndex(replicas)
        self.sessions: dict[str, _Session] = {}
        self._mean_charge: float | None = None
        self._mean_reply: float | None = None

    def place(
        self, prompt: NDArray[np.integer], max_new_tokens: int, session: str | None = None, avoid: Collection[int] = ()
    ) -> Placement:
        """Choose one of the replicas that are up, and charge it. Call :meth:`finish` once a placement."""
        candidates = sorted(self.healthy.difference(avoid)) or sorted(self.healthy)
        keys = self.index.keys(prompt)
        shared = self.index.shared(keys)
        state = None if session is None else self.sessions.setdefault(session, _Session(settled=self.settle))
        replica, reason = self._choose(candidates, len(prompt), shared, state)
        if reason == "prefix":
            self.counters["prefix_hits"] += 1
            self.counters["prefix_tokens"] += shared[replica]

        cached, previous_home = shared[replica], None
        if state is not None:
            if state.home == replica:
                cached = max(cached, min(state.length, len(prompt)))
            else:
                previous_home = state.home
                self.counters["moves"] += previous_home is not None or state.lost
                self._move_out(state)
                state.home, state.lost = replica, False
                self.at_home[replica] += 1
                state.settled = -1 if reason == "balance" else state.settled
            state.settled += 1
            state.in_flight += 1
            state.released = False
        expected = max_new_tokens if self._mean_reply is None else min(max_new_tokens, max(1.0, self._mean_reply))
        charge = PREFILL_WEIGHT * (len(prompt) - cached) + expected
        self._mean_charge = _mean(self._mean_charge, charge)
        self.load[replica] += charge
        self.in_flight[replica] += 1
        self.index.add(keys, replica)  # those that come next may follow it at once
        self._rebalance()
        return Placement(replica, prompt, keys, session, charge, reason, previous_home)

    def finish(self, placement: Placement, new_tokens: NDArray[np.integer] | None = None) -> None:
        """Record that a request has left its replica, with the whole reply if there is one."""
        replica, session = placement.replica, placement.session
        self.in_flight[replica] -= 1
        self.load[replica] = self.load[replica] - placement.charge if self.in_flight[replica] else 0.0
        state = None
        if session is not None:
            state = self.sessions[session]
            state.in_flight -= 1
            if state.released and not state.in_flight:
                self._forget(session)
        if new_tokens is not None:
            self._mean_reply = _mean(self._mean_reply, float(len(new_tokens)))
            if replica in self.healthy:
                whole = np.concatenate([placement.prompt, new_tokens])
                self.index.add(self.index.keys(whole, placement.keys), replica)
                if state is not None and state.home == replica:
                    state.length = len(whole)
        self._rebalance()

    def release(self, session: str) -> list[int]:
        """Forget a session; return the replicas that may hold its cache: its home, or all that are up."""
        state = self.sessions.get(session)
        if state is None:
            return sorted(self.healthy)
        holders = [] if state.home is None else [state.home]
        state.released, state.length = True, 0
        if not state.in_flight:
            self._forget(session)
        return holders

    def down(self, replica: int) -> None:
        """Record the loss of a replica and its cache: its sessions have no home any more."""
        self.healthy.discard(replica)
        self.shedding.discard(replica)
        self.index.forget(replica)
        for state in self.sessions.values():
            if state.home == replica:
                self._move_out(state)
                state.lost = True
        self._rebalance()

    def up(self, replica: int) -> None:
        self.healthy.add(replica)
        self._rebalance()

    def forget_computed(self) -> None:
        """Forget all computed prefixes after new weights, so that moving a session is free."""
        self.index.clear()
        for state in self.sessions.values():
            state.length, state.settled = 0, self.settle

    def _choose(
        self, candidates: list[int], size: int, shared: list[int], state: _Session | None
    ) -> tuple[int, Reason]:
        calm = [replica for replica in candidates if replica not in self.shedding] or candidates
        least = min(calm, key=self._pressure)
        if state is not None and state.home in candidates:
            moves = state.home in self.shedding and state.in_flight == 0 and state.settled >= self.settle
            return (least, "balance") if moves and least != state.home else (state.home, "home")
        longest = max(shared[replica] for replica in calm)
        if longest and longest >= self.min_share * size:
            return min((replica for replica in calm if shared[replica] == longest), key=self._pressure), "prefix"
        return least, "load"

    def _pressure(self, replica: int) -> tuple[float, int, int]:
        return self.load[replica], self.at_home[replica], replica

    def _forget(self, name: str) -> None:
        self._move_out(self.sessions.pop(name))

    def _move_out(self, state: _Session) -> None:
        if state.home is not None:
            self.at_home[state.home] -= 1
        state.home, state.length = None, 0

    def _rebalance(self) -> None:
        """Update the set of shedding replicas, by the hysteresis of rule 5."""
        if len(self.healthy) < 2 or self._mean_charge is None:
            self.shedding.clear()
            return
        total, slack = sum(self.load[replica] for replica in self.healthy), self.slack * self._mean_charge
        for replica in self.healthy:
            mean_of_others = (total - self.load[replica]) / (len(self.healthy) - 1)
            if self.load[replica] > self.high * mean_of_others + slack:
                self.shedding.add(replica)
            elif self.load[replica] <= self.low * mean_of_others + slack / 2:
                self.shedding.discard(replica)


def _mean(before: float | None, value: float) -> float:
    """Update an exponential moving mean."""
    return value if before is None else before + _MEMORY * (value - before)
