"""What is the same for every vLLM behind the engine protocol, however it is reached.

:mod:`.client` starts a server of ours and talks to it through a socket; :mod:`.served` talks to one that runs already,
over HTTP. Both say how a request, an update and a sleep get there; what the protocol promises is kept here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    FinishReason,
    Generation,
    RequestError,
    Sampling,
    UpdateMode,
    check_request,
)
from trainers.engines.vllm.publish import Payload, Publisher


@dataclass(frozen=True)
class Reply:
    """What vLLM made of one request: arrays as in :class:`trainers.engines.base.Generation`."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    weight_version: NDArray[np.int32]
    finish_reason: FinishReason
    cached_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class VLLMBase(ABC):
    """See :class:`trainers.engines.base.Engine` for the protocol.

    ``session`` changes nothing: vLLM reuses the KV of any request with the same prefix, in whole blocks, and forgets
    the oldest when it needs room. ``sampled_logprobs`` is ``None`` where a cut applies. A weight update lets requests
    that are made after it wait until it is done, in all modes.

    Args:
        publisher: Of the model's weights.
        vocab_size: Ids are below it.
        max_context: Prompt and new tokens together are at most this.
        stop_token_ids: Stop tokens of every request, beside its own.
        version: Of the weights that the server has.
        gpu: Whether the server computes on one.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        vocab_size: int,
        max_context: int,
        stop_token_ids: Sequence[int],
        version: int,
        gpu: bool,
    ) -> None:
        self._publisher = publisher
        self._vocab_size, self._max_context, self._gpu = vocab_size, max_context, gpu
        self._stop = tuple(stop_token_ids)
        check_request([0], Sampling(stop_token_ids=self._stop), vocab_size=vocab_size, max_context=1 << 30)
        self._version = version
        self._end: EngineDeadError | None = None
        self._updating = asyncio.Lock()
        self._closed_by = 0  # updates and sleeps that keep new requests out
        self._opened = asyncio.Event()
        self._opened.set()
        self._asleep = False
        self._own = ThreadPoolExecutor(1, "vllm-weights")  # the loop's may be full of environments that hang
        self._told: dict[str, float] = {}  # the server's counters since this engine began, and its gauges
        self._counted = dict.fromkeys(("requests", "generated_tokens", "prefill_tokens", "cached_tokens"), 0)
        self._generating = 0

    # How things get to the server

    @abstractmethod
    async def _ask(self, prompt: NDArray[np.int32], parameters: Mapping[str, Any]) -> Reply:
        """One request; cancelling withdraws it.

        Raises:
            RequestError: The server refused it.
        """

    @abstractmethod
    async def _give(self, message: Mapping[str, Any], version: int, mode: str) -> None:
        """One update: a payload's message, what it is, and what becomes of requests in flight.

        Raises:
            RequestError: The server has the old weights.
            EngineDeadError: Nobody knows what it has.
        """

    @abstractmethod
    async def _put_to_sleep(self, level: int) -> None:
        """See :meth:`sleep`."""

    @abstractmethod
    async def _wake_up(self) -> None:
        """See :meth:`wake`."""

    @abstractmethod
    def _abandon(self) -> None:
        """The engine ended: everybody who waits for the server gets :meth:`_check_alive`'s error."""

    @abstractmethod
    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`."""

    # The protocol

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be computed with."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`."""
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self._max_context)
        self._counted["requests"] += 1
        self._generating += 1
        try:
            while self._end is None and not self._opened.is_set():
                await self._opened.wait()
            self._check_alive()
            reply = await self._ask(prompt, self._parameters(sampling, len(prompt)))
        finally:
            self._generating -= 1
        self._counted["generated_tokens"] += len(reply.token_ids)
        self._counted["cached_tokens"] += reply.cached_tokens
        self._counted["prefill_tokens"] += len(prompt) - reply.cached_tokens
        sampled = None
        if sampling.temperature == 0:
            sampled = np.zeros_like(reply.logprobs)
        elif sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0:
            sampled = reply.logprobs
        return Generation(
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            weight_version=reply.weight_version,
            finish_reason=reply.finish_reason,
            sampled_logprobs=sampled,
            metrics={"cached_tokens": float(reply.cached_tokens), **reply.metrics},
        )

    async def update_weights(self, weights: Mapping[str, Tensor], version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        The tensors must stay unchanged until this returns. Cancelling withdraws an update that the server was not told
        of yet.
        """
        if mode not in ("keep", "wait", "abort"):
            raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")
        self._check_alive()
        self._shut()
        told = asyncio.Event()
        task = asyncio.create_task(self._update(weights, version, mode, told))
        task.add_done_callback(lambda _: self._open())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not told.is_set():
                task.cancel()
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else asks
            raise

    async def sleep(self, level: int = 1) -> None:
        """Stop computing and give memory back until :meth:`wake`; requests wait, those that run start over then.

        Args:
            level: 1 gives up the KV and moves the weights to the CPU's memory; 0 only stops computing.

        Raises:
            EngineError: The server cannot: memory is given back on a GPU, and in vLLM's sleep mode alone.
        """
        if level > 0 and not self._gpu:
            raise EngineError("vLLM on a CPU gives no memory back when it sleeps; level=0 stops it computing")
        async with self._updating:
            if self._asleep:
                return
            self._check_alive()
            self._shut()
            try:
                await self._put_to_sleep(level)
            except BaseException:
                self._open()
                raise
            self._asleep = True

    async def wake(self) -> None:
        """Go on after :meth:`sleep`; fine when awake."""
        async with self._updating:
            if self._asleep:
                self._check_alive()
                await self._wake_up()
                self._asleep = False
                self._open()

    async def release(self, session: str) -> None:  # noqa: B027
        """See :meth:`trainers.engines.base.Engine.release`; vLLM forgets by itself."""

    def stats(self) -> dict[str, float]:
        """Counters since this client connected, and gauges.

        Beside the protocol's: ``steps``, ``preemptions`` (requests that lost their KV for want of room or at an update,
        and computed it again) and ``kv_use`` (share of the KV blocks in use).
        """
        told = self._told
        generated = max(self._counted["generated_tokens"], told.get("generated_tokens", 0))
        waiting = min(told.get("waiting", 0), self._generating)
        return {
            **{name: float(count) for name, count in self._counted.items()},
            "generated_tokens": float(generated),
            "steps": float(told.get("steps", 0)),
            "preemptions": float(told.get("preemptions", 0)),
            "kv_use": float(told.get("kv_use", 0)),
            "running": float(self._generating - waiting),
            "waiting": float(waiting),
        }

    # Parts of it

    def _parameters(self, sampling: Sampling, size: int) -> dict[str, Any]:
        stops = () if sampling.ignore_stop else (*self._stop, *sampling.stop_token_ids)
        return {
            "temperature": float(sampling.temperature),
            "top_p": float(sampling.top_p),
            "top_k": min(int(sampling.top_k), self._vocab_size),
            "min_p": float(sampling.min_p),
            "max_tokens": min(int(sampling.max_new_tokens), self._max_context - size),
            "stop_token_ids": sorted({int(token) for token in stops}),
            "seed": None if sampling.seed is None else int(sampling.seed) % 2**63,
            "logprobs": 0,  # that of the sampled token alone
            "detokenize": False,
            "ignore_eos": True,  # stop tokens are those that the request names
        }

    async def _update(self, weights: Any, version: int, mode: str, told: asyncio.Event) -> None:
        async with self._updating:
            self._check_alive()
            if version <= self._version:
                raise ValueError(f"the new version {version} must be greater than {self._version}")
            if self._asleep:
                raise EngineError("the engine sleeps; wake it before it takes new weights")
            loop = asyncio.get_running_loop()
            payload: Payload = await loop.run_in_executor(self._own, self._publisher.prepare, weights, version)
            told.set()
            try:
                await self._give(payload.message, version, mode)
            except RequestError as refused:
                self._publisher.drop(payload)
                raise ValueError(f"{refused}; the old weights stay") from refused
            except BaseException:
                self._publisher.drop(payload)
                raise
            self._version = version
            self._publisher.keep(payload)

    def _shut(self) -> None:
        self._closed_by += 1
        self._opened.clear()

    def _open(self) -> None:
        self._closed_by -= 1
        if not self._closed_by:
            self._opened.set()

    # The end

    def _finish(self, reason: str) -> None:
        """The engine ends, once, for this reason."""
        if self._end is None:
            self._end = EngineDeadError(reason)
        self._abandon()
        self._opened.set()

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(str(self._end))
