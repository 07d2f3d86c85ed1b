"""A user's scoring function behind the service: see :class:`~trainers.rewards.FunctionPool`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

from textenvs.messages import text_of

from ..functions import FunctionPool, ScoreError
from ..service import BackendError, ModelOptions, ScoringRequest
from .conversation import replies


class FunctionBackend:
    """Calls a function for each request, in the processes of a pool.

    ``solution_str`` is the policy's words alone: of the turn that is meant, or all of them, an empty line between two.
    ``extra_info`` is the request's ``extra``, with the conversation as ``messages``. A call that is not over in time is
    not tried again (it would take as long); one that raises or whose process dies is.

    Args:
        pool: Whose processes; closed with the backend.
    """

    def __init__(self, pool: FunctionPool) -> None:
        self._pool = pool
        self._closed = False

    def model_options(self, **changes: Any) -> ModelOptions:
        """How the service had best ask: a request at a time for each process, with the pool's own time limit."""
        best = ModelOptions(
            max_batch_size=1, max_wait_s=0.0, concurrency=self._pool.workers, timeout_s=2 * self._pool.timeout_s + 120.0
        )
        return dataclasses.replace(best, **changes)

    async def score(self, requests: Sequence[ScoringRequest]) -> Sequence[float | BackendError]:
        """See :class:`~trainers.rewards.RewardBackend`."""
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: ScoringRequest) -> float | BackendError:
        try:
            places = replies(request)
            if request.turn is not None:
                places = places[-1:]
            scored = await self._pool.score(
                data_source=request.data_source,
                solution_str="\n\n".join(text_of(request.messages[place]) for place in places),
                ground_truth=request.ground_truth,
                extra_info={**request.extra, "messages": [dict(message) for message in request.messages]},
            )
        except BackendError as error:
            return error
        except ScoreError as error:
            return BackendError(str(error), final=error.cause == "timeout")
        return scored.score

    async def healthy(self) -> bool:
        """A process that dies is replaced, so: until it is closed."""
        return not self._closed

    async def close(self) -> None:
        """End the pool's processes."""
        self._closed = True
        await asyncio.to_thread(self._pool.close)
