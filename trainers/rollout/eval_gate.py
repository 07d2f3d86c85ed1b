"""Places for episodes of evaluation among those of training."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from .group_scheduler import GroupScheduler


class EvalGate:
    """Places for episodes of evaluation, given before those of training: weight updates wait for it.

    While evaluations wait, no training episode starts; ``on_leave`` is called when a place is free again.
    """

    def __init__(self, scheduler: GroupScheduler, on_leave: Callable[[], None]) -> None:
        self._scheduler, self._on_leave = scheduler, on_leave
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.inside = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, first come, first served, and keep it until the end of the block."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._scheduler.evaluations += 1
        try:
            self.admit()
            await place
            yield
        finally:
            self._scheduler.evaluations -= 1
            if not place.cancelled():  # cancelled while it waited: it never had a place
                self.inside -= 1
            self.admit()
            self._on_leave()

    def admit(self) -> None:
        """Admit those that there is room for; to be called when an episode has ended or the limit has grown."""
        limit = self._scheduler.max_running
        while self._waiting and (limit is None or self._scheduler.running + self.inside < limit):
            place = self._waiting.popleft()
            if not place.cancelled():
                self.inside += 1
                place.set_result(None)
