"""An inference server behind the engine protocol: requests, updates, and the server's failure.

The kinds of servers (:mod:`.vllm`, :mod:`.sglang`) define their requests; :mod:`.weight_update` sends weights.
Requests that come after a requested update see the new weights alone; a cancelled request is aborted on the
server; all waiters are notified of a dead or hung server within seconds. It is replaced by
:class:`trainers.engines.replicas.Replicas`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig

from trainers.config.engine import ServedEngineSection
from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    FinishReason,
    Generation,
    RequestError,
    Sampling,
    UpdateMode,
    check_mode,
    check_request,
    check_sizes,
    check_unused,
)
from trainers.engines.server import Client, ServerProcess, UnreachableError, error_text, free_port, refused
from trainers.engines.transport import AdapterSource, Weights, WeightSource, attending
from trainers.engines.weight_update import UPDATE_TIMEOUT_S, MixedWeightsError, WeightUpdater
from trainers.engines.weights import read_parameters

_Result = TypeVar("_Result")

log = logging.getLogger("trainers")

_TRIES = 3  # of a request whose connection broke while the server lives
_TICK_S = 0.25  # between two checks of the process


class UnavailableError(EngineError):
    """The server answers 503: it takes no request now."""


@dataclass(eq=False)
class Flight:
    """A request in flight."""

    prompt: NDArray[np.int32]
    sampling: Sampling
    rid: str = ""  # the server's name for it
    seed: int | None = None  # that the server is given
    begun: bool = False  # whether the server may have received it
    cancelled: bool = False
    may_abort: bool = False  # an update in mode abort ends it
    interrupted: bool = False  # an update, or sleep, has paused the server meanwhile
    task: asyncio.Task[Generation] | None = None


@dataclass(frozen=True)
class Reply:
    """A server's reply to one request; for each token its log-probability and the server's label of its weights."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    labels: Sequence[str]
    finish_reason: FinishReason
    cached_tokens: int
    message: str | None = None  # why it was aborted


class RemoteEngine(ABC):
    """See :class:`trainers.engines.base.Engine` for the protocol.

    With a ``base_url`` in the section it talks to a server that runs already, with the key of ``VLLM_API_KEY`` or
    ``SGLANG_API_KEY``; else it starts one, which ends with the engine or with this process, in the background:
    :meth:`ready`, the first request or update waits for it. KV is shared by all requests with the same prefix; sessions
    have no meaning. ``sampled_logprobs`` is ``None`` where a cut applies.

    Args:
        model: Folder of the model that the server serves, whose ``config.json`` and safetensors' headers requests and
            updates are checked against.
        section: Which server, and how to treat it.
        replica: Which of the section's ``engines`` this is: it decides the address, or the GPUs of a new server.
        dtype: Of a new server: ``float32`` or ``bfloat16``.
        device: Of a new server: ``cpu`` or ``cuda``.
        seed: Of requests without a seed.
        update_timeout_s: Seconds for one step of an update.
        stop_token_ids: Stop tokens of every request, beside its own.
        unused_token_ids: Ids that are never sampled, because the tokenizer has no token for them.
        version: Of the model's weights.
        weights: What a server that runs already is given as ``version`` before the first request, if anything.

    Raises ``ValueError``: the folder is no model, its sizes do not fit ``max_context``, or there is no Python with the
    server's package; ImportError: aiohttp is missing; EngineDeadError: the server's program cannot be started.
    """

    kind: ClassVar[str]  #: in messages
    health_path: ClassVar[str]
    #: From section, model, port, ``dtype``, ``device``, ``seed`` and ``gpu`` to a new server's command line, and
    #: additions to its environment
    server_command: ClassVar[Callable[..., tuple[list[str], dict[str, str]]]]
    updater_class: ClassVar[type[WeightUpdater]]
    health_interval_s = 2.0  #: between two health checks; after two failures in a row the server is dead

    def __init__(
        self,
        model: str | Path,
        section: ServedEngineSection,
        *,
        replica: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
        seed: int = 0,
        update_timeout_s: float = UPDATE_TIMEOUT_S,
        stop_token_ids: Sequence[int] = (),
        unused_token_ids: Sequence[int] = (),
        version: int = 0,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        folder = Path(model).expanduser()
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} is not a folder with a config.json")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self._vocab_size: int = config.vocab_size
        self.version, self.max_context = version, section.max_context
        self._stop_token_ids = tuple(stop_token_ids)
        check_sizes(config, self.max_context, self._stop_token_ids)
        check_unused(unused_token_ids, self._vocab_size)
        self._unused_token_ids = tuple(unused_token_ids)
        parameters = read_parameters(folder, tied=bool(config.tie_word_embeddings), kv_heads=config.num_key_value_heads)
        self._section, self._seed, self._weights = section, seed, weights
        self._health_timeout_s, self._update_timeout_s = section.server.health_timeout_s, update_timeout_s
        self._flights: set[Flight] = set()
        self._updating = asyncio.Lock()  # one update at a time, in order
        self._pending_updates = 0  # new requests wait while there are any
        self._work: asyncio.Task[None] | None = None  # an update on the server; continues without a waiter
        self._changed = asyncio.Event()  # replaced at every change; see _change
        self._connecting: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._end: EngineDeadError | None = None  # why the server is dead; then it stays dead
        self._ended = asyncio.Event()
        self._closed = False
        self._counters = dict.fromkeys(
            ("requests", "generated_tokens", "prefill_tokens", "cached_tokens", "aborted", "updates"), 0
        )

        self._server: ServerProcess | None = None
        # The first GPU of a replica: replicas take the machine's GPUs in turn; a single engine takes any.
        self._gpu = replica * section.gpus if section.engines > 1 else None
        if section.base_urls:
            key = os.environ.get(f"{section.name.upper()}_API_KEY")
            self._client = Client(section.base_urls[replica], key, extra=f"{section.name}-client")
        else:
            self._client = self._start(folder.resolve(), dtype=dtype, device=device, seed=seed, gpu=self._gpu)
        self._updater = self.updater_class(self._client, section, parameters, folder, timeout_s=update_timeout_s)

    def _start(self, model: Path, **start: Any) -> Client:
        port = free_port()
        client = Client(f"http://127.0.0.1:{port}", extra=f"{self._section.name}-client")
        command, environment = type(self).server_command(self._section, model, port, **start)
        try:
            self._server = ServerProcess(command, environment)
        except OSError as error:
            raise EngineDeadError(f"cannot start {command[0]}: {error.strerror}") from error
        return client

    # Specific to each server

    @abstractmethod
    async def _meet(self, answer: Any) -> None:
        """Read the server's properties after its first health check; EngineError if it cannot serve this engine."""

    def _check_sampling(self, sampling: Sampling) -> None:  # noqa: B027
        """Refuse sampling that this server does not support, with RequestError."""

    @abstractmethod
    async def _ask(self, flight: Flight, made: Sequence[int], stops: Sequence[int], room: int) -> Reply:
        """Ask for at most ``room`` tokens after the prompt and those that were made already."""

    @abstractmethod
    def _over(self, flight: Flight, reply: Reply, stopped: bool, room: int) -> FinishReason | None:
        """Return the finish reason, ``None`` if unfinished; ``stopped`` by a stop token, ``room`` tokens remaining."""

    @abstractmethod
    def _withdraw(self, flight: Flight) -> None:
        """Abort a request that has begun and has no waiter any more."""

    # The protocol

    def stats(self) -> dict[str, float]:
        """Return counters since the start, and running requests; aborted ones run until the server has confirmed it."""
        waiting = sum(not flight.begun for flight in self._flights)
        gauges = {"running": len(self._flights) - waiting, "waiting": waiting}
        return {name: float(n) for name, n in {**self._counters, **gauges}.items()}

    async def ready(self) -> None:
        """Wait until the server serves this model; EngineDeadError where it does not, with the end of its log."""
        self._check_alive()
        if self._connecting is None:
            self._connecting = self._spawn(self._connect())
        await asyncio.shield(self._connecting)
        self._check_alive()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`; EngineError: a refusal or an invalid answer."""
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self.max_context)
        await self.ready()
        self._check_sampling(sampling)
        flight = Flight(prompt, sampling)
        self._flights.add(flight)
        self._counters["requests"] += 1
        flight.task = self._spawn(self._fly(flight))
        try:
            return await self._while_alive(asyncio.shield(flight.task))
        except asyncio.CancelledError:
            flight.cancelled = True
            if flight.begun:
                self._withdraw(flight)
            else:
                flight.task.cancel()
            raise

    async def update_weights(self, weights: Weights, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        The tensors must stay unchanged until this returns. Cancelling withdraws an update that has not begun; one that
        has begun continues in the background. EngineError: the server refused, and serves the old weights on; with
        EngineDeadError it failed in the middle, twice, and nothing is ever sampled from the mixture.
        """
        check_mode(mode)
        if not isinstance(weights, Mapping | WeightSource | AdapterSource):
            raise ValueError(f"weights must be a mapping of parameter names to tensors, not {type(weights).__name__}")
        self._check_alive()
        self._pending_updates += 1
        announced = contextlib.ExitStack()
        announced.enter_context(attending(weights))
        try:
            await self.ready()
            async with self._updating:
                if self._work is not None:  # of an update that was cancelled
                    await asyncio.wait([self._work])
                    self._check_alive()
                if version <= self.version:
                    raise ValueError(f"the new version {version} must be greater than {self.version}")
                await asyncio.to_thread(self._updater.check, weights)
                while mode == "wait" and not self._updater.asleep and any(flight.begun for flight in self._flights):
                    self._check_alive()
                    await self._changed.wait()
                self._check_alive()
                self._work = self._spawn(self._apply(weights, version, mode))
                # Cancellation or the server's death ends the waiting, not the work.
                await self._while_alive(asyncio.shield(self._work))
        finally:
            announced.close()
            self._pending_updates -= 1
            self._change()

    async def sleep(self, *, release: bool = True) -> None:
        """Stop computing until :meth:`wake`; requests wait, and those that run start over then.

        ``release`` gives back the memory of weights, keys and values: then new weights must come before it wakes.
        EngineError where the server cannot: on a CPU, or where it was started without its sleep mode.
        """
        await self.ready()
        if release and self._updater.device == "cpu":
            raise EngineError(f"{self.kind} on a CPU gives no memory back; sleep(release=False) stops it computing")
        async with self._updating:
            if not self._updater.asleep:
                for flight in self._flights:
                    flight.interrupted = True
                await self._updater.sleep(release=release)
                self._pending_updates += 1

    async def wake(self) -> None:
        """Undo :meth:`sleep`. EngineError: its weights are gone, and no update came."""
        async with self._updating:
            if self._updater.asleep:
                await self._updater.wake()
                self._pending_updates -= 1
                self._change()

    async def release(self, session: str) -> None:  # noqa: B027
        """See :meth:`trainers.engines.base.Engine.release`; servers keep KV by prefix, and drop it when they must."""

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`. What runs on a foreign server is aborted there."""
        if self._closed:
            return
        self._closed = True
        died = self._end is not None  # then the error names the server's log
        self._finish(EngineDeadError(f"the {self.kind} engine is closed"))
        begun = [(flight, flight.task) for flight in self._flights if flight.begun and flight.task is not None]
        if self._server is None and begun:
            for flight, _ in begun:
                flight.cancelled = True
                self._withdraw(flight)
            await asyncio.wait([task for _, task in begun], timeout=self._health_timeout_s)
        ending = list(self._background)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._server is not None:
            await asyncio.to_thread(self._server.stop, keep_log=died)
        await self._updater.close()
        await self._client.close()

    # One request

    async def _fly(self, flight: Flight) -> Generation:
        sampling, size = flight.sampling, len(flight.prompt)
        stops = () if sampling.ignore_stop else tuple({*self._stop_token_ids, *sampling.stop_token_ids})
        room = min(sampling.max_new_tokens, self.max_context - size)
        tokens: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        cached, reason = 0, None
        try:
            while self._pending_updates or (self._work is not None and not self._work.done()):
                self._check_alive()
                await self._changed.wait()
            self._check_alive()
            flight.begun = True
            while reason is None:
                reply = await self._ask(flight, tokens, stops, room - len(tokens))
                cached = cached if tokens else min(reply.cached_tokens, size - 1)
                tokens += reply.token_ids
                logprobs += reply.logprobs
                versions += map(self._updater.version_of, reply.labels)
                self._counters["generated_tokens"] += len(reply.token_ids)
                reason = self._over(flight, reply, bool(tokens) and tokens[-1] in stops, room - len(tokens))
        finally:
            self._flights.discard(flight)
        self._counters["aborted"] += reason == "abort"
        self._counters["cached_tokens"] += cached
        self._counters["prefill_tokens"] += size - cached
        sampled = np.array(logprobs, np.float32)
        cut = sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0
        return Generation(
            token_ids=np.array(tokens, np.int32),
            logprobs=sampled,
            weight_version=np.array(versions, np.int32),
            finish_reason=reason,
            sampled_logprobs=np.zeros_like(sampled) if sampling.temperature == 0 else None if cut else sampled,
            metrics={"cached_tokens": float(cached)},
        )

    async def _post(self, path: str, body: Callable[[], Any], flight: Flight) -> Any:
        """Return the answer to a request for tokens; retries, with a new ``body``, if a connection broke."""
        for attempt in range(_TRIES):
            try:
                answer = await self._client.request("POST", path, body())
                break
            except UnreachableError as error:
                await self._suspect(error)
                if attempt + 1 == _TRIES or flight.cancelled:
                    raise
        if answer.status in (400, 422):
            raise RequestError(f"the {self.kind} server refuses the request: {error_text(answer.body)}")
        if answer.status != 200:
            kind = UnavailableError if answer.status == 503 else EngineError
            failure = kind(f"the {self.kind} server answered {answer.status}: {error_text(answer.body)}")
            await self._suspect(failure)
            raise failure
        return answer.body

    async def _apply(self, weights: Weights, version: int, mode: UpdateMode) -> None:
        """Apply the part of an update that must not be interrupted."""
        for flight in self._flights:
            flight.may_abort |= mode == "abort"
            flight.interrupted = True
        try:
            await self._updater.apply(weights, version, abort=mode == "abort")
        except MixedWeightsError as error:
            if isinstance(error.__cause__, UnreachableError):
                await self._suspect(error.__cause__)
            self._finish(EngineDeadError(f"the weights of the {self.kind} server are a mixture: {error}"), error)
            self._check_alive()
        except EngineError as error:
            await self._suspect(error)
            raise
        else:
            self.version = version
            self._counters["updates"] += 1

    # The server's health

    @property
    def _name(self) -> str:
        process = "" if self._server is None else f" (process {self._server.pid})"
        return f"the {self.kind} server at {self._client.base_url}{process}"

    @property
    def _tail(self) -> str:
        """The end of its log on separate lines, if this engine started the process."""
        return "" if self._server is None else f"\n{self._server.tail()}"

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(str(self._end)) from self._end.__cause__  # a new one: raising writes into it

    def _finish(self, error: EngineDeadError, cause: BaseException | None = None) -> None:
        """Mark the server as dead, with the first reason; all waiters get it."""
        if self._end is None:
            error.__cause__ = cause or error.__cause__
            self._end = error
        self._ended.set()
        self._change()

    async def _while_alive(self, work: Awaitable[_Result]) -> _Result:
        """Await ``work``, which is cancelled when the server dies first; then raises EngineDeadError."""
        task, ended = asyncio.ensure_future(work), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or task.cancelled():
                self._check_alive()
            return task.result()
        finally:
            ended.cancel()
            task.cancel()

    async def _connect(self) -> None:
        """Wait for the server, read its properties, start to watch it."""
        clock = asyncio.get_running_loop().time
        timeout = self._section.server.start_timeout_s
        deadline = clock() + timeout
        try:
            while True:
                self._check_process("did not start: it")
                try:
                    answer = await self._check_health()
                    break
                except EngineError as error:
                    if clock() > deadline:
                        raise EngineError(f"it was not ready after {timeout:g} s ({error})") from None
                await asyncio.sleep(_TICK_S)
            await self._meet(answer)
            if self._server is None and self._weights is not None:
                await asyncio.to_thread(self._updater.check, self._weights)
                await self._updater.apply(self._weights, self.version, abort=False)
        except EngineDeadError as error:
            self._finish(error)
        except (EngineError, ValueError) as error:
            self._finish(EngineDeadError(f"{self._name}: {error}{self._tail}"), error)
        else:
            self._weights = None
            self._spawn(self._watch())

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        checked, failures = clock(), 0
        try:
            while self._end is None:
                await asyncio.sleep(min(_TICK_S, self.health_interval_s))
                self._check_process("died: it")
                if clock() - checked < self.health_interval_s:
                    continue
                try:
                    await self._check_health()
                    failures = 0
                except EngineError as error:
                    failures += 1
                    self._check_process("died: it")
                    if failures > 1 or refused(error):
                        raise EngineDeadError(f"{self._name} is gone: {error}{self._tail}") from error
                checked = clock()
        except EngineDeadError as error:
            self._finish(error)

    async def _suspect(self, error: BaseException) -> None:
        """Check after a failure whether the server is dead; if it is, raise EngineDeadError."""
        self._check_alive()
        try:
            self._check_process("died: it")
            await self._check_health()
        except EngineError:
            state = "is gone"
            for _ in range(40 if self._server is not None else 0):
                if self._server is not None and self._server.ended is not None:
                    state = f"died: it {self._server.ended}"
                    break
                await asyncio.sleep(0.05)  # a killed process ends a moment after its connections
            self._finish(EngineDeadError(f"{self._name} {state}: {error}{self._tail}"), error)
        self._check_alive()

    async def _check_health(self) -> Any:
        path = self.health_path
        answer = await self._client.request("GET", path, timeout=self._health_timeout_s)
        if answer.status != 200:
            raise EngineError(f"{path} answers {answer.status}: {error_text(answer.body)}")
        return answer.body

    def _check_process(self, what: str) -> None:
        if self._server is not None and (ended := self._server.ended) is not None:
            raise EngineDeadError(f"{self._name} {what} {ended}{self._tail}")

    def _change(self) -> None:
        """Wake all that wait for a change of state; each waiter rechecks."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.create_task(work)
        self._background.add(task)

        def ended(task: asyncio.Task[_Result]) -> None:
            self._background.discard(task)
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio logs no warning; a waiter raises it
            self._change()

        task.add_done_callback(ended)
        return task
