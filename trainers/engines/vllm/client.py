"""vLLM behind the engine protocol: what this process says to the server, and what it makes of the answers.

The server (:mod:`.server`) runs vLLM's ``AsyncLLM`` under a Python of its own and speaks frames (:mod:`.frames`) over a
Unix socket. Requests carry a number, answers the same: ``generate``, ``cancel``, ``update``, ``sleep``, ``wake``;
``done``, ``refused``, ``failed``, and unasked ``stats`` and ``dead``.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from trainers.engines.base import (
    EngineDeadError,
    EngineError,
    Generation,
    RequestError,
    Sampling,
    UpdateMode,
    check_request,
)
from trainers.engines.vllm.frames import Frame, FrameError, read_frame
from trainers.engines.vllm.process import ServerProcess
from trainers.engines.vllm.publish import Payload, Publisher

# The arguments of vLLM that have options of their own, or that the conventions of the protocol decide.
TAKEN = frozenset(
    (
        *("model", "tokenizer", "skip_tokenizer_init", "load_format", "dtype", "quantization", "generation_config"),
        *("max_model_len", "max_num_seqs", "seed", "logprobs_mode", "max_logprobs", "enable_prefix_caching"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "block_size", "enforce_eager", "enable_sleep_mode"),
        *("worker_extension_cls", "weight_transfer_config", "disable_log_stats"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),  # checksums know one worker
    )
)


def start_server(
    model: PreTrainedModel,
    *,
    python: str | None = None,
    max_slots: int = 64,
    max_context: int | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    threads: int | None = None,
    gpu_memory_utilization: float = 0.5,
    kv_cache_gib: float | None = None,
    block_size: int | None = None,
    enforce_eager: bool | None = None,
    sleep_mode: bool = False,
    args: Mapping[str, Any] | None = None,
) -> ServerProcess:
    """Start a server for models like this one. It has no weights yet; :meth:`VLLMEngine.connect` brings them.

    Args:
        model: Its configuration counts.
        python: An interpreter that has vLLM; by default this one.
        max_slots: How many requests run at once; more wait.
        max_context: Prompt and new tokens together; by default what the model has positions for, at most 4096.
        dtype: Of weights and KV; by default the model's.
        seed: Of requests without a seed.
        threads: CPU threads of vLLM's computing process; by default vLLM's own choice.
        gpu_memory_utilization: Share of the GPU's memory; no matter where ``kv_cache_gib`` is given.
        kv_cache_gib: For keys and values; by default what vLLM finds free on a GPU, and 1 on a CPU.
        block_size: Tokens of a block of KV, the unit of prefix reuse; by default vLLM's choice (16 on a GPU, 128 on a
            CPU).
        enforce_eager: Neither compile nor capture graphs; by default on a CPU alone.
        sleep_mode: Let :meth:`VLLMEngine.sleep` give the GPU's memory back; vLLM allocates it in another way then.
        args: More arguments of vLLM's ``AsyncEngineArgs``.

    Raises:
        EngineDeadError: There is no such interpreter.
        ValueError: ``max_context`` is more than the model has positions for, or one of ``args`` is not free to choose.
    """
    positions = model.config.max_position_embeddings
    max_context = min(positions, 4096) if max_context is None else max_context
    if not 2 <= max_context <= positions:
        raise ValueError(f"max_context must be from 2 to the model's {positions}, not {max_context}")
    if taken := sorted(TAKEN & set(args or ())):
        raise ValueError(f"engine.vllm.args.{taken[0]} is decided by other options, or by the engine protocol")
    cpu = not torch.cuda.is_available()
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    env = {}
    if threads is not None:  # then vLLM need not start one more process to set the number
        env = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if cpu:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    memory = kv_cache_gib if kv_cache_gib is not None else (1.0 if cpu else None)
    engine = {
        "model": "model",  # in the server's folder
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "dtype": str(dtype or model.dtype).removeprefix("torch."),
        "max_model_len": max_context,
        "max_num_seqs": max_slots,
        "seed": seed % 2**32,
        "generation_config": "vllm",  # nothing of the model's own habits
        "logprobs_mode": "raw_logprobs",
        "enable_prefix_caching": True,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_cache_memory_bytes": None if memory is None else int(memory * 2**30),
        "block_size": block_size,
        "enforce_eager": cpu if enforce_eager is None else enforce_eager,
        "enable_sleep_mode": sleep_mode,
        "enable_log_requests": False,
        "distributed_executor_backend": "uni" if cpu and threads is not None else None,
        # What is sampled after a part of a prompt is thrown away, and the seed's generator set back, which vLLM 0.32
        # cannot do on a CPU: that ends the engine. So prompts are read whole there.
        **({"enable_chunked_prefill": False, "max_num_batched_tokens": max(4096, max_context)} if cpu else {}),
        **(args or {}),
    }
    given = {name: value for name, value in engine.items() if value is not None}
    return ServerProcess(python, {"version": -1, "engine": given}, config, env)


class VLLMEngine:
    """A client of one server; see :class:`trainers.engines.base.Engine` for the protocol. Made by :meth:`connect`.

    ``session`` changes nothing: vLLM reuses the KV of any request with the same prefix, in whole blocks, and forgets
    the oldest when it needs room. ``sampled_logprobs`` is ``None`` where a cut applies. A weight update lets requests
    that are made after it wait until it is done, in all modes.
    """

    def __init__(
        self,
        server: ServerProcess,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        welcome: Mapping[str, Any],
        model: PreTrainedModel,
        stop_token_ids: Sequence[int],
        version: int,
        owner: bool,
    ) -> None:
        self.vllm_version: str = welcome["vllm"]
        self.block_size: int = welcome["block_size"]
        self._server, self._owner = server, owner
        self._reader, self._writer = streams
        self._vocab_size, self._max_context = int(welcome["vocab_size"]), int(welcome["max_context"])
        self._stop = tuple(stop_token_ids)
        self._publisher = Publisher(model.state_dict(), _dtype_of(welcome), welcome["device"])
        self._version = version
        self._numbers = itertools.count()
        self._waiters: dict[int, asyncio.Future[Frame]] = {}
        self._end: EngineDeadError | None = None
        self._updating = asyncio.Lock()
        self._closed_by = 0  # updates and sleeps that keep new requests out
        self._opened = asyncio.Event()
        self._opened.set()
        self._asleep = False
        self._own = ThreadPoolExecutor(1, "vllm-weights")  # the loop's may be full of environments that hang
        self._told: dict[str, float] = {}
        self._counted = dict.fromkeys(("requests", "generated_tokens", "prefill_tokens", "cached_tokens"), 0)
        self._generating = 0
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def connect(
        cls,
        server: ServerProcess,
        model: PreTrainedModel,
        *,
        stop_token_ids: Sequence[int] = (),
        version: int = 0,
        owner: bool = True,
        timeout: float = 600.0,
    ) -> VLLMEngine:
        """Wait for a server and give it the model's weights.

        Args:
            server: Started for models like this one. It has one client at a time.
            model: Its weights are copied, so training may go on changing it.
            stop_token_ids: Stop tokens of every request, beside its own.
            version: Of the model's weights.
            owner: Stop the server when the engine is closed.
            timeout: Seconds that the server may take to start.

        Raises:
            EngineDeadError: The server did not start; with the end of its log.
        """
        try:
            await server.ready(timeout)
            streams = await asyncio.open_unix_connection(server.socket)
            welcome = await read_frame(streams[0])
            if welcome is None:
                raise EngineDeadError(await asyncio.to_thread(server.obituary))
            engine = cls(server, streams, welcome.header, model, stop_token_ids, version - 1, owner)
        except BaseException:
            if owner:
                server.stop()
            raise
        try:
            check_request(
                [0], Sampling(stop_token_ids=engine._stop), vocab_size=engine._vocab_size, max_context=1 << 30
            )
            await engine.update_weights(model.state_dict(), version)
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def version(self) -> int:
        """The version of the weights that the next token will be computed with."""
        return self._version

    @property
    def max_context(self) -> int:
        """Prompt and new tokens together are at most this."""
        return self._max_context

    @property
    def server(self) -> ServerProcess:
        """Whose client this is."""
        return self._server

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """See :meth:`trainers.engines.base.Engine.generate`."""
        prompt = check_request(token_ids, sampling, vocab_size=self._vocab_size, max_context=self._max_context)
        header = {"op": "generate", "sampling": self._parameters(sampling, len(prompt))}
        self._counted["requests"] += 1
        self._generating += 1
        try:
            while self._end is None and not self._opened.is_set():
                await self._opened.wait()
            answer = await self._ask(Frame(header, {"prompt": prompt}))
        finally:
            self._generating -= 1
        return self._generation(answer, sampling, len(prompt))

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
            EngineError: The server cannot: memory is given back on a GPU with ``sleep_mode=True`` alone.
        """
        async with self._updating:
            if self._asleep:
                return
            self._shut()
            try:
                await self._ask(Frame({"op": "sleep", "level": level}))
            except BaseException:
                self._open()
                raise
            self._asleep = True

    async def wake(self) -> None:
        """Go on after :meth:`sleep`; fine when awake."""
        async with self._updating:
            if self._asleep:
                await self._ask(Frame({"op": "wake"}))
                self._asleep = False
                self._open()

    async def release(self, session: str) -> None:
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

    async def close(self) -> None:
        """See :meth:`trainers.engines.base.Engine.close`; the server is stopped if it belongs to this engine."""
        self._finish("the vLLM engine is closed")
        self._listener.cancel()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._own.shutdown(wait=False)
        if self._owner:
            with ThreadPoolExecutor(1) as own:
                await asyncio.get_running_loop().run_in_executor(own, self._server.stop)
        self._publisher.close()

    # Requests

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
        }

    def _generation(self, answer: Frame, sampling: Sampling, size: int) -> Generation:
        tokens, logprobs = answer.arrays["tokens"], answer.arrays["logprobs"]
        cached = int(answer.header["cached_tokens"])
        self._counted["generated_tokens"] += len(tokens)
        self._counted["cached_tokens"] += cached
        self._counted["prefill_tokens"] += size - cached
        sampled = None
        if sampling.temperature == 0:
            sampled = np.zeros_like(logprobs)
        elif sampling.top_p == 1 and sampling.top_k == 0 and sampling.min_p == 0:
            sampled = logprobs
        return Generation(
            token_ids=tokens,
            logprobs=logprobs,
            weight_version=answer.arrays["versions"],
            finish_reason=answer.header["finish_reason"],
            sampled_logprobs=sampled,
            metrics={"cached_tokens": float(cached), **answer.header.get("times", {})},
        )

    async def _ask(self, frame: Frame) -> Frame:
        """Send a request and wait for its answer; cancelling withdraws it."""
        self._check_alive()
        number = next(self._numbers)
        future = self._waiters[number] = asyncio.get_running_loop().create_future()
        self._send(Frame({**frame.header, "id": number}, frame.arrays))
        try:
            await self._drain()
            return await future
        except asyncio.CancelledError:
            self._send(Frame({"op": "cancel", "id": number}))
            raise
        finally:
            self._waiters.pop(number, None)

    def _send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame.encode())

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # the listener sees that too, and says why
            await self._writer.drain()

    # Weights

    async def _update(self, weights: Any, version: int, mode: str, told: asyncio.Event) -> None:
        async with self._updating:
            if version <= self._version:
                raise ValueError(f"the new version {version} must be greater than {self._version}")
            if self._asleep:
                raise EngineError("the engine sleeps; wake it before it takes new weights")
            loop = asyncio.get_running_loop()
            payload: Payload = await loop.run_in_executor(self._own, self._publisher.prepare, weights, version)
            told.set()
            update = {"payload": payload.message, "version": version, "mode": mode}
            try:
                await self._ask(Frame({"op": "update", "update": update}))
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

    async def _listen(self) -> None:
        reason = ""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                op = frame.header["op"]
                if op == "stats":
                    self._told = frame.header["stats"]
                elif op == "dead":  # it ends then, and its log says more
                    reason = f"the vLLM engine died: {frame.header['error']}\n"
                elif (waiter := self._waiters.get(frame.header["id"])) is not None and not waiter.done():
                    if op == "done":
                        waiter.set_result(frame)
                    else:
                        kind = RequestError if op == "refused" else EngineError
                        waiter.set_exception(kind(f"vLLM: {frame.header['error']}"))
        except FrameError as error:
            reason = f"the vLLM server is broken: {error}\n"
        if self._end is None:
            with ThreadPoolExecutor(1) as own:
                reason += await asyncio.get_running_loop().run_in_executor(own, self._server.obituary)
            self._finish(reason)

    def _finish(self, reason: str) -> None:
        if self._end is None:
            self._end = EngineDeadError(reason)
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(EngineDeadError(str(self._end)))
        self._opened.set()

    def _check_alive(self) -> None:
        if self._end is not None:
            raise EngineDeadError(str(self._end))


def _dtype_of(welcome: Mapping[str, Any]) -> torch.dtype:
    dtype = getattr(torch, welcome["dtype"])
    assert isinstance(dtype, torch.dtype)
    return dtype
