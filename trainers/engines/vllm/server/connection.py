"""One client's connection: frames in, frames out. What is asked is described in :mod:`trainers.engines.vllm.client`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from trainers.engines.vllm.frames import Frame, read_frame
from trainers.engines.vllm.server.statistics import Statistics
from trainers.engines.vllm.whole import MixedError, RefusedError, Weights

TELL_S = 0.05  #: how often a client hears of the counters, while they change


class Connection:
    """Serves one client until it goes; what it asked for is then aborted.

    Args:
        engine: vLLM.
        weights: Its weights.
        statistics: Its counters.
        died: Set with the reason when the engine cannot go on.
        name: Distinguishes the requests of this client.
    """

    def __init__(
        self, engine: AsyncLLM, weights: Weights, statistics: Statistics, died: asyncio.Future[str], name: str
    ) -> None:
        self._engine, self._weights, self._statistics = engine, weights, statistics
        self._died, self._name = died, name
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._from = dict(statistics.counters)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Frame) -> None:
        """Read frames and answer, until the client closes."""
        self._writer = writer
        self._send(welcome)
        teller = asyncio.create_task(self._tell())
        try:
            while (frame := await read_frame(reader)) is not None:
                number = frame.header["id"]
                if frame.header["op"] == "cancel":
                    if task := self._tasks.get(number):
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(number, frame))
                self._tasks[number] = task
                task.add_done_callback(partial(self._forget, number))
                await writer.drain()
        finally:
            teller.cancel()
            tasks = [*self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(teller, *tasks, return_exceptions=True)
            writer.close()

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)

    async def _answer(self, number: int, frame: Frame) -> None:
        op = frame.header["op"]
        try:
            if op == "generate":
                answer = await self._generate(number, frame)
            elif op == "update":
                await self._uninterrupted(self._weights.update(**frame.header["update"]))
                answer = Frame({})
            elif op == "sleep":
                await self._uninterrupted(self._sleep(frame.header["level"]))
                answer = Frame({})
            elif op == "wake":
                await self._uninterrupted(self._engine.wake_up())
                answer = Frame({})
            else:
                raise ValueError(f"unknown request {op!r}")
            self._send(Frame({**answer.header, "op": "done", "id": number}, answer.arrays))
        except asyncio.CancelledError:
            raise
        except (EngineDeadError, MixedError) as error:
            self._die(f"{type(error).__name__}: {error}")
        except Exception as error:
            kind = "refused" if isinstance(error, RefusedError | VLLMClientError) else "failed"
            self._send(Frame({"op": kind, "id": number, "error": f"{error or type(error).__name__}"}))

    async def _sleep(self, level: int) -> None:
        try:
            await self._engine.sleep(level, mode="keep")
        except Exception:  # vLLM pauses before it finds out that it cannot
            await self._engine.resume_generation()
            raise

    async def _uninterrupted(self, work: Any) -> None:
        """A change of the whole engine goes on when the client that asked for it does not wait for it any more."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task})
            if task.exception() is not None and not isinstance(task.exception(), RefusedError):
                self._die(str(task.exception()))
            raise

    async def _generate(self, number: int, frame: Frame) -> Frame:
        parameters = SamplingParams(
            **frame.header["sampling"],
            flat_logprobs=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = tokens_input(frame.arrays["prompt"].tolist())
        final: RequestOutput | None = None
        async for output in self._engine.generate(prompt, parameters, f"{self._name}-{number}"):
            final = output
        assert final is not None
        return _answer_of(final)

    async def _tell(self) -> None:
        told: Mapping[str, float] = {}
        while True:
            since = {name: count - self._from[name] for name, count in self._statistics.counters.items()}
            now = {**since, **self._statistics.gauges}
            if now != told:
                self._send(Frame({"op": "stats", "stats": now}))
                told = now
            await asyncio.sleep(TELL_S)

    def _die(self, reason: str) -> None:
        self._send(Frame({"op": "dead", "error": reason}))
        with contextlib.suppress(asyncio.InvalidStateError):
            self._died.set_result(reason)

    def _send(self, frame: Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame.encode())


def _answer_of(output: RequestOutput) -> Frame:
    """A finished request as a frame."""
    (made,) = output.outputs
    count = len(made.token_ids)
    logprobs = np.asarray(made.logprobs.logprobs if count else (), np.float32)  # type: ignore[union-attr]
    versions = np.zeros(count, np.int32)
    for span in made.weight_versions or ():
        versions[span.start : span.end] = int(span.version)
    header: dict[str, Any] = {"finish_reason": made.finish_reason, "cached_tokens": output.num_cached_tokens or 0}
    if (times := output.metrics) is not None and times.first_token_ts and times.scheduled_ts:
        header["times"] = {
            "queue_s": times.scheduled_ts - times.queued_ts,
            "prefill_s": times.first_token_ts - times.scheduled_ts,
            "decode_s": times.last_token_ts - times.first_token_ts,
        }
    return Frame(header, {"tokens": np.asarray(made.token_ids, np.int32), "logprobs": logprobs, "versions": versions})
