"""vLLM as an engine: its requests, its sleep and its counters; :mod:`.protocol` reads its answers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import trainers
from trainers.engines.base import EngineError, FinishReason, RequestError, Sampling, UpdateMode
from trainers.engines.http import UnreachableError
from trainers.engines.remote import Flight, RemoteEngine, Reply
from trainers.engines.transport import Weights

from .options import VLLMOptions
from .protocol import check_description, generate_body, read_metrics, read_reply
from .weight_update import VLLMUpdater

MIN_TEMPERATURE = 0.01  #: vLLM's server raises lower ones to this, and would report log-probs of that
_METRICS_S = 0.5  # between two looks at the server's counters, while requests run
_GENERATE = "/inference/v1/generate"


class VLLMEngine(RemoteEngine):
    """Serves with vLLM (:class:`trainers.engines.remote.RemoteEngine`); refuses ``0 < T <`` :data:`MIN_TEMPERATURE`."""

    kind = "vLLM"
    health_path = "/health"
    updater_class = VLLMUpdater
    _options: VLLMOptions
    _asleep = False
    _told: Mapping[str, float] = {}  # the server's counters, and its gauges
    _before: Mapping[str, float] = {}  # its counters when this began

    def stats(self) -> dict[str, float]:
        """See :meth:`trainers.engines.remote.RemoteEngine.stats`; what the server counts is half a second late.

        Beside the protocol's: ``steps``, ``preemptions`` (requests whose KV blocks were dropped, for memory or for an
        update, and computed again) and ``kv_use`` (share of the KV blocks in use).
        """
        own = super().stats()
        told = {name: count - self._before.get(name, 0.0) for name, count in self._told.items()}
        queued = min(told.get("waiting", 0.0), own["running"])
        return {
            **own,
            "generated_tokens": max(own["generated_tokens"], told.get("generated_tokens", 0.0)),
            **{name: told.get(name, 0.0) for name in ("steps", "preemptions", "kv_use")},
            "running": own["running"] - queued,
            "waiting": own["waiting"] + queued,
        }

    async def update_weights(self, weights: Weights, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.remote.RemoteEngine.update_weights`. Raises ``EngineError``: it sleeps."""
        if self._asleep:
            raise EngineError("the engine sleeps; wake it before it takes new weights")
        await super().update_weights(weights, version, mode)

    async def sleep(self, level: int = 1) -> None:
        """Stop computing and give memory back until :meth:`wake`; requests wait, those that run start over then.

        ``level`` 1 gives up the KV and moves the weights to the CPU's memory; 0 only stops computing. EngineError where
        the server cannot: memory is given back on a GPU, and in vLLM's sleep mode alone.
        """
        await self.ready()
        if level > 0 and self._updater.device == "cpu":
            raise EngineError("vLLM on a CPU gives no memory back when it sleeps; level=0 stops it computing")
        async with self._updating:
            if self._asleep:
                return
            self._updates_asked += 1
            try:
                await self._updater.control(f"/sleep?level={level}&mode=keep")
            except BaseException:
                with contextlib.suppress(EngineError):  # vLLM pauses before it finds out that it cannot sleep
                    await self._updater.control("/resume")
                self._updates_asked -= 1
                self._change()
                raise
            self._asleep = True

    async def wake(self) -> None:
        async with self._updating:
            if self._asleep:
                await self._updater.control("/wake_up")
                self._asleep = False
                self._updates_asked -= 1
                self._change()

    def _command(self, model: Path, port: int) -> tuple[list[str], dict[str, str]]:
        # The worker extension is of this project, whose environment is not vLLM's: this folder has the package alone.
        folder = Path(tempfile.mkdtemp(prefix="textenvs-vllm-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        (folder / "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
        return self._options.command(model, folder, port, self.max_context)

    async def _meet(self, answer: Any) -> None:
        updater = self._updater
        if await self._get("/is_sleeping", "is_sleeping"):  # left so by a client that died
            await updater.control("/wake_up")
        answer = await self._client.request("POST", "/collective_rpc", {"method": "describe_to_the_trainer"})
        described = check_description(answer, self._vocab_size, self.max_context)
        updater.connect(
            device=described["device"],
            ranks=await self._get("/get_world_size", "world_size"),
            dtype=getattr(torch, described["dtype"]),
            label=str(await self._get("/weight_info", "weight_version")),
            version=self.version,
        )
        await updater.control("/resume")
        # Some models that vLLM loads it cannot compute (on a CPU, heads of 8 dimensions): that ends the server, so now.
        first = generate_body([0], Sampling(temperature=0.0), stops=(), room=1, vocab_size=self._vocab_size)
        answer = await self._client.request("POST", _GENERATE, first)
        if answer.status == 401:
            raise EngineError("it wants a key, and this is not the one it has; set VLLM_API_KEY")
        read_reply(answer.body)
        self._before = {**await self._metrics(), "waiting": 0.0, "kv_use": 0.0}
        self._spawn(self._look_at_metrics())

    async def _get(self, path: str, name: str) -> Any:
        answer = await self._client.request("GET", path, timeout=self._options.update_timeout_s)
        if answer.status != 200 or not isinstance(answer.body, Mapping) or name not in answer.body:
            raise EngineError(f"{path} answers {answer.status}: start it with VLLM_SERVER_DEV_MODE=1")
        return answer.body[name]

    def _check_sampling(self, sampling: Sampling) -> None:
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise RequestError(
                f"temperature {sampling.temperature}: vLLM's server raises all below {MIN_TEMPERATURE} to that; "
                "0 decodes greedily"
            )

    async def _ask(self, flight: Flight, made: Sequence[int], stops: Sequence[int], room: int) -> Reply:
        prompt, vocab_size = flight.prompt.tolist(), self._vocab_size
        body = generate_body(prompt, flight.sampling, stops=stops, room=room, vocab_size=vocab_size)
        return read_reply(await self._post(_GENERATE, lambda: body, flight))

    def _over(self, flight: Flight, reply: Reply, stopped: bool, room: int) -> FinishReason:
        return reply.finish_reason

    def _withdraw(self, flight: Flight) -> None:
        assert flight.task is not None
        flight.task.cancel()  # which closes its connection, upon which the server aborts the request

    async def _metrics(self) -> dict[str, float]:
        answer = await self._client.request("GET", "/metrics", timeout=self._options.health_timeout_s)
        return read_metrics(str(answer.body)) if answer.status == 200 else {}

    async def _look_at_metrics(self) -> None:
        while self._end is None:
            await asyncio.sleep(_METRICS_S)
            if self._flights:
                with contextlib.suppress(UnreachableError):
                    self._told = await self._metrics()
