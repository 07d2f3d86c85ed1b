"""An engine without a model: chosen replies, latencies and failures, for tests and simulations.

It keeps the whole protocol (stop tokens, limits, versions per token, the three update modes, cancellation, death), on
the running event loop's clock; under :mod:`benchmarks.simulation.clock` seconds of latency cost nothing. Token ``i`` of
a reply exists ``latency + (i + 1) * per_token`` seconds after the request began, and has the version in force then. A
request costs one timer, however long its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    FinishReason,
    Generation,
    Sampling,
    UpdateMode,
    check_request,
)

LOGPROB = -1.0  #: of every sampled token; 0 of a greedy one under the distribution sampled from


@dataclass(frozen=True)
class Call:
    """One request as the script sees it.

    Args:
        token_ids: The prompt.
        sampling: How to sample.
        session: The session's name, if any.
        number: Requests so far, from 0.
    """

    token_ids: tuple[int, ...]
    sampling: Sampling
    session: str | None
    number: int


@dataclass(frozen=True)
class Reply:
    """The script's answer to a call.

    Args:
        token_ids: The reply. It is cut at a stop token, at ``max_new_tokens`` and at the end of the context; a reply
            that ends by itself counts as stopped.
        latency: Seconds before the first token is begun.
        per_token: Seconds for each token.
        error: Raise this after ``latency`` instead of replying.
        dies: The engine dies after ``latency``.
        hangs: Never answer (an abort, a cancellation, the engine's end still end the request).
    """

    token_ids: Sequence[int] = ()
    latency: float = 0.0
    per_token: float = 0.0
    error: EngineError | None = None
    dies: bool = False
    hangs: bool = False


@dataclass(eq=False)
class _Flight:
    """A request in flight. ``done`` is resolved by its timer, or early by an abort (``True``) or the engine's end."""

    tokens: NDArray[np.int32]
    begin: float
    reply: Reply
    done: asyncio.Future[bool]
    spans: list[tuple[int, int]] = field(default_factory=list)  # (first token, version)

    def made(self, now: float) -> int:
        """Return the number of tokens that exist by now."""
        elapsed = now - self.begin - self.reply.latency
        if elapsed < 0 or self.reply.hangs:
            return 0
        if self.reply.per_token == 0:
            return len(self.tokens)
        return min(len(self.tokens), int(elapsed / self.reply.per_token + 1e-9))


class ScriptedEngine:
    """Plays a script; see :class:`trainers.engines.base.Engine` for the protocol.

    Args:
        script: From a call to its reply; called when the request begins.
        vocab_size: Ids outside it are refused.
        max_context: Prompt and new tokens together are at most this.
        stop_token_ids: Stop tokens of every request, beside its own.
        version: To begin with.

    Attributes:
        calls: Every call that began, in order.
        released: Every session that was released, in order.
        weights: The weights of the last update.
    """

    def __init__(
        self,
        script: Callable[[Call], Reply],
        *,
        vocab_size: int = 512,
        max_context: int = 4096,
        stop_token_ids: Sequence[int] = (),
        version: int = 0,
    ) -> None:
        self.calls: list[Call] = []
        self.released: list[str] = []
        self.weights: Any = None
        self._script = script
        self._vocab_size, self._max_context = vocab_size, max_context
        self._stop = frozenset(stop_token_ids)
        self._version = version
        self._flights: set[_Flight] = set()
        self._sessions: dict[str, NDArray[np.int32]] = {}
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._waiting_updates = 0
        self._changed = asyncio.Event()  # replaced at every change; see _change
        self._end: EngineDeadError | None = None
        self._generated = self._cached = 0

    @property
    def version(self) -> int:
        """The version that the next token will have."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`.

        Raises:
            EngineError: The script's; or it has too few tokens for ``ignore_stop``.
        """
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self._max_context)
        self._check_alive()
        while self._waiting_updates:
            await self._changed.wait()
            self._check_alive()
        call = Call(tuple(prompt.tolist()), sampling, session, len(self.calls))
        self.calls.append(call)
        reply = self._script(call)
        tokens, reason = self._cut(reply, call)

        loop = asyncio.get_running_loop()
        flight = _Flight(tokens, loop.time(), reply, loop.create_future(), [(0, self._version)])
        self._flights.add(flight)
        timer = None
        if not reply.hangs:
            seconds = reply.latency + (0 if reply.error or reply.dies else reply.per_token * len(tokens))
            timer = (
                loop.call_later(seconds, _resolve, flight.done) if seconds else loop.call_soon(_resolve, flight.done)
            )
        try:
            aborted = await flight.done
        finally:
            if timer is not None:
                timer.cancel()
            self._flights.remove(flight)
            self._change()
        if reply.dies and not aborted:
            self.die(EngineError(f"the script says so at call {call.number}"))
            self._check_alive()
        if reply.error is not None and not aborted:
            raise reply.error
        return self._generation(
            flight, prompt, call, flight.made(loop.time()) if aborted else len(tokens), reason, aborted
        )

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`; any weights will do."""
        if mode not in ("keep", "wait", "abort"):
            raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")
        self._waiting_updates += mode == "wait"
        try:
            async with self._updating:
                while mode == "wait" and self._flights:
                    self._check_alive()
                    await self._changed.wait()
                self._check_alive()
                if version <= self._version:
                    raise ValueError(f"the new version {version} must be greater than {self._version}")
                self._apply(weights, version, mode)
        finally:
            self._waiting_updates -= mode == "wait"
            self._change()

    async def release(self, session: str) -> None:
        """See :meth:`trainers.engines.base.Engine.release`."""
        self.released.append(session)
        self._sessions.pop(session, None)

    def stats(self) -> dict[str, float]:
        """Return requests, generated and cached tokens since the start, and the number of running requests."""
        now = asyncio.get_running_loop().time() if self._flights else 0.0
        in_flight = sum(flight.made(now) for flight in self._flights)
        return {
            "requests": float(len(self.calls)),
            "generated_tokens": float(self._generated + in_flight),
            "cached_tokens": float(self._cached),
            "running": float(len(self._flights)),
        }

    def die(self, cause: BaseException | None = None) -> None:
        """End the engine now, as a crash would."""
        self._finish(EngineDeadError(f"the scripted engine died: {cause}"), cause)

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`."""
        self._finish(EngineDeadError("the scripted engine is closed"), None)

    def _apply(self, weights: Any, version: int, mode: UpdateMode) -> None:
        self.weights, self._version = weights, version
        self._sessions.clear()
        now = asyncio.get_running_loop().time()
        for flight in self._flights:
            if mode == "abort":
                _resolve(flight.done, True)
            else:
                flight.spans.append((flight.made(now), version))

    def _cut(self, reply: Reply, call: Call) -> tuple[NDArray[np.int32], FinishReason]:
        sampling = call.sampling
        room = min(sampling.max_new_tokens, self._max_context - len(call.token_ids))
        tokens = list(reply.token_ids)
        if sampling.ignore_stop:
            if len(tokens) < room and not (reply.error or reply.dies or reply.hangs):
                raise EngineError(
                    f"ignore_stop asks for {room} tokens, but the script gave {len(tokens)} at call {call.number}"
                )
            return np.array(tokens[:room], np.int32), "length"
        stops = self._stop | set(sampling.stop_token_ids)
        end = next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))
        if end > room:
            return np.array(tokens[:room], np.int32), "length"
        by_itself = end == room and (end == 0 or tokens[end - 1] not in stops)
        return np.array(tokens[:end], np.int32), "length" if by_itself else "stop"

    def _generation(
        self, flight: _Flight, prompt: NDArray[np.int32], call: Call, count: int, reason: FinishReason, aborted: bool
    ) -> Generation:
        tokens = flight.tokens[:count]
        versions = np.zeros(count, np.int32)
        for first, version in flight.spans:
            versions[first:] = version
        cached = 0
        if call.session is not None:
            cached = self._reused(call.session, prompt)
            if len(flight.spans) == 1 and not aborted:
                self._sessions[call.session] = np.concatenate([prompt, tokens])
        self._generated += count
        self._cached += cached
        return Generation(
            token_ids=tokens,
            logprobs=np.full(count, LOGPROB, np.float32),
            weight_version=versions,
            finish_reason="abort" if aborted else reason,
            sampled_logprobs=np.full(count, 0.0 if call.sampling.temperature == 0 else LOGPROB, np.float32),
            metrics={"cached_tokens": float(cached), "queue_s": 0.0, "prefill_s": flight.reply.latency},
        )

    def _reused(self, session: str, prompt: NDArray[np.int32]) -> int:
        cached = self._sessions.get(session, prompt[:0])[: len(prompt) - 1]
        differ = np.flatnonzero(cached != prompt[: len(cached)])
        return int(differ[0]) if len(differ) else len(cached)

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(str(self._end)) from self._end.__cause__

    def _finish(self, error: EngineDeadError, cause: BaseException | None) -> None:
        if self._end is None:
            error.__cause__ = cause
            self._end = error
        for flight in self._flights:
            if not flight.done.done():
                failure = EngineDeadError(str(self._end))
                failure.__cause__ = self._end.__cause__
                flight.done.set_exception(failure)
        self._change()

    def _change(self) -> None:
        """Wake all who wait for the state to change; each waiter rechecks."""
        self._changed.set()
        self._changed = asyncio.Event()


def _resolve(done: asyncio.Future[bool], aborted: bool = False) -> None:
    if not done.done():
        done.set_result(aborted)
