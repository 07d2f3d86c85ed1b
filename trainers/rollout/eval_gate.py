"""How evaluation shares the collector: places for its episodes, and weights that stay while they are played."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable

from .group_scheduler import GroupScheduler


class EvalGate:
    """Places for episodes of evaluation, taken before those of the books: weight updates wait for it.

    While guests wait, no episode of the books starts; ``left`` is called when a guest's place is free again.
    """

    def __init__(self, slots: GroupScheduler, left: Callable[[], None]) -> None:
        self._slots, self._left = slots, left
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.inside = 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, first come, first served, and keep it until the end of the block."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._slots.guests += 1
        try:
            self.admit()
            await place
            yield
        finally:
            self._slots.guests -= 1
            if not place.cancelled():  # that is how waiting ends when it ends for nothing
                self.inside -= 1
            self.admit()
            self._left()

    def admit(self) -> None:
        """Let in whom there is room for; to be called when an episode has ended or the limit has grown."""
        limit = self._slots.max_running
        while self._waiting and (limit is None or self._slots.running + self.inside < limit):
            place = self._waiting.popleft()
            if not place.cancelled():
                self.inside += 1
                place.set_result(None)


class WeightLock:
    """Keeps the weights at one version: many may hold them, and an update waits until nobody does.

    First come, first served: who comes while an update waits is after it, so none waits for ever.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._holders = 0
        self._free = asyncio.Event()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """No update while in the block."""
        async with self._turn:
            self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._free.set()

    @contextlib.asynccontextmanager
    async def moved(self) -> AsyncIterator[None]:
        """Nobody else is in such a block, nor holds the weights."""
        async with self._turn:
            while self._holders:
                self._free.clear()
                await self._free.wait()
            yield
