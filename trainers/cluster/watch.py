"""What becomes of a call that all ranks carry out together: a pure state machine, without a clock of its own.

Ranks wait for each other inside a call, so what is seen first is often not the cause: a survivor's broken connection
arrives before the news of the death that broke it. The rules, in order:

1. A rank that is gone ends the call, and is its cause.
2. All have answered: the call is done; or raised, where *every* rank raised (they are at the same point, so they can go
   on); or the group is broken, because some have done what others have not.
3. ``grace`` seconds after the first error, with others still at work: broken, by the rank that failed first.
4. A rank that gives no sign of life for ``silence`` seconds: broken, by it.
5. A rank that stands still for ``stall`` seconds, or is later than another by that: broken. The cause are those that do
   not wait for others, where there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life."""

    still: float  #: seconds for which the rank's thread has stood at the same place
    waiting: bool  #: whether that place is inside a collective operation, where it waits for other ranks
    where: str  #: the place, for people


@dataclass(frozen=True)
class Verdict:
    """How a call ended."""

    #: ``done``; ``raised``: by all ranks, which can go on; ``broken``: the group is of no use any more
    kind: Literal["done", "raised", "broken"]
    rank: int | None = None  #: whose error it is, for ``raised``, and for ``broken`` where an error is the cause
    ranks: tuple[int, ...] = ()  #: whose fault it is, where it is broken
    said: str = ""  #: what happened to them, in words, for ``broken``


class Watch:
    """One call of ``ranks`` ranks, which begins ``now`` (seconds); for the rest see the module."""

    def __init__(self, ranks: int, now: float, *, silence: float, stall: float, grace: float) -> None:
        self._silence, self._stall, self._grace = silence, stall, grace
        self._heard = dict.fromkeys(range(ranks), now)
        self._pending = set(range(ranks))
        self._pulses: dict[int, Heartbeat] = {}
        self._failed: dict[int, float] = {}  # in the order of time
        self._gone: dict[int, str] = {}
        self._first: float | None = None  # when the first rank had done it

    def answered(self, rank: int, now: float, *, raised: bool) -> None:
        self._pending.discard(rank)
        if raised:
            self._failed.setdefault(rank, now)
        elif self._first is None:
            self._first = now

    def gone(self, rank: int, how: str) -> None:
        self._gone.setdefault(rank, how)

    def pulse(self, rank: int, pulse: Heartbeat, now: float) -> None:
        self._heard[rank] = now
        self._pulses[rank] = pulse

    def verdict(self, now: float) -> Verdict | None:
        """How the call ended; ``None`` while it may go well."""
        if self._gone:
            return Verdict("broken", ranks=tuple(self._gone), said="; ".join(dict.fromkeys(self._gone.values())))
        if not self._pending:
            if not self._failed:
                return Verdict("done")
            first = next(iter(self._failed))
            if len(self._failed) == len(self._heard):
                return Verdict("raised", rank=first)
            return Verdict("broken", rank=first, ranks=(first,), said="raised, and others did not")
        if self._failed:
            first = next(iter(self._failed))
            if now - self._failed[first] >= self._grace:
                return Verdict("broken", rank=first, ranks=(first,), said="raised, and others wait for it")
            return None  # what held this one up is about to be known
        silent = [rank for rank in sorted(self._pending) if now - self._heard[rank] >= self._silence]
        if silent:
            return Verdict("broken", ranks=tuple(silent), said=f"gave no sign of life for {self._silence:g} s")
        return self._stalled(now)

    def _stalled(self, now: float) -> Verdict | None:
        pending = sorted(self._pending)
        seen = [rank for rank in pending if rank in self._pulses]
        late = self._first is not None and now - self._first >= self._stall
        if not late and not any(self._pulses[rank].still >= self._stall for rank in seen):
            return None
        guilty = [rank for rank in pending if rank not in seen or not self._pulses[rank].waiting] or pending
        places = [f"rank {rank} {self._pulses[rank].where}" for rank in guilty if rank in seen]
        said = f"did not get on for {self._stall:g} s" + (f" ({'; '.join(places)})" if places else "")
        return Verdict("broken", ranks=tuple(guilty), said=said)
