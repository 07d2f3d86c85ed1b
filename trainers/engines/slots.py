"""Which request or session holds which KV slot: pure bookkeeping, no tensors.

A slot is *free* (nothing in it), *idle* (it keeps a session's keys and values for the next turn) or *busy*. A new
request takes the idle slot of its session, else the lowest free slot (so that little memory is touched), else the slot
of the session that was idle for longest, whose KV is then lost.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict


class SlotTable:
    """The books over ``count`` slots.

    A session owns at most one slot. A second request of a session that is busy gets a slot of its own, without the
    session: sharing is a matter of speed alone.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))  # a heap
        self._idle: OrderedDict[str, int] = OrderedDict()  # the one idle for longest first
        self._busy: dict[int, str | None] = {}  # slot -> its session
        self._busy_sessions: set[str] = set()

    @property
    def free(self) -> int:
        """Slots with nothing in them."""
        return len(self._free)

    @property
    def idle(self) -> int:
        """Slots that only keep a session's KV."""
        return len(self._idle)

    def take(self, session: str | None) -> tuple[int, bool] | None:
        """Make a slot busy: ``(slot, whether the session's KV is still in it)``; ``None`` if all are busy."""
        if session is not None and session in self._busy_sessions:
            session = None
        if session is not None and session in self._idle:
            slot, kept = self._idle.pop(session), True
        elif self._free:
            slot, kept = heapq.heappop(self._free), False
        elif self._idle:
            slot, kept = self._idle.popitem(last=False)[1], False
        else:
            return None
        self._busy[slot] = session
        if session is not None:
            self._busy_sessions.add(session)
        return slot, kept

    def give_back(self, slot: int) -> None:
        """A request is done with its slot: idle if it belongs to a session, else free."""
        session = self._busy.pop(slot)
        if session is None:
            heapq.heappush(self._free, slot)
        else:
            self._busy_sessions.remove(session)
            self._idle[session] = slot

    def release(self, session: str) -> None:
        """Forget a session. If its slot is busy, the slot becomes free when the request is done."""
        if session in self._idle:
            heapq.heappush(self._free, self._idle.pop(session))
        elif session in self._busy_sessions:
            self._busy_sessions.remove(session)
            slot = next(slot for slot, owner in self._busy.items() if owner == session)
            self._busy[slot] = None

    def forget_idle(self) -> None:
        """Forget every idle session (their KV is stale)."""
        for session in list(self._idle):
            self.release(session)
