"""One replica of an engine: its requests in flight, its counters, and its last progress.

Part of :mod:`trainers.engines.replicas`, which decides by this state.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from trainers.engines.base import GAUGES, Engine, EngineError, FinishReason, Generation, Sampling, probe

_ABOVE_ZERO = 1e-3  # a log-probability may exceed 0 by this much, by rounding


class ReplicaLostError(EngineError):
    """The replica was removed while it worked on this request."""


@dataclass(frozen=True)
class Limits:
    """Timeouts and retry limits of :class:`trainers.engines.replicas.Replicas`."""

    probe_interval: float = 5.0  #: seconds between two checks of each replica
    probe_timeout: float = 20.0  #: seconds that a probe may take, of a replica that is idle or makes no progress
    stall_timeout: float = 60.0  #: seconds that a replica with work may show no progress; above ``probe_timeout``
    update_timeout: float = 300.0  #: seconds for an update, from the last request that it waits for in mode ``wait``
    restart_timeout: float = 600.0  #: seconds that ``restart`` may take
    close_timeout: float = 30.0  #: seconds to wait for a replica to close; one that hangs is then left behind
    retries: int = 3  #: how often a request begins again before it fails
    max_faults: int = 3  #: number of bad replies in a row that removes a replica
    max_restarts: int = 3  #: maximum number of restarts without a good reply between
    backoff: float = 1.0  #: seconds before the second restart in a row; doubles each time


class Replica:
    """The place of one engine; after a restart another engine is in it."""

    def __init__(self, index: int, engine: Engine) -> None:
        self.index, self.engine = index, engine
        self.state: Literal["up", "restarting", "gone"] = "up"
        self.cause: BaseException | None = None  #: cause of the last loss
        self.calls: dict[asyncio.Task[Any], float] = {}  #: requests in flight, with the times at which they began
        self.draining: set[asyncio.Task[Any]] = set()  #: those that an update in mode ``wait`` waits for
        self.update: asyncio.Task[None] | None = None  #: the running update of the weights
        self.probing = False
        self.active = 0.0  #: time of the last progress or answer (event loop's clock)
        self.faults = 0  #: bad replies since the last good one, where another replica succeeded
        self.restarts = 0  #: restarts since the last good reply
        self.wasted = 0.0  #: tokens of attempts that were lost
        self.lost: asyncio.Future[EngineError] | None = None  #: the error of all work in flight, once it is lost
        self._delivered = 0  # tokens that callers received, from all engines of this place
        self._offset: defaultdict[str, float] = defaultdict(float)  # added to the present engine's counters
        self._ended = 0
        self._seen: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"replica {self.index}"

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work on the engine immediately, so that the order of calls is kept."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # so that asyncio logs no warning
        if self.lost is None:
            self.lost = asyncio.get_running_loop().create_future()
        return task

    async def result(self, task: asyncio.Task[Any]) -> Any:
        """Return the engine's answer, or raise an EngineError of the loss; the work is cancelled without a waiter."""
        lost = self.lost
        assert lost is not None
        try:
            await asyncio.wait([task, lost], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise type(lost.result())(str(lost.result()))
            if task.cancelled():
                raise ReplicaLostError("the engine cancelled the request")
            return task.result()
        finally:
            task.cancel()

    async def generate(self, prompt: Any, sampling: Sampling, session: str | None) -> Generation:
        """Return the engine's checked reply; ReplicaLostError if the replica was removed meanwhile."""
        engine, oldest = self.engine, self.engine.version
        task = self.begin(engine.generate(prompt, sampling, session))
        self.calls[task] = asyncio.get_running_loop().time()
        try:
            reply: Generation = await self.result(task)
            self._ended += 1
            try:
                check_reply(reply, sampling, oldest, engine.version)
            except EngineError:
                self._discount(engine, np.size(getattr(reply, "token_ids", ())))
                raise
        finally:
            del self.calls[task]
            self.draining.discard(task)
        self._delivered += len(reply.token_ids)
        if not self._holds(engine):  # lost just after it had answered
            self._offset["generated_tokens"] += len(reply.token_ids)
            self.wasted -= len(reply.token_ids)
        return reply

    async def probe(self) -> None:
        """Have the engine compute something; raises EngineError where it does not."""
        engine = self.engine
        self._discount(engine, await probe(engine))

    def idle(self, now: float) -> float:
        """Return the seconds since its last progress, while it had work or was probed."""
        numbers = self.engine.stats()
        made = numbers.get("generated_tokens", 0.0) + self._offset["generated_tokens"]  # without probes
        seen = (self._ended, made, numbers.get("prefill_tokens", 0.0))
        if seen != self._seen:
            self._seen, self.active = seen, now
        return now - max(self.active, min(self.calls.values(), default=self.active))

    def stats(self) -> dict[str, float]:
        """Return the statistics of this place: counters over all its engines, gauges of the present one."""
        numbers: dict[str, float] = dict(self._offset)
        if self.state == "up":
            for name, value in self.engine.stats().items():
                numbers[name] = value + (0.0 if name in GAUGES else self._offset.get(name, 0.0))
        return numbers

    def retire(self, error: BaseException, *, restarts: bool) -> None:
        """Retire a lost engine: its delivered tokens count, those of requests in flight do not."""
        numbers = self.stats()
        self.state = "restarting" if restarts else "gone"
        self.wasted += max(0.0, numbers.get("generated_tokens", 0.0) - self._delivered)
        self._offset.update({name: value for name, value in numbers.items() if name not in GAUGES})
        self._offset["generated_tokens"] = self._delivered
        self.cause = error
        self.abandon(ReplicaLostError(f"{self} was lost: {error}"))

    def abandon(self, error: EngineError) -> None:
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(error)

    def adopt(self, engine: Engine, now: float) -> None:
        self.engine, self.state, self.active = engine, "up", now
        self.faults, self._seen, self.lost = 0, (), None

    def _holds(self, engine: Engine) -> bool:
        return self.state == "up" and self.engine is engine

    def _discount(self, engine: Engine, tokens: int) -> None:
        if self._holds(engine):
            self._offset["generated_tokens"] -= tokens


def check_reply(reply: Any, sampling: Sampling, oldest: int, newest: int) -> None:
    """Raise EngineError where a reply, begun with version ``oldest``, ended with ``newest``, breaks the protocol."""
    if not isinstance(reply, Generation):
        raise EngineError(f"the reply is a {type(reply).__name__}, not a Generation")
    if reply.finish_reason not in get_args(FinishReason):
        raise EngineError(f"the reply has finish_reason {reply.finish_reason!r}")
    tokens, versions, size = np.asarray(reply.token_ids), np.asarray(reply.weight_version), np.size(reply.token_ids)
    logprobs = [np.asarray(values) for values in (reply.logprobs, reply.sampled_logprobs) if values is not None]
    if any(array.shape != (size,) for array in (tokens, versions, *logprobs)):
        shapes = {"token_ids": tokens, "logprobs": logprobs[0], "weight_version": versions}
        described = ", ".join(f"{name} {list(array.shape)}" for name, array in shapes.items())
        raise EngineError(f"the reply's arrays do not go together: {described}")
    if reply.kept_counts is not None or reply.kept_ids is not None:
        counts, kept_ids = np.asarray(reply.kept_counts), np.asarray(reply.kept_ids)
        if counts.shape != (size,) or kept_ids.shape != (counts.sum(),):
            raise EngineError(
                f"the reply's kept_counts {list(counts.shape)} and kept_ids {list(kept_ids.shape)} do not fit"
            )
    if size > sampling.max_new_tokens:
        raise EngineError(f"the reply has {size} tokens, and max_new_tokens is {sampling.max_new_tokens}")
    if size and (tokens.dtype.kind not in "iu" or tokens.min() < 0):
        raise EngineError("the reply has token ids that are no such numbers")
    if not all(np.isfinite(array).all() and (array <= _ABOVE_ZERO).all() for array in logprobs):
        raise EngineError("the reply has log-probabilities that are not finite, or above 0")
    if size and not (oldest <= versions[0] and versions[-1] <= newest and (np.diff(versions) >= 0).all()):
        raise EngineError(
            f"the reply's tokens are of versions {versions.min()} to {versions.max()}, but the weights went from "
            f"{oldest} to {newest} meanwhile"
        )
