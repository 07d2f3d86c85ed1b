"""A lock of the engine's weights, between replies and updates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class WeightLock:
    """A readers-writer lock of the weights: many may hold them at one version, and an update waits for all of these.

    First come, first served: a reader that comes while an update waits is served after it, so nothing starves.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._holders = 0
        self._free = asyncio.Event()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Keep the weights as they are: no update while in the block."""
        async with self._turn:
            self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._free.set()

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the weights alone: nothing else is in such a block, nor shares them."""
        async with self._turn:
            while self._holders:
                self._free.clear()
                await self._free.wait()
            yield
