"""An inference server behind the engine protocol: requests, updates, and what becomes of both when the server goes.

The server is a process that this engine starts, or one that runs already. What it is sent, its kind knows
(:mod:`.vllm`, :mod:`.sglang`); :mod:`.weight_update` brings weights there; this module keeps the protocol's promises:

* Requests that come after an update was asked for wait on this side until it is done: they see the new weights alone.
* A request that is cancelled is aborted on the server.
* Whoever waits hears of a dead or hung server within seconds: :class:`trainers.engines.server.ServerHealth`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig

from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    Generation,
    RequestError,
    Sampling,
    UpdateMode,
    check_request,
)
from trainers.engines.http import Client, UnreachableError, error_text
from trainers.engines.parameters import read_parameters
from trainers.engines.server import ServerHealth, ServerOptions, ServerProcess, free_port
from trainers.engines.transport import AdapterSource, Weights, WeightSource, attending
from trainers.engines.weight_update import MixedWeightsError, WeightUpdater

log = logging.getLogger("trainers")

_TRIES = 3  # of a request whose connection broke while the server lives


@dataclass(eq=False)
class Flight:
    """A request on its way."""

    prompt: NDArray[np.int32]
    sampling: Sampling
    outcome: asyncio.Future[Generation]
    rid: str = ""  # the server's name for it
    begun: bool = False  # whether the server may know it
    cancelled: bool = False
    may_abort: bool = False  # an update in mode abort ends it
    task: asyncio.Task[None] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Launch:
    """What a server is started with, beside its options.

    Args:
        max_slots: How many requests run at once; more wait.
        dtype: ``float32`` or ``bfloat16``.
        device: ``cpu`` or ``cuda``.
        gpu: Which GPU, modulo their number; ``None`` is the server's choice.
        threads: On the CPU; ``None`` is torch's own choice.
        kv_cache_gib: For keys and values; ``None`` is the server's choice.
        seed: Of requests without a seed.
    """

    max_slots: int = 256
    dtype: str = "float32"
    device: str = "cpu"
    gpu: int | None = None
    threads: int | None = None
    kv_cache_gib: float | None = None
    seed: int = 0


class RemoteEngine(ABC):
    """See :class:`trainers.engines.base.Engine` for the protocol.

    With ``options.base_url`` it talks to a server that runs already; else it starts one with ``options.python``, which
    ends with the engine or with this process. Starting takes half a minute and more: it runs in the background, and
    :meth:`ready`, the first request or the first update waits for it.

    KV is shared by all requests with the same prefix; sessions have no meaning of their own.

    Args:
        model: Folder of the model that the server serves: its ``config.json`` and the names and shapes in its
            safetensors are what requests and updates are checked against. A server that is started loads it.
        options: Which server, and how to treat it.
        max_context: Prompt and new tokens together are at most this.
        stop_token_ids: Stop tokens of every request, beside its own.
        launch: Of a server that is started.
        version: Of the model's weights.
        weights: What a server that runs already is given as ``version`` before the first request; ``None`` where it has
            them.

    Raises:
        ValueError: An option does not fit, the folder is no model, or its sizes do not fit ``max_context``.
        ImportError: aiohttp is missing.
        EngineDeadError: The server's program cannot be started.
    """

    kind: ClassVar[str]  #: in messages
    health_path: ClassVar[str]
    updater_class: ClassVar[type[WeightUpdater]]

    def __init__(
        self,
        model: str | Path,
        options: ServerOptions,
        *,
        max_context: int,
        stop_token_ids: Sequence[int] = (),
        launch: Launch | None = None,
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
        parameters = read_parameters(folder, tied=bool(config.tie_word_embeddings), kv_heads=config.num_key_value_heads)
        self._options, self._version, self._weights = options, version, weights
        self._flights: set[Flight] = set()
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._updates_asked = 0  # new requests wait while there are any
        self._work: asyncio.Task[None] | None = None  # an update on the server; continues without a waiter
        self._changed = asyncio.Event()  # replaced at every change; see _change
        self._connecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._counters = dict.fromkeys(
            ("requests", "generated_tokens", "prefill_tokens", "cached_tokens", "aborted", "updates"), 0
        )

        self._server: ServerProcess | None = None
        extra = f"{options.package}-client"
        if options.base_url is None:
            port = free_port()
            self._client = Client(f"http://127.0.0.1:{port}", extra=extra)
            command, environment = self._command(folder.resolve(), port, launch or Launch())
            try:
                self._server = ServerProcess(command, environment)
            except OSError as error:
                raise EngineDeadError(f"cannot start {command[0]}: {error.strerror}") from error
        else:
            self._client = Client(options.base_url, options.api_key, extra=extra)
        self._health = ServerHealth(
            self.kind, self.health_path, self._client, self._server, options, on_death=self._tell_all
        )
        first_gpu = ((launch or Launch()).gpu or 0) % max(1, torch.cuda.device_count())
        apart = options.base_url is not None or first_gpu > 0  # else it has this process's GPU
        self._updater = self.updater_class(self._client, options, parameters, folder, apart=apart)

    # What is different from server to server

    @abstractmethod
    def _command(self, model: Path, port: int, launch: Launch) -> tuple[list[str], dict[str, str]]:
        """The command line of a server, and what its environment has beside this process's own."""

    @abstractmethod
    async def _meet(self, answer: Any) -> None:
        """Find out what the server is, and tell the updater; ``answer`` is that of the first health check.

        Raises:
            EngineError: It cannot do what is wanted; says how to start it.
        """

    @abstractmethod
    async def _generate(self, flight: Flight) -> Generation:
        """Have the server answer; ``flight.begun`` is set before it is asked."""

    @abstractmethod
    def _withdraw(self, flight: Flight) -> None:
        """Nobody waits for a request any more that has begun."""

    # The protocol

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be computed with."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    def stats(self) -> dict[str, float]:
        """Counters since the start; how many requests run, the aborted ones until the server has confirmed it."""
        waiting = sum(not flight.begun for flight in self._flights)
        gauges = {"running": len(self._flights) - waiting, "waiting": waiting}
        return {name: float(n) for name, n in {**self._counters, **gauges}.items()}

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
            EngineError: The server refused the request or answered nonsense; others are not affected.
        """
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self._max_context)
        await self.ready()
        self._check_sampling(sampling)
        flight = Flight(prompt, sampling, asyncio.get_running_loop().create_future())
        self._flights.add(flight)
        self._counters["requests"] += 1
        flight.task = asyncio.create_task(self._fly(flight))
        try:
            return await flight.outcome
        except asyncio.CancelledError:
            flight.cancelled = True
            if flight.begun:
                self._withdraw(flight)
            else:
                flight.task.cancel()
            raise

    async def update_weights(self, weights: Weights, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        Tensors must stay unchanged until this returns. Cancelling withdraws an update that has not begun; one that
        has begun continues in the background.

        Raises:
            EngineError: The server refused, and serves the old weights on.
            EngineDeadError: It failed in the middle, twice: what the server then has is a mixture, and nothing is ever
                sampled from that.
        """
        if mode not in ("keep", "wait", "abort"):
            raise ValueError(f"update mode must be keep, wait or abort, not {mode!r}")
        if not isinstance(weights, Mapping | WeightSource | AdapterSource):
            raise ValueError(f"weights must be a mapping of parameter names to tensors, not {type(weights).__name__}")
        self._health.check()
        self._updates_asked += 1
        announced = contextlib.ExitStack()
        announced.enter_context(attending(weights))
        try:
            await self.ready()
            async with self._updating:
                if self._work is not None:  # of an update that was cancelled
                    await asyncio.wait([self._work])
                    self._health.check()
                if version <= self._version:
                    raise ValueError(f"the new version {version} must be greater than {self._version}")
                await asyncio.to_thread(self._updater.check, weights)
                while mode == "wait" and any(flight.begun for flight in self._flights):
                    self._health.check()
                    await self._changed.wait()
                self._health.check()
                self._work = self._spawn(self._apply(weights, version, mode))
                # Cancelling or the server's death ends the waiting, not the work.
                await self._health.while_alive(asyncio.shield(self._work))
        finally:
            announced.close()
            self._updates_asked -= 1
            self._change()

    async def release(self, session: str) -> None:  # noqa: B027
        """See :meth:`trainers.engines.base.Engine.release`; servers keep KV by prefix, and drop it when they must."""

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`. What runs on a foreign server is aborted there."""
        if self._closed:
            return
        self._closed = True
        died = self._health.error is not None  # then the error names the server's log
        self._health.finish(EngineDeadError(f"the {self.kind} engine is closed"))
        begun = [flight for flight in self._flights if flight.begun and flight.task is not None]
        if self._server is None and begun:
            for flight in begun:
                flight.cancelled = True
                self._withdraw(flight)
            tasks = [flight.task for flight in begun if flight.task is not None]
            await asyncio.wait(tasks, timeout=self._options.health_timeout_s)
        ending = [*self._background, *(f.task for f in self._flights if f.task), self._watching, self._connecting]
        for task in ending:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in ending if task is not None), return_exceptions=True)
        self._flights.clear()
        if self._server is not None:
            await asyncio.to_thread(self._server.stop, keep_log=died)
        await self._updater.close()
        await self._client.close()

    # One request

    def _check_sampling(self, sampling: Sampling) -> None:  # noqa: B027
        """Refuse what this server cannot do, with RequestError."""

    async def _fly(self, flight: Flight) -> None:
        """Ask until the request has what it wants; the outcome is set in any case."""
        try:
            while self._updates_asked or (self._work is not None and not self._work.done()):
                self._health.check()
                await self._changed.wait()
            self._health.check()
            flight.begun = True
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

    async def _post(self, flight: Flight, path: str, body: Callable[[], Any]) -> Any:
        """Ask for tokens, again where a connection broke while the server lives.

        Args:
            flight: The request.
            path: Of the endpoint.
            body: Made anew for each attempt.

        Returns:
            The body of the answer.

        Raises:
            RequestError: The server refuses the request.
            EngineError: It answers with an error, or not at all.
        """
        for attempt in range(_TRIES):
            try:
                answer = await self._client.request("POST", path, body())
            except UnreachableError as error:
                await self._health.suspect(error)
                if attempt + 1 == _TRIES or flight.cancelled:
                    raise
                continue
            break
        if answer.status in (400, 422):
            raise RequestError(f"the {self.kind} server refuses the request: {error_text(answer.body)}")
        if answer.status != 200:
            failure = EngineError(f"the {self.kind} server answered {answer.status}: {error_text(answer.body)}")
            await self._health.suspect(failure)
            raise failure
        return answer.body

    # An update

    async def _apply(self, weights: Weights, version: int, mode: UpdateMode) -> None:
        """All of an update that must not be left in the middle."""
        for flight in self._flights:
            flight.may_abort |= mode == "abort"
        try:
            await self._updater.apply(weights, version, abort=mode == "abort")
        except MixedWeightsError as error:
            if isinstance(error.__cause__, UnreachableError):
                await self._health.suspect(error.__cause__)
            self._health.finish(EngineDeadError(f"the weights of the {self.kind} server are a mixture: {error}"), error)
            self._health.check()
        except EngineError as error:
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
            await self._meet(await health.wait_until_ready())
            if self._server is None and self._weights is not None:
                await asyncio.to_thread(self._updater.check, self._weights)
                await self._updater.apply(self._weights, self._version, abort=False)
        except EngineDeadError as error:
            health.finish(error)
            return
        except (EngineError, ValueError) as error:
            health.finish(EngineDeadError(f"{health.name}: {error}{health.tail}"), error)
            return
        self._weights = None
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
        """Wake everybody who waits for the state to change; each waiter rechecks."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._background.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio logs no warning; a waiter raises it
            self._change()

        task.add_done_callback(ended)
        return task
