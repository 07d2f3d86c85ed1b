"""A vLLM that runs already, as ``vllm serve`` with our worker extension, behind the engine protocol.

:mod:`.control` knows the endpoints, :mod:`.whole` the order of an update, :mod:`.engine` the protocol; this module sees
to it that whoever waits hears of a server that is gone or hangs within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainers.engines.base import EngineDeadError, EngineError, RequestError
from trainers.engines.http import Client, UnreachableError, refused
from trainers.engines.vllm.client import dtype_named
from trainers.engines.vllm.control import Controls
from trainers.engines.vllm.engine import Reply, VLLMBase
from trainers.engines.vllm.publish import Publisher
from trainers.engines.vllm.whole import MixedError, RefusedError, Weights

_Result = TypeVar("_Result")

MIN_TEMPERATURE = 0.01  #: ``vllm serve`` raises lower ones to this, and would report log-probs of that
_TELL_S = 0.5  # between two looks at the server's counters, while requests run
_PROBE_S = 20.0  # that a busy server may take for one token
_TRIES = 3  # of a request whose connection broke while the server lives
_PROBE = {"temperature": 0.0, "max_tokens": 1, "logprobs": 0, "detokenize": False, "ignore_eos": True}


@dataclass(frozen=True)
class ServedOptions:
    """Which server, and how to treat it.

    Args:
        base_url: For example ``http://127.0.0.1:8000``.
        api_key: What the server was started with, if anything.
        transport: How weights travel: ``http`` by value, from any machine; ``local`` to a server on this machine, as
            CUDA IPC handles where they lie on the server's GPU, else through a file.
        update_folder: Where ``local`` writes files: a folder that the server sees under the same name; ``None`` is
            shared memory.
        start_timeout_s: Seconds until the server must be ready.
        health_interval_s: Seconds between two looks at it.
        health_timeout_s: Seconds that such a look may take; the second miss in a row is its end.
        stall_timeout_s: Seconds without a token, while requests run, after which the server must prove that it
            computes.
        update_timeout_s: Seconds for one step of an update.

    Raises:
        ValueError: A number is not positive, or the address is none.
    """

    base_url: str
    api_key: str | None = None
    transport: Literal["http", "local"] = "http"
    update_folder: Path | None = None
    start_timeout_s: float = 600.0
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0
    stall_timeout_s: float = 60.0
    update_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in (n for n in self.__dataclass_fields__ if n.endswith("_s")):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, not {self.base_url!r}")
        if self.update_folder is not None and self.transport != "local":
            raise ValueError("update_folder is where transport=local writes; transport=http writes nowhere")


class ServedVLLM(VLLMBase):
    """A client of a server that somebody else started; see :class:`.engine.VLLMBase`. Made by :meth:`connect`.

    Where it differs from a server of our own:

    * Temperatures above 0 and below 0.01 are refused: the server would raise them.
    * ``stats`` counts tokens of requests that still run up to half a second late.
    * ``metrics`` of a generation have no times: the server does not tell.
    """

    def __init__(
        self,
        options: ServedOptions,
        client: Client,
        controls: Controls,
        described: Mapping[str, Any],
        model: PreTrainedModel,
        max_context: int,
        stop_token_ids: Sequence[int],
        version: int,
    ) -> None:
        local = options.transport == "local"
        super().__init__(
            Publisher(
                model.state_dict(),
                dtype_named(described["dtype"]),
                gpu=described["gpu"] if local else None,
                folder=options.update_folder,
            ),
            vocab_size=int(described["vocab_size"]),
            max_context=max_context,
            stop_token_ids=stop_token_ids,
            version=version,
            gpu=described["gpu"] is not None,
        )
        self.vllm_version: str = described["vllm"]
        self.block_size: int = described["block_size"]
        self._options, self._client, self._controls = options, client, controls
        self._weights = Weights(controls)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._before: dict[str, float] = {}  # the server's counters when this began
        self._ended = 0
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def connect(
        cls,
        options: ServedOptions,
        model: PreTrainedModel,
        *,
        max_context: int,
        stop_token_ids: Sequence[int] = (),
        version: int = 0,
    ) -> ServedVLLM:
        """Wait for a server and give it the model's weights. It has one trainer at a time.

        Args:
            options: Which server.
            model: Its weights are copied, so training may go on changing it.
            max_context: Prompt and new tokens together are at most this; no more than the server's own limit.
            stop_token_ids: Stop tokens of every request, beside its own.
            version: Of the model's weights.

        Raises:
            EngineDeadError: The server was not ready in time, was started without what is needed, or serves something
                else; says what to do.
            ImportError: aiohttp is missing; names the extra.
        """
        client = Client(options.base_url, options.api_key, extra="vllm-client")
        controls = Controls(client, timeout=options.update_timeout_s, upload=options.transport == "http")
        try:
            await _ready(controls, options)
            described = await controls.describe()
            _check(described, model, max_context)
            await controls.begin()
            engine = cls(options, client, controls, described, model, max_context, stop_token_ids, version - 1)
        except BaseException as error:
            await client.close()
            if isinstance(error, RequestError | EngineDeadError) or not isinstance(error, EngineError):
                raise
            raise EngineDeadError(f"the vLLM server at {options.base_url}: {error}") from error
        try:
            await engine.update_weights(model.state_dict(), version)
            await engine._first()
        except BaseException as error:
            await engine.close()
            if isinstance(error, EngineDeadError) or not isinstance(error, EngineError | ValueError):
                raise
            raise EngineDeadError(f"the vLLM server at {options.base_url}: {error}") from error
        return engine

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`. What runs is aborted; the server stays."""
        self._finish("the vLLM engine is closed")
        tasks = [*self._tasks, self._watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()
        self._own.shutdown(wait=False)
        self._publisher.close()

    # How things get to the server

    async def _ask(self, prompt: NDArray[np.int32], parameters: Mapping[str, Any]) -> Reply:
        if 0 < parameters["temperature"] < MIN_TEMPERATURE:
            raise RequestError(
                f"temperature {parameters['temperature']}: vllm serve raises all below {MIN_TEMPERATURE} to that; "
                "0 decodes greedily"
            )
        for attempt in range(_TRIES):
            try:
                return await self._while_alive(self._controls.generate(prompt, parameters))
            except RequestError:
                raise
            except EngineError as error:
                await self._suspect(error)
                if attempt + 1 == _TRIES or not isinstance(error, UnreachableError):
                    raise
            finally:
                self._ended += 1
        raise AssertionError("the last try returns or raises")

    async def _give(self, message: Mapping[str, Any], version: int, mode: str) -> None:
        try:
            sent = await self._while_alive(self._controls.deliver(message))
        except EngineDeadError:
            raise
        except EngineError as error:
            await self._suspect(error)
            raise RequestError(f"the weights did not arrive: {error}") from error
        try:
            await self._while_alive(self._weights.update(sent, version, mode))
        except RefusedError as error:
            raise RequestError(str(error)) from error
        except EngineDeadError:
            raise
        except (MixedError, EngineError) as error:
            await self._suspect(error)
            self._finish(f"the weights of the {self._name()} are not certain: {error}")
            self._check_alive()

    async def _put_to_sleep(self, level: int) -> None:
        await self._or_suspect(lambda: self._controls.sleep(level))

    async def _wake_up(self) -> None:
        await self._or_suspect(self._controls.wake)

    async def _or_suspect(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await self._while_alive(work())
        except EngineError as error:
            await self._suspect(error)
            raise

    async def _while_alive(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do something with the server; the engine's end ends it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        either: set[asyncio.Future[Any]] = {task, self._over}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or task.cancelled():
                self._check_alive()
            return task.result()
        finally:
            task.cancel()  # which closes its connection: the server aborts what nobody waits for

    # The server's life

    async def _first(self) -> None:
        """One token, which shows whether the server can be talked to like this; counters count from here."""
        await self._while_alive(self._controls.generate(np.zeros(1, np.int32), _PROBE))
        self._before = await self._controls.stats(self._options.health_timeout_s)

    async def _watch(self) -> None:
        """Ask how it is now and then, and for its counters while requests run; its end is everybody's."""
        options, clock = self._options, asyncio.get_running_loop().time
        asked = moved = clock()
        missed, seen = 0, (0, 0.0)
        while self._end is None:
            await asyncio.sleep(min(_TELL_S, options.health_interval_s))
            if self._generating:
                with contextlib.suppress(UnreachableError):
                    now = await self._controls.stats(options.health_timeout_s)
                    gauges = ("waiting", "kv_use")
                    self._told = {n: v - (0.0 if n in gauges else self._before.get(n, 0.0)) for n, v in now.items()}
            if clock() - asked >= options.health_interval_s:
                problem, certain = await self._problem()
                missed = missed + 1 if problem else 0
                if certain or missed > 1:
                    self._finish(f"the {self._name()} is gone: {problem}")
                asked = clock()
            progress = (self._ended, self._told.get("generated_tokens", 0.0))
            computes = self._opened.is_set() or self._controls.draining
            if progress != seen or not self._generating or not computes:
                seen, moved = progress, clock()
            elif clock() - moved > options.stall_timeout_s:
                await self._prove(clock() - moved)
                moved = clock()

    async def _prove(self, silent: float) -> None:
        """Have it compute a token; ``/health`` is answered even where nothing computes any more."""
        if self._controls.draining:  # a probe would wait for the update, and that for what makes no token
            self._finish(f"the {self._name()} hangs: no token for {silent:.0f} s, and an update waits for it")
            return
        try:
            async with asyncio.timeout(_PROBE_S + self._options.health_timeout_s):
                await self._while_alive(self._controls.generate(np.zeros(1, np.int32), _PROBE))
        except (TimeoutError, EngineError) as error:
            if self._opened.is_set():  # not while an update stops it
                self._finish(f"the {self._name()} hangs: no token for {silent:.0f} s, and none for a probe ({error!r})")

    async def _problem(self) -> tuple[str, bool]:
        """What is wrong with the server, if anything; and whether there is no doubt about it."""
        try:
            well = await self._controls.healthy(self._options.health_timeout_s)
        except UnreachableError as error:
            return str(error), refused(error)
        return ("", False) if well else ("its engine is dead (/health)", True)

    async def _suspect(self, error: BaseException) -> None:
        """Something failed: find out whether the server is gone, and say so to all if it is."""
        self._check_alive()
        problem, _ = await self._problem()
        if problem:
            self._finish(f"the {self._name()} is gone: {error}; {problem}")
        self._check_alive()

    def _abandon(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _name(self) -> str:
        return f"vLLM server at {self._options.base_url}"


async def _ready(controls: Controls, options: ServedOptions) -> None:
    clock = asyncio.get_running_loop().time
    until = clock() + options.start_timeout_s
    while True:
        try:
            if await controls.healthy(options.health_timeout_s):
                return
            problem = "its engine is not well (/health)"
        except UnreachableError as error:
            problem = str(error)
        if clock() > until:
            raise EngineError(f"it was not ready after {options.start_timeout_s:g} s ({problem})")
        await asyncio.sleep(0.25)


def _check(described: Mapping[str, Any], model: PreTrainedModel, max_context: int) -> None:
    if described["vocab_size"] != model.config.vocab_size:
        raise EngineError(
            f"it serves a model with {described['vocab_size']} tokens, and this one has {model.config.vocab_size}; "
            "start it with a folder of the same model"
        )
    if not 2 <= max_context <= described["max_context"]:
        raise EngineError(
            f"its context is {described['max_context']} tokens, and max_context is {max_context}; start it with "
            f"--max-model-len {max_context}"
        )
