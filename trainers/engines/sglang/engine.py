"""SGLang as an engine: its requests; :mod:`.protocol` knows what is said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.engines.base import EngineError, FinishReason, Generation, RequestError, Sampling
from trainers.engines.http import UnreachableError, error_text
from trainers.engines.remote import Flight, Launch, RemoteEngine

from .options import SGLangOptions
from .protocol import Reply, ServerInfo, generate_body, read, read_reply, server_seed
from .weight_update import SGLangUpdater

log = logging.getLogger("trainers")

_ABORT_AGAIN_S = 0.1
_INFO_S = 30.0
_SPARE_CONTEXT = 8  # positions that SGLang keeps for itself beyond prompt and reply


class SGLangEngine(RemoteEngine):
    """Serves with SGLang; see :class:`trainers.engines.remote.RemoteEngine`.

    Where SGLang differs from the protocol:

    * ``Sampling.seed`` is honoured by servers in deterministic mode alone (:attr:`honours_seeds`); others draw from one
      stream of their own. In that mode SGLang cannot do ``min_p`` (it would die), so a request with it is refused.
    * ``top_p`` looks at the whole distribution, not at what ``top_k`` left (:attr:`joint_cuts`): where both are given,
      some more tokens can be sampled. Log-probs are the protocol's in any case.
    * ``stats`` counts tokens when their request ends, not while it runs.
    """

    joint_cuts = True  #: see the class's text
    counts_in_flight = False  #: whether ``stats()["generated_tokens"]`` has the tokens of requests that still run

    kind = "SGLang"
    health_path = "/model_info"
    updater_class = SGLangUpdater
    _options: SGLangOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._random = random.Random((kwargs.get("launch") or Launch()).seed)
        self._info: ServerInfo | None = None
        self._counters["retractions"] = 0

    @property
    def honours_seeds(self) -> bool | None:
        """Whether the server seeds requests one by one; ``None`` before it was reached."""
        return None if self._info is None else self._info.enable_deterministic_inference

    async def probe(self) -> int:
        """See :class:`trainers.engines.base.Probed`. While requests run, their tokens are SGLang's proof."""
        await self.ready()
        answer = await self._client.request("GET", "/health")
        if answer.status != 200:
            raise EngineError(f"{self._health.name}: /health answers {answer.status}: {error_text(answer.body)}")
        return 0

    def _command(self, model: Path, port: int, launch: Launch) -> tuple[list[str], dict[str, str]]:
        arguments = {
            "--model-path": str(model),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--device": launch.device,
            "--dtype": launch.dtype,
            "--context-length": str(self._max_context + _SPARE_CONTEXT),
            "--max-running-requests": str(launch.max_slots),
            "--random-seed": str(launch.seed % 2**31),
        }
        if launch.device == "cuda" and launch.gpu is not None:
            arguments["--base-gpu-id"] = str(launch.gpu % torch.cuda.device_count())
        return self._options.command(arguments, launch.threads)

    async def _meet(self, answer: Any) -> None:
        info = read(ServerInfo, (await self._client.request("GET", "/server_info", timeout=_INFO_S)).body)
        info.check(self._max_context)
        self._updater.connect(
            device=info.device,
            ranks=info.tp_size,
            dtype=info.torch_dtype,
            label=str(answer["weight_version"]),
            version=self._version,
        )
        self._info = info
        if not info.enable_deterministic_inference:
            log.info("%s does not honour seeds: it is not in deterministic mode", self._health.name)

    def _check_sampling(self, sampling: Sampling) -> None:
        if self.honours_seeds and sampling.min_p > 0:
            raise RequestError("min_p: SGLang in deterministic mode cannot do it; leave it 0 or start without seeds")

    async def _generate(self, flight: Flight) -> Generation:
        sampling, seed = flight.sampling, None
        stops = {*self._stop_token_ids, *sampling.stop_token_ids}
        limit = min(sampling.max_new_tokens, self._max_context - len(flight.prompt))
        if self.honours_seeds:
            seed = server_seed(self._random.getrandbits(63) if sampling.seed is None else sampling.seed)
        cached, reason = 0.0, None
        while reason is None:
            reply = await self._ask(flight, tuple(stops), limit - len(flight.token_ids), seed)
            if not flight.token_ids:
                cached = float(min(reply.cached_tokens, len(flight.prompt) - 1))
            flight.token_ids += reply.token_ids
            flight.logprobs += reply.logprobs
            flight.versions += map(self._updater.version_of, reply.versions)
            self._counters["generated_tokens"] += len(reply.token_ids)
            self._counters["cached_tokens"] += reply.cached_tokens
            self._counters["retractions"] += reply.num_retractions
            reason = self._ended(flight, reply, stops, limit)
        self._counters["prefill_tokens"] += len(flight.prompt) - int(cached)
        return Generation(
            token_ids=np.array(flight.token_ids, np.int32),
            logprobs=np.array(flight.logprobs, np.float32),
            weight_version=np.array(flight.versions, np.int32),
            finish_reason=reason,
            metrics={"cached_tokens": cached},
        )

    def _ended(self, flight: Flight, reply: Reply, stops: set[int], limit: int) -> FinishReason | None:
        """Why the request is over, by the protocol; ``None`` where the server stopped for a reason of its own."""
        if flight.cancelled:
            return "abort"
        if reply.finish_reason.type == "abort":
            if not flight.may_abort:
                raise EngineError(f"the SGLang server aborted the request: {reply.finish_reason.message}")
            self._counters["aborted"] += 1
            return "abort"
        if not flight.sampling.ignore_stop and flight.token_ids and flight.token_ids[-1] in stops:
            return "stop"
        if len(flight.token_ids) >= limit:
            return "length"
        # The model's own end-of-text token, which is none of ours; or the server keeps shorter contexts than it said.
        if not reply.token_ids:
            raise EngineError(f"the SGLang server ended the request without a token ({reply.finish_reason})")
        return None

    async def _ask(self, flight: Flight, stops: tuple[int, ...], room: int, seed: int | None) -> Reply:
        """One ``POST /generate`` for what is left of the request."""

        def body() -> dict[str, Any]:
            # Of a fixed length, and no name twice: aborts go by prefix.
            flight.rid = uuid.uuid4().hex
            return generate_body(
                flight.rid,
                [*flight.prompt.tolist(), *flight.token_ids],
                replace(flight.sampling, stop_token_ids=stops),
                max_new_tokens=room,
                vocab_size=self._vocab_size,
                seed=seed,
            )

        reply = read_reply(await self._post(flight, "/generate", body), self._vocab_size)
        if len(reply.token_ids) > room:
            raise EngineError(f"the SGLang server returned {len(reply.token_ids)} tokens where {room} were asked for")
        return reply

    def _withdraw(self, flight: Flight) -> None:
        self._spawn(self._abort(flight))

    async def _abort(self, flight: Flight) -> None:
        """Tell the server until the request's answer comes: an abort that overtakes its request does nothing there."""
        while flight in self._flights:
            with contextlib.suppress(UnreachableError):
                await self._client.request(
                    "POST", "/abort_request", {"rid": flight.rid}, timeout=self._options.health_timeout_s
                )
            if flight.task is None or flight.task.done():
                return
            await asyncio.wait([flight.task], timeout=_ABORT_AGAIN_S)
            if self._health.error is not None and not self._closed:
                return
