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
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from trainers.engines.base import EngineDeadError, EngineError, RequestError
from trainers.engines.vllm.arguments import refused_arguments
from trainers.engines.vllm.engine import Reply, VLLMBase
from trainers.engines.vllm.frames import Frame, FrameError, read_frame
from trainers.engines.vllm.process import ServerProcess
from trainers.engines.vllm.publish import Publisher


def start_server(
    model: PreTrainedModel,
    *,
    python: str | None = None,
    max_slots: int = 64,
    max_context: int | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    threads: int | None = None,
    gpu: int | None = None,
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
        gpu: Which of the GPUs that this process sees, modulo their number; ``None`` is the first.
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
    for name, reason in refused_arguments(args or {}).items():
        raise ValueError(f"engine.vllm.args.{name}: {reason}")
    cpu = not torch.cuda.is_available()
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    env = {}
    if threads is not None:  # then vLLM need not start one more process to set the number
        env = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        if cpu:
            env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not cpu:  # CUDA IPC handles are pickled; nobody but this process reaches the server's socket
        env["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if gpu is not None and not cpu:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
        env["CUDA_VISIBLE_DEVICES"] = seen.split(",")[gpu % torch.cuda.device_count()]
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


class VLLMEngine(VLLMBase):
    """A client of one server that was started for it; see :class:`.engine.VLLMBase`. Made by :meth:`connect`."""

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
        super().__init__(
            Publisher(model.state_dict(), dtype_named(welcome["dtype"]), gpu=welcome["gpu"]),
            vocab_size=int(welcome["vocab_size"]),
            max_context=int(welcome["max_context"]),
            stop_token_ids=stop_token_ids,
            version=version,
            gpu=welcome["gpu"] is not None,
        )
        self.vllm_version: str = welcome["vllm"]
        self.block_size: int = welcome["block_size"]
        self._server, self._owner = server, owner
        self._reader, self._writer = streams
        self._numbers = itertools.count()
        self._waiters: dict[int, asyncio.Future[Frame]] = {}
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
            await engine.update_weights(model.state_dict(), version)
        except BaseException:
            await engine.close()
            raise
        return engine

    @property
    def server(self) -> ServerProcess:
        """Whose client this is."""
        return self._server

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

    # How things get to the server

    async def _ask(self, prompt: NDArray[np.int32], parameters: Mapping[str, Any]) -> Reply:
        answer = await self._exchange(Frame({"op": "generate", "sampling": parameters}, {"prompt": prompt}))
        return Reply(
            token_ids=answer.arrays["tokens"],
            logprobs=answer.arrays["logprobs"],
            weight_version=answer.arrays["versions"],
            finish_reason=answer.header["finish_reason"],
            cached_tokens=int(answer.header["cached_tokens"]),
            metrics=answer.header.get("times", {}),
        )

    async def _give(self, message: Mapping[str, Any], version: int, mode: str) -> None:
        update = {"payload": message, "version": version, "mode": mode}
        await self._exchange(Frame({"op": "update", "update": update}))

    async def _put_to_sleep(self, level: int) -> None:
        await self._exchange(Frame({"op": "sleep", "level": level}))

    async def _wake_up(self) -> None:
        await self._exchange(Frame({"op": "wake"}))

    async def _exchange(self, frame: Frame) -> Frame:
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

    def _abandon(self) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(EngineDeadError(str(self._end)))


def dtype_named(name: str) -> torch.dtype:
    """The type that vLLM calls by this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
