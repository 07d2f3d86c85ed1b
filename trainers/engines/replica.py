"""One replica of an engine: what is in flight on it, what it has made, and when it was last seen to move.

Part of :mod:`trainers.engines.replicas`, which decides; here is what it decides by.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from trainers.engines.base import GAUGES, Engine, EngineError, FinishReason, Generation, Sampling, probe

State = Literal["up", "restarting", "gone"]

_ABOVE_ZERO = 1e-3  # a log-probability may be so much above 0, by rounding


class ReplicaLostError(EngineError):
    """The replica was taken out while it worked on this."""


class BadReplyError(EngineError):
    """A replica's reply is not what the protocol says; the message says how."""


@dataclass(frozen=True)
class Limits:
    """How patient :class:`trainers.engines.replicas.Replicas` are.

    Args:
        probe_interval: Seconds between two looks at each replica.
        probe_timeout: Seconds that a probe may take, of a replica that is idle or seems to stand still.
        stall_timeout: Seconds that a replica with work may show no progress; more than ``probe_timeout``.
        update_timeout: Seconds that an update may take, from the last request that it waits for in mode ``wait``.
        restart_timeout: Seconds that ``restart`` may take.
        close_timeout: Seconds to wait for a replica to close; one that hangs is then left behind.
        retries: How often a request begins again before it fails.
        max_faults: So many bad replies in a row take a replica out.
        max_restarts: So many restarts without a good reply between are enough.
        backoff: Seconds before the second restart in a row; doubles each time.

    Raises:
        ValueError: ``stall_timeout`` is no more than ``probe_timeout``.
    """

    probe_interval: float = 5.0
    probe_timeout: float = 20.0
    stall_timeout: float = 60.0
    update_timeout: float = 300.0
    restart_timeout: float = 600.0
    close_timeout: float = 30.0
    retries: int = 3
    max_faults: int = 3
    max_restarts: int = 3
    backoff: float = 1.0

    def __post_init__(self) -> None:
        if self.stall_timeout <= self.probe_timeout:
            raise ValueError(
                f"stall_timeout must be above probe_timeout={self.probe_timeout}, not {self.stall_timeout}"
            )


@dataclass(eq=False)
class Call:
    """Something in flight on a replica; ``outcome`` is the engine's answer, or an error when the replica is lost."""

    task: asyncio.Task[Any]
    outcome: asyncio.Future[Any]
    began: float

    def abandon(self, error: BaseException) -> None:
        """Cancel the engine's work; whoever awaits the outcome gets ``error``."""
        if not self.outcome.done():
            self.outcome.set_exception(error)
        self.task.cancel()


class Replica:
    """The place of one engine; after a restart another engine is in it.

    Attributes:
        state: ``up`` takes requests, ``restarting`` will, ``gone`` never again.
        cause: Why it is not up, or was not the last time.
        calls: Requests in flight.
        draining: Of those, the ones that an update in mode ``wait`` waits for.
        update: New weights that are on their way.
        active: When it was last seen to make something, or to answer (event loop's clock).
        probing: Whether a probe is on its way.
        faults: Bad replies since the last good one, that another replica did better.
        restarts: Restarts since the last good reply.
    """

    def __init__(self, index: int, engine: Engine) -> None:
        self.index = index
        self.engine = engine
        self.state: State = "up"
        self.cause: BaseException | None = None
        self.calls: set[Call] = set()
        self.draining: set[Call] = set()
        self.update: Call | None = None
        self.probing = False
        self.active = 0.0
        self.faults = self.restarts = 0
        self.wasted = 0.0  # tokens of attempts that were lost
        self._past: defaultdict[str, float] = defaultdict(float)  # counters of the engines that were here before
        self._delivered = 0  # tokens of this engine that a caller received
        self._discounted = 0  # ... of probes, or of refused replies
        self._ended = 0
        self._seen: tuple[float, ...] = ()
        self._last: dict[str, float] = {}

    def __str__(self) -> str:
        return f"replica {self.index}"

    def begin(self, work: Coroutine[Any, Any, Any]) -> Call:
        """Start something on the engine, now: what is begun first reaches the engine first."""
        loop = asyncio.get_running_loop()
        call = Call(loop.create_task(work), loop.create_future(), loop.time())
        call.task.add_done_callback(partial(_settle, call.outcome))
        return call

    async def generate(self, prompt: Any, sampling: Sampling, session: str | None) -> Generation:
        """The engine's reply, checked.

        Raises:
            ReplicaLostError: It was taken out meanwhile.
            BadReplyError: The reply is not what the protocol says.
            EngineError: What the engine says.
        """
        engine, oldest = self.engine, self.engine.version
        call = self.begin(engine.generate(prompt, sampling, session))
        self.calls.add(call)
        try:
            reply = await call.outcome
            self._ended += 1
            try:
                check_reply(reply, sampling, oldest, engine.version)
            except BadReplyError:
                self._discount(engine, np.size(getattr(reply, "token_ids", ())))
                raise
            if self._holds(engine):
                self._delivered += len(reply.token_ids)
            else:  # lost in the very moment in which it had answered
                self._past["generated_tokens"] += len(reply.token_ids)
                self.wasted -= len(reply.token_ids)
        finally:
            self.calls.discard(call)
            self.draining.discard(call)
            call.task.cancel()  # it has no waiter any more
        return reply

    async def probe(self) -> None:
        """Have the engine compute something; raises EngineError where it does not."""
        engine = self.engine
        self._discount(engine, await probe(engine))

    def look(self, now: float) -> float:
        """For how many seconds nothing has been seen of it, although it had something to do or was asked."""
        numbers = self._numbers()
        seen = (self._ended, numbers.get("generated_tokens", 0.0), numbers.get("prefill_tokens", 0.0))
        if seen != self._seen:
            self._seen, self.active = seen, now
        busy_since = min((call.began for call in self.calls), default=now)
        return now - (max(self.active, busy_since) if self.calls else self.active)

    def stats(self) -> dict[str, float]:
        """What the engines of this place made: counters over all of them, gauges of the one that is up."""
        numbers = dict(self._past)
        if self.state == "up":
            for name, value in self._numbers().items():
                numbers[name] = value + (0.0 if name in GAUGES else self._past.get(name, 0.0))
        return numbers

    def retire(self, error: BaseException) -> None:
        """The engine is lost: what it delivered counts, what was in flight on it does not."""
        numbers = self._numbers()
        made = numbers.get("generated_tokens", 0.0)
        self.wasted += max(0.0, made - self._delivered)
        for name, value in numbers.items():
            if name not in GAUGES:
                self._past[name] += self._delivered if name == "generated_tokens" else value
        self.cause = error
        self.abandon(lambda: ReplicaLostError(f"{self} was lost: {error}"))

    def abandon(self, error: Callable[[], EngineError]) -> None:
        """End everything that is in flight with errors of this kind, one each: to raise one writes into it."""
        for call in [*self.calls, *([] if self.update is None else [self.update])]:
            call.abandon(error())

    def adopt(self, engine: Engine, now: float) -> None:
        """Put a new engine in this place; it is up."""
        self.engine, self.state, self.active = engine, "up", now
        self._delivered = self._discounted = self.faults = 0
        self._seen, self._last = (), {}

    def _holds(self, engine: Engine) -> bool:
        return self.state == "up" and self.engine is engine

    def _discount(self, engine: Engine, tokens: int) -> None:
        if self._holds(engine):
            self._discounted += tokens

    def _numbers(self) -> dict[str, float]:
        """The engine's own, without probes and refused replies; those seen last, if it does not answer any more."""
        try:
            numbers = dict(self.engine.stats())
        except EngineError:
            return self._last
        if "generated_tokens" in numbers:
            numbers["generated_tokens"] -= self._discounted
        self._last = numbers
        return numbers


def check_reply(reply: Any, sampling: Sampling, oldest: int, newest: int) -> None:
    """Whether a reply is what the protocol says it is.

    Args:
        reply: What the engine returned.
        sampling: What it was asked for.
        oldest: The engine's version when the request began.
        newest: Its version now.

    Raises:
        BadReplyError: Says what is wrong.
    """
    if not isinstance(reply, Generation):
        raise BadReplyError(f"the reply is a {type(reply).__name__}, not a Generation")
    if reply.finish_reason not in get_args(FinishReason):
        raise BadReplyError(f"the reply has finish_reason {reply.finish_reason!r}")
    tokens, versions, size = np.asarray(reply.token_ids), np.asarray(reply.weight_version), np.size(reply.token_ids)
    logprobs = [np.asarray(reply.logprobs)]
    if reply.sampled_logprobs is not None:
        logprobs.append(np.asarray(reply.sampled_logprobs))
    for array in (tokens, versions, *logprobs):
        if array.shape != (size,):
            shapes = {"token_ids": tokens, "logprobs": logprobs[0], "weight_version": versions}
            said = ", ".join(f"{name} {list(array.shape)}" for name, array in shapes.items())
            raise BadReplyError(f"the reply's arrays do not go together: {said}")
    if reply.kept_counts is not None or reply.kept_ids is not None:
        counts, kept = np.asarray(reply.kept_counts), np.asarray(reply.kept_ids)
        if counts.shape != (size,) or kept.shape != (counts.sum(),):
            raise BadReplyError(
                f"the reply's kept_counts {list(counts.shape)} and kept_ids {list(kept.shape)} do not fit"
            )
    if size > sampling.max_new_tokens:
        raise BadReplyError(f"the reply has {size} tokens, and max_new_tokens is {sampling.max_new_tokens}")
    if size and (tokens.dtype.kind not in "iu" or tokens.min() < 0):
        raise BadReplyError("the reply has token ids that are no such numbers")
    for array in logprobs:
        if not (np.isfinite(array).all() and (array <= _ABOVE_ZERO).all()):
            raise BadReplyError("the reply has log-probabilities that are not finite, or above 0")
    if size and not (oldest <= versions[0] and versions[-1] <= newest and (np.diff(versions) >= 0).all()):
        raise BadReplyError(
            f"the reply's tokens are of versions {versions.min()} to {versions.max()}, but the weights went from "
            f"{oldest} to {newest} meanwhile"
        )


def _settle(outcome: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()  # retrieved, so that asyncio logs no warning
    if outcome.done():
        return
    if task.cancelled():
        outcome.set_exception(ReplicaLostError("the engine cancelled the request"))
    elif error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
