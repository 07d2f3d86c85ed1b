"""SGLang as an engine: how its server is started, and its requests; :mod:`.protocol` knows what is said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from trainers.engines.base import EngineError, FinishReason, RequestError, Sampling
from trainers.engines.http import UnreachableError, error_text
from trainers.engines.remote import Flight, RemoteEngine, Reply
from trainers.engines.server import ServerOptions

from .protocol import ServerInfo, generate_body, read, read_reply, server_seed
from .weight_update import SGLangUpdater

log = logging.getLogger("trainers")

_ABORT_AGAIN_S = 0.1
_INFO_S = 30.0
_SPARE_CONTEXT = 8  # positions that SGLang keeps for itself beyond prompt and reply


@dataclass(frozen=True)
class SGLangOptions(ServerOptions):
    """Options of the SGLang engine; the others are those of every server."""

    #: More command-line arguments of a server that is started; they win over the engine's own.
    server_args: tuple[str, ...] = ()
    #: Start the server in deterministic mode, in which it honours seeds, at the price of some speed on GPUs and of
    #: ``min_p``.
    seeds: bool = True

    package: ClassVar[str] = "sglang"

    def command(self, model: Path, port: int, max_context: int) -> tuple[list[str], dict[str, str]]:
        """How to start a server: the command line, and what its environment has beside this process's own."""
        context = max_context + _SPARE_CONTEXT
        arguments = {
            "--model-path": model,
            "--host": "127.0.0.1",
            "--port": port,
            "--device": self.device,
            "--dtype": self.dtype,
            "--context-length": context,
            "--max-running-requests": self.max_slots,
            "--random-seed": self.seed % 2**31,
            "--log-level": "warning",
        }
        # Without sleeping, the scheduler polls for requests and keeps a core busy while a policy is trained.
        flags = ["--skip-tokenizer-init", "--skip-server-warmup", "--sleep-on-idle"]
        environment = {
            "PYTHONPATH": "",  # this process's packages are not the server's
            "PYTHONSAFEPATH": "1",  # nor are the files beside the launcher
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # for the positions that SGLang keeps to itself
        }
        if self.device == "cuda" and self.gpu is not None:
            arguments["--base-gpu-id"] = self.gpu % torch.cuda.device_count()
        if (ranks := self.tensor_parallel) > 1:
            arguments["--tp-size"] = ranks
        if self.seeds:
            flags.append("--enable-deterministic-inference")
        if self.device == "cpu":
            cores = sorted(os.sched_getaffinity(0))
            environment |= {
                "SGLANG_USE_CPU_ENGINE": "1",
                "TORCHDYNAMO_DISABLE": "1",  # compiling takes a C++ compiler, and longer than small models save by it
            }
            if ranks > 1:  # SGLang wants to be told which cores each rank computes on
                shares = [cores[rank::ranks] or cores[:1] for rank in range(ranks)]
                environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, share)) for share in shares)
            if self.threads is not None:
                environment["OMP_NUM_THREADS"] = str(self.threads)
            arguments |= {"--attention-backend": "torch_native", "--mem-fraction-static": 0.8}
            arguments["--max-total-tokens"] = self.max_slots * context  # else SGLang takes all that share of memory
        words = [str(word) for pair in arguments.items() for word in pair]
        launcher = str(Path(__file__).with_name("launcher.py"))
        return [self.python or sys.executable, launcher, *words, *flags, *self.server_args], environment


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
    _info: ServerInfo | None = None

    @property
    def honours_seeds(self) -> bool | None:
        """Whether the server seeds requests one by one; ``None`` before it was reached."""
        return None if self._info is None else self._info.enable_deterministic_inference

    async def probe(self) -> int:
        """See :func:`trainers.engines.base.probe`. While requests run, their tokens are SGLang's proof."""
        await self.ready()
        answer = await self._client.request("GET", "/health")
        if answer.status != 200:
            raise EngineError(f"{self._name}: /health answers {answer.status}: {error_text(answer.body)}")
        return 0

    def _command(self, model: Path, port: int) -> tuple[list[str], dict[str, str]]:
        return self._options.command(model, port, self.max_context)

    async def _meet(self, answer: Any) -> None:
        info = read(ServerInfo, (await self._client.request("GET", "/server_info", timeout=_INFO_S)).body)
        info.check(self.max_context)
        label, dtype = str(answer["weight_version"]), getattr(torch, info.dtype, None)  # "auto" says nothing
        self._updater.connect(device=info.device, ranks=info.tp_size, dtype=dtype, label=label, version=self.version)
        self._info, self._random = info, random.Random(self._options.seed)
        if not info.enable_deterministic_inference:
            log.info("%s does not honour seeds: it is not in deterministic mode", self._name)

    def _check_sampling(self, sampling: Sampling) -> None:
        if self.honours_seeds and sampling.min_p > 0:
            raise RequestError("min_p: SGLang in deterministic mode cannot do it; leave it 0 or start without seeds")

    async def _ask(self, flight: Flight, made: Sequence[int], stops: Sequence[int], room: int) -> Reply:
        sampling = flight.sampling
        if self.honours_seeds and flight.seed is None:
            flight.seed = server_seed(self._random.getrandbits(63) if sampling.seed is None else sampling.seed)
        body = generate_body(
            [*flight.prompt.tolist(), *made],
            sampling,
            stops=stops,
            room=room,
            vocab_size=self._vocab_size,
            seed=flight.seed,
        )

        def named() -> dict[str, Any]:
            # Of a fixed length, and no name twice: aborts go by prefix.
            flight.rid = uuid.uuid4().hex
            return {"rid": flight.rid, **body}

        reply = read_reply(await self._post("/generate", named, flight), self._vocab_size)
        if len(reply.token_ids) > room:
            raise EngineError(f"the SGLang server returned {len(reply.token_ids)} tokens where {room} were asked for")
        return reply

    def _over(self, flight: Flight, reply: Reply, stopped: bool, room: int) -> FinishReason | None:
        if flight.cancelled:
            return "abort"
        if reply.finish_reason == "abort":
            if not flight.may_abort:
                raise EngineError(f"the SGLang server aborted the request: {reply.message}")
            return "abort"
        if stopped:
            return "stop"
        if room <= 0:
            return "length"
        # The model's own end-of-text token, which is none of ours; or the server keeps shorter contexts than it said.
        if not reply.token_ids:
            raise EngineError(f"the SGLang server ended the request without a token ({reply.finish_reason})")
        return None

    def _withdraw(self, flight: Flight) -> None:
        self._spawn(self._abort(flight))

    async def _abort(self, flight: Flight) -> None:
        """Tell the server until the request's answer comes: an abort that overtakes its request does nothing there."""
        while flight in self._flights and flight.task is not None:
            with contextlib.suppress(UnreachableError):
                body, timeout = {"rid": flight.rid}, self._options.health_timeout_s
                await self._client.request("POST", "/abort_request", body, timeout=timeout)
            await asyncio.wait([flight.task], timeout=_ABORT_AGAIN_S)
            if self._end is not None and not self._closed:
                return
