"""SGLang behind the engine protocol: requests, updates, and what becomes of both when the server goes.

The server is a process that this engine starts, or one that runs already. :mod:`.protocol` knows what is said,
:mod:`.update` brings weights there; this module keeps the protocol's promises:

* Requests that come after an update was asked for wait on this side until it is done: they see the new weights alone.
* A request that is cancelled is aborted on the server, again and again until its answer comes: an abort that overtakes
  its request on the way does nothing there.
* Whoever waits hears of a dead or hung server within seconds: :class:`trainers.engines.server.ServerHealth`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig

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
from trainers.engines.http import Client, UnreachableError, error_text
from trainers.engines.server import ServerHealth, ServerProcess, free_port

from .options import SGLangOptions
from .protocol import Reply, ServerInfo, generate_body, read, read_reply, server_seed
from .update import MixedWeightsError, Updater
from .weights import read_parameters

log = logging.getLogger("trainers")

_ABORT_AGAIN_S = 0.1
_TRIES = 3  # of a request whose connection broke while the server lives
_INFO_S = 30.0
_SPARE_CONTEXT = 8  # positions that SGLang keeps for itself beyond prompt and reply


@dataclass(eq=False)
class _Flight:
    """A request on its way."""

    prompt: NDArray[np.int32]
    sampling: Sampling
    outcome: asyncio.Future[Generation]
    rid: str = ""
    seed: int | None = None
    cancelled: bool = False
    may_abort: bool = False  # an update in mode abort ends it
    task: asyncio.Task[None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class SGLangEngine:
    """Serves with SGLang; see :class:`trainers.engines.base.Engine` for the protocol.

    With ``options.base_url`` it talks to a server that runs already; else it starts one with ``options.python``, which
    ends with the engine or with this process. Starting takes half a minute and more: it goes on in the background, and
    :meth:`ready`, the first request or the first update waits for it.

    Where SGLang differs from the protocol:

    * ``Sampling.seed`` is honoured by servers in deterministic mode alone (:attr:`honours_seeds`); others draw from one
      stream of their own. In that mode SGLang cannot do ``min_p`` (it would die), so a request with it is refused.
    * ``top_p`` looks at the whole distribution, not at what ``top_k`` left (:attr:`joint_cuts`): where both are given,
      some more tokens can be sampled. Log-probs are the protocol's in any case.
    * KV is shared by all requests with the same prefix, whatever their session; sessions have no meaning of their own.
    * ``stats`` counts tokens when their request ends, not while it runs.

    Args:
        model: Folder of the model that the server serves: its ``config.json`` and the names and shapes in its
            safetensors are what requests and updates are checked against. A server that is started loads it.
        options: Which server, and how to treat it.
        max_context: Prompt and new tokens together are at most this.
        max_slots: Of a server that is started: how many requests run at once.
        stop_token_ids: Stop tokens of every request, beside its own.
        dtype: Of a server that is started: ``float32`` or ``bfloat16``.
        device: Of a server that is started: ``cpu`` or ``cuda``.
        gpu: Of a server that is started: which GPU, modulo their number; ``None`` is SGLang's choice.
        threads: Of a server that is started on the CPU; ``None`` is torch's own choice.
        seed: Of requests without a seed.
        version: Of the model's weights.
        weights: What a server that runs already is given as ``version`` before the first request; ``None`` where it has
            them.

    Raises:
        ValueError: An option does not fit, the folder is no model, or its sizes do not fit ``max_context``.
        ImportError: aiohttp is missing.
    """

    joint_cuts = True  #: see the class's text
    counts_in_flight = False  #: whether ``stats()["generated_tokens"]`` has the tokens of requests that still run

    def __init__(
        self,
        model: str | Path,
        options: SGLangOptions,
        *,
        max_context: int,
        max_slots: int = 256,
        stop_token_ids: Sequence[int] = (),
        dtype: str = "float32",
        device: str = "cpu",
        gpu: int | None = None,
        threads: int | None = None,
        seed: int = 0,
        version: int = 0,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        folder = Path(model).expanduser()
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} is not a folder with a config.json")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        if not 2 <= max_context <= config.max_position_embeddings:
            raise ValueError(
                f"max_context must be from 2 to the model's {config.max_position_embeddings}, not {max_context}"
            )
        self._vocab_size: int = config.vocab_size
        self._max_context = max_context
        self._stop_token_ids = tuple(stop_token_ids)
        check_request(
            [0], Sampling(stop_token_ids=self._stop_token_ids), vocab_size=self._vocab_size, max_context=max_context
        )
        self._parameters = read_parameters(
            folder, tied=bool(config.tie_word_embeddings), kv_heads=config.num_key_value_heads
        )
        self._options, self._version, self._weights = options, version, weights
        self._random = random.Random(seed)
        self._flights: set[_Flight] = set()
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._updates_asked = 0  # new requests wait while there are any
        self._work: asyncio.Task[None] | None = None  # an update on the server, which goes on when nobody waits for it
        self._changed = asyncio.Event()  # replaced at every change; see _change
        self._info: ServerInfo | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._counters = dict.fromkeys(
            ("requests", "generated_tokens", "prefill_tokens", "cached_tokens", "aborted", "retractions", "updates"), 0
        )

        self._server: ServerProcess | None = None
        if options.base_url is None:
            port = free_port()
            arguments = {
                "--model-path": str(folder.resolve()),
                "--host": "127.0.0.1",
                "--port": str(port),
                "--device": device,
                "--dtype": dtype,
                "--context-length": str(max_context + _SPARE_CONTEXT),
                "--max-running-requests": str(max_slots),
                "--random-seed": str(seed % 2**31),
            }
            if device == "cuda" and gpu is not None:
                arguments["--base-gpu-id"] = str(gpu % torch.cuda.device_count())
            self._client = Client(f"http://127.0.0.1:{port}", extra="sglang-client")
            self._server = ServerProcess(*options.command(arguments, threads))
        else:
            self._client = Client(options.base_url, options.api_key, extra="sglang-client")
        self._health = ServerHealth(
            "SGLang", "/model_info", self._client, self._server, options, on_death=self._tell_all
        )
        self._updater = Updater(self._client, options, self._parameters, folder)

    # What it is

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be computed with."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    @property
    def honours_seeds(self) -> bool | None:
        """Whether the server seeds requests one by one; ``None`` before it was reached."""
        return None if self._info is None else self._info.enable_deterministic_inference

    def stats(self) -> dict[str, float]:
        """Counters since the start; how many requests run, the aborted ones until the server has confirmed it."""
        waiting = sum(not flight.rid for flight in self._flights)
        gauges = {"running": len(self._flights) - waiting, "waiting": waiting}
        return {name: float(n) for name, n in {**self._counters, **gauges}.items()}

    # The protocol

    async def ready(self) -> None:
        """Wait until the server serves this model.

        Raises:
            EngineDeadError: It did not start, or serves something else; with the end of its log where it is ours.
        """
        self._health.check()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        await asyncio.shield(self._connecting)
        self._health.check()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`.

        Raises:
            EngineError: The server refused the request or answered nonsense; it goes on.
        """
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self._max_context)
        await self.ready()
        if self.honours_seeds and sampling.min_p > 0:
            raise RequestError("min_p: SGLang in deterministic mode cannot do it; leave it 0 or start without seeds")
        flight = _Flight(prompt, sampling, asyncio.get_running_loop().create_future())
        self._flights.add(flight)
        self._counters["requests"] += 1
        flight.task = asyncio.create_task(self._fly(flight))
        try:
            return await flight.outcome
        except asyncio.CancelledError:
            flight.cancelled = True
            if not flight.rid:  # the server has not heard of it
                flight.task.cancel()
            else:
                self._spawn(self._abort(flight))
            raise

    async def update_weights(self, weights: Mapping[str, Tensor], version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        The tensors must stay unchanged until this returns. Cancelling withdraws an update that has not begun; one that
        has begun goes on in the background.

        Raises:
            EngineError: The server refused, and serves the old weights on.
            EngineDeadError: It failed in the middle, twice: what the server then has is a mixture, and nothing is ever
                sampled from that.
        """
        if mode not in ("keep", "wait", "abort"):
            raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")
        self._health.check()
        self._updates_asked += 1
        try:
            await self.ready()
            async with self._updating:
                if self._work is not None:  # of an update that was cancelled
                    await asyncio.wait([self._work])
                    self._health.check()
                if version <= self._version:
                    raise ValueError(f"the new version {version} must be greater than {self._version}")
                await asyncio.to_thread(self._parameters.check, weights)
                while mode == "wait" and self._flights_begun():
                    self._health.check()
                    await self._changed.wait()
                self._health.check()
                self._work = self._spawn(self._apply(weights, version, mode))
                # Cancelling or the server's death ends the waiting, not the work.
                await self._health.while_alive(asyncio.shield(self._work))
        finally:
            self._updates_asked -= 1
            self._change()

    async def probe(self) -> int:
        """See :class:`trainers.engines.base.Probed`. While requests run, their tokens are SGLang's proof."""
        await self.ready()
        answer = await self._client.request("GET", "/health")
        if answer.status != 200:
            raise EngineError(f"{self._health.name}: /health answers {answer.status}: {error_text(answer.body)}")
        return 0

    async def release(self, session: str) -> None:
        """See :meth:`trainers.engines.base.Engine.release`; SGLang keeps KV by prefix, and drops it when it must."""

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`. What runs on a foreign server is aborted there."""
        if self._closed:
            return
        self._closed = True
        died = self._health.error is not None  # then the error names the server's log
        self._health.finish(EngineDeadError("the sglang engine is closed"))
        flights = [flight for flight in self._flights if flight.rid]
        if self._server is None and flights:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.health_timeout_s):
                    await asyncio.gather(*(self._abort(flight) for flight in flights))
        tasks = [*self._background, *(f.task for f in self._flights if f.task), self._watching, self._connecting]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        self._flights.clear()
        await self._updater.close()
        await self._client.close()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop, keep_log=died)

    # One request

    async def _fly(self, flight: _Flight) -> None:
        """Ask until the request has what it wants; the outcome is set in any case."""
        try:
            while self._updates_asked or (self._work is not None and not self._work.done()):
                self._health.check()
                await self._changed.wait()
            self._health.check()
            generation = await self._generate(flight)
        except asyncio.CancelledError:
            flight.outcome.cancel()
            raise
        except Exception as error:  # a bug of ours too: whoever waits must hear of it
            if not flight.outcome.done():
                flight.outcome.set_exception(error)
        else:
            if not flight.outcome.done():
                flight.outcome.set_result(generation)
        finally:
            self._flights.discard(flight)
            self._change()

    async def _generate(self, flight: _Flight) -> Generation:
        sampling = flight.sampling
        stops = {*self._stop_token_ids, *sampling.stop_token_ids}
        limit = min(sampling.max_new_tokens, self._max_context - len(flight.prompt))
        if self.honours_seeds:
            seed = self._random.getrandbits(63) if sampling.seed is None else sampling.seed
            flight.seed = server_seed(seed)
        cached, reason = 0.0, None
        while reason is None:
            reply = await self._ask(flight, tuple(stops), limit - len(flight.token_ids))
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

    def _ended(self, flight: _Flight, reply: Reply, stops: set[int], limit: int) -> FinishReason | None:
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

    async def _ask(self, flight: _Flight, stops: tuple[int, ...], room: int) -> Reply:
        """One ``POST /generate`` for what is left of the request."""
        for attempt in range(_TRIES):
            # Of a fixed length, and no name twice: aborts go by prefix.
            flight.rid = uuid.uuid4().hex
            body = generate_body(
                flight.rid,
                [*flight.prompt.tolist(), *flight.token_ids],
                replace(flight.sampling, stop_token_ids=stops),
                max_new_tokens=room,
                vocab_size=self._vocab_size,
                seed=flight.seed,
            )
            try:
                answer = await self._client.request("POST", "/generate", body)
            except UnreachableError as error:
                await self._health.suspect(error)
                if attempt + 1 == _TRIES or flight.cancelled:
                    raise
                continue
            break
        if answer.status == 400:
            raise RequestError(f"the SGLang server refuses the request: {error_text(answer.body)}")
        if answer.status != 200:
            raise EngineError(f"the SGLang server answered {answer.status}: {error_text(answer.body)}")
        reply = read_reply(answer.body, self._vocab_size)
        if len(reply.token_ids) > room:
            raise EngineError(f"the SGLang server returned {len(reply.token_ids)} tokens where {room} were asked for")
        return reply

    async def _abort(self, flight: _Flight) -> None:
        """Tell the server until the request's answer comes."""
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

    def _flights_begun(self) -> bool:
        return any(flight.rid for flight in self._flights)

    # An update

    async def _apply(self, weights: Mapping[str, Tensor], version: int, mode: UpdateMode) -> None:
        """All of an update that must not be left in the middle."""
        for flight in self._flights:
            flight.may_abort |= mode == "abort"
        try:
            await self._updater.apply(weights, version, abort=mode == "abort")
        except MixedWeightsError as error:
            if isinstance(error.__cause__, UnreachableError):
                await self._health.suspect(error.__cause__)
            self._health.finish(EngineDeadError(f"the weights of the SGLang server are a mixture: {error}"), error)
            self._health.check()
        except UnreachableError as error:
            await self._health.suspect(error)
            raise
        else:
            self._version = version
            self._counters["updates"] += 1

    # Its beginning and its end

    async def _connect(self) -> None:
        """Wait for the server, read what it is, begin to watch it."""
        health = self._health
        try:
            model_info = await health.wait_until_ready()
            answer = await self._client.request("GET", "/server_info", timeout=_INFO_S)
            info = read(ServerInfo, answer.body)
            info.check(self._max_context)
            self._updater.connect(info, str(model_info["weight_version"]), self._version)
            if self._server is None and self._weights is not None:
                await asyncio.to_thread(self._parameters.check, self._weights)
                await self._updater.apply(self._weights, self._version, abort=False)
        except EngineDeadError as error:
            health.finish(error)
            return
        except (EngineError, ValueError) as error:
            health.finish(EngineDeadError(f"{health.name}: {error}{health.tail}"), error)
            return
        self._weights = None
        self._info = info
        if not info.enable_deterministic_inference:
            log.info("%s does not honour seeds: it is not in deterministic mode", health.name)
        self._watching = asyncio.create_task(health.watch())

    def _tell_all(self) -> None:
        """The server's life is over; everybody who waits hears why."""
        end = self._health.error
        assert end is not None
        for flight in self._flights:
            if not flight.outcome.done():
                failure = EngineDeadError(str(end))  # one each: raising an exception writes a traceback into it
                failure.__cause__ = end.__cause__
                flight.outcome.set_exception(failure)
        self._change()

    def _change(self) -> None:
        """Wake everybody who waits for the state to change; each looks for himself."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled():
                task.exception()  # whoever may still wait for it raises it; a task that nobody awaits is no warning
            self._change()

        task.add_done_callback(ended)
        return task
