"""An engine that breaks on demand, for the tests of replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.simulation.scripted import ScriptedEngine
from trainers.engines.base import Generation, Sampling, UpdateMode


class Fragile(ScriptedEngine):
    """A scripted engine that can hang, talk nonsense, and refuse or never finish updates.

    Attributes:
        mangle: What becomes of each reply.
        fail_update: Raised by the next updates.
        lag_update: Seconds that an update takes.
        closed: Whether it was closed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mangle: Callable[[Generation], Any] = lambda reply: reply
        self.fail_update: BaseException | None = None
        self.lag_update = 0.0
        self.closed = False
        self._frozen: dict[str, float] | None = None

    def hang(self) -> None:
        """Stop like a paused process: no request gets an answer."""
        self._frozen = self.stats()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        reply = await super().generate(token_ids, sampling, session)
        if self._frozen is not None:
            await asyncio.Event().wait()
        return self.mangle(reply)

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        if self.lag_update:
            await asyncio.sleep(self.lag_update)
        if self._frozen is not None:
            await asyncio.Event().wait()
        if self.fail_update is not None:
            raise self.fail_update
        await super().update_weights(weights, version, mode)

    def stats(self) -> dict[str, float]:
        return super().stats() if self._frozen is None else dict(self._frozen)

    async def close(self) -> None:
        self.closed = True
        await super().close()
