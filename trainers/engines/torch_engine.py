"""The embedded engine: a transformers model with continuous batching, in a thread of this process.

:mod:`.scheduler` decides what a step computes, :mod:`.decoder` computes it and draws; this module is the thread and the
asyncio side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from textenvs.event_loop import run_in_thread
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import (
    DEFAULT_SLOTS,
    EngineDeadError,
    Generation,
    Sampling,
    UpdateMode,
    check_mode,
    check_request,
    check_sizes,
    check_unused,
    default_kv_bytes,
)
from trainers.engines.decoder import SIZE, Decoder, blocks_for, check_supported, is_fused, position_bytes
from trainers.engines.kernels import keep_few_kernels
from trainers.engines.module_decoder import ModuleDecoder
from trainers.engines.scheduler import MakeStatic, Request, Scheduler, Update
from trainers.engines.static_step import StaticStep
from trainers.engines.step_memory import engine_bytes
from trainers.engines.stream import EngineStream
from trainers.engines.transport import AdapterSource, LocalSource, Weights

log = logging.getLogger("textenvs")


class TorchEngine:
    """Serves a transformers model; see :class:`trainers.engines.base.Engine` for the protocol.

    Qwen2, Qwen3 and Llama have a fused forward pass; other decoders, also with sliding windows and mixtures of experts,
    run through transformers' modules, more slowly. Requests beyond ``max_slots`` wait, first come, first served. Blocks
    of 16 tokens that requests and sessions have in common are kept once. A request without a session becomes an idle
    one when it ends. Where memory runs out, idle sessions are forgotten, then requests wait or compute their tokens
    again.

    Args:
        model: Its weights are copied, so training may change it.
        section: Its sizes; a position of ``kv_cache_gib`` takes ``layers * 2 * kv_heads * head_dim`` numbers, and no
            more is taken than ``max_slots`` requests of ``max_context`` need.
        device: Where to compute; by default where the model is.
        dtype: Of weights and KV; by default the model's. Log-probs are computed in float32 in any case.
        stop_token_ids: Stop tokens of every request, beside its own.
        unused_token_ids: Ids that are never sampled, because the tokenizer has no token for them; log-probabilities
            are over the others.
        seed: Of requests without a seed.
        prefill_budget: At most this many prompt tokens a step.
        version: Of the model's weights.
        static: Makes the static steps of a decoder, for so many rows and unused ids; ``None`` for none. By default they
            are CUDA graphs on CUDA, with ``section.cuda_graphs`` and where they can be had (else a warning says why).
        sleep_level: What :meth:`sleep` gives back: 1, keys and values; 2, the weights as well, and requests then wait
            for the next update.

    Raises ``ValueError``: an unsupported model (the message says why), or sizes that do not fit it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        section: TorchEngineSection,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        stop_token_ids: Sequence[int] = (),
        unused_token_ids: Sequence[int] = (),
        seed: int = 0,
        prefill_budget: int = 1024,
        version: int = 0,
        static: MakeStatic | None = None,
        sleep_level: Literal[1, 2] = 1,
    ) -> None:
        check_supported(model.config)
        if prefill_budget < 1:
            raise ValueError(f"prefill_budget must be at least 1, not {prefill_budget}")
        max_slots, max_context, threads = section.max_slots or DEFAULT_SLOTS, section.max_context, section.threads
        check_sizes(model.config, max_context, stop_token_ids)
        check_unused(unused_token_ids, model.config.vocab_size)
        where = torch.device(device) if device is not None else model.device
        if where.type == "cpu":
            keep_few_kernels()
        blocks = _blocks(model.config, section, max_slots, where, dtype or model.dtype)
        if section.cuda_graphs and where.type == "cuda" and static is None:
            static = _cuda_graphs
        self._stream = EngineStream(where)
        kind = Decoder if is_fused(model.config, max_context) else ModuleDecoder
        decoder = kind(model, blocks, max_context, where, dtype, threads)
        self._scheduler = Scheduler(
            decoder,
            max_slots,
            stop_token_ids=tuple(stop_token_ids),
            unused_token_ids=tuple(unused_token_ids),
            prefill_budget=prefill_budget,
            seed=seed,
            version=version,
            static=static,
            stream=self._stream,
        )
        self._vocab_size: int = model.config.vocab_size
        self.max_context = max_context
        self._sleep_level = sleep_level
        self._mailbox = _Mailbox()
        ready = self._stream.mark()
        self._thread = threading.Thread(
            target=_serve,
            args=(self._scheduler, self._mailbox, threads, where, self._stream, ready),
            name="torch-engine",
            daemon=True,
        )
        self._thread.start()
        # The thread must not outlive the engine, nor be in a step when the interpreter exits.
        self._stop = weakref.finalize(self, _stop, self._mailbox, self._thread)

    @property
    def version(self) -> int:
        return self._scheduler.version

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        size = self._vocab_size
        prompt = check_request(token_ids, sampling, vocab_size=size, max_context=self.max_context, reports_kept=True)
        generation: Generation = await self._outcome(Request(prompt, sampling, session))
        return generation

    async def update_weights(self, weights: Weights, version: int, mode: UpdateMode = "keep") -> None:
        """See :meth:`trainers.engines.base.Engine.update_weights`.

        Between two steps each tensor is cast into the memory of the old one, or merged with its adapter on the way:
        there is never a second model. They must stay unchanged until this returns; on CUDA, what computes them must
        have been launched on the calling thread's current stream. Cancelling withdraws an update that has not been
        applied. SupersededError: they no longer exist, because their learner has taken a step.
        """
        check_mode(mode)
        if not isinstance(weights, Mapping | LocalSource | AdapterSource):
            raise ValueError(f"weights must be a mapping of parameter names to tensors, not {type(weights).__name__}")
        mark = self._stream.mark()

        def add(scheduler: Scheduler, update: Request | Update) -> None:
            self._stream.wait(mark)
            scheduler.add(update)

        await self._outcome(Update(weights, version, mode), add)

    async def release(self, session: str) -> None:
        with contextlib.suppress(EngineDeadError):  # nothing is kept any more
            self._mailbox.post(lambda scheduler: scheduler.release(session))

    async def sleep(self) -> None:
        """Release memory (see ``sleep_level``); the next step allocates it again, and requests recompute their KV."""
        mailbox, weights, item = self._mailbox, self._sleep_level == 2, _Sleep()

        def free(scheduler: Scheduler) -> None:
            scheduler.free_memory(weights=weights)
            mailbox.settle([(item, None)])

        with contextlib.suppress(EngineDeadError):  # nothing is kept any more
            await asyncio.wrap_future(mailbox.post(free, item))

    async def wake(self) -> None:
        """Undo :meth:`sleep`: nothing to do."""

    def stats(self) -> dict[str, float]:
        """Return counters since the start (see the scheduler), and the gauges of running and waiting requests."""
        return {name: float(n) for name, n in {**self._scheduler.counters, **self._scheduler.gauges()}.items()}

    async def close(self) -> None:
        await run_in_thread(self._stop)

    async def _outcome(
        self, item: Request | Update, add: Callable[[Scheduler, Request | Update], None] = Scheduler.add
    ) -> Any:
        future = self._mailbox.post(lambda scheduler: add(scheduler, item), item)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._mailbox.withdraw(item)
            raise


class _Sleep:
    """One call of ``sleep``, by identity."""


_Item = Request | Update | _Sleep


class _Mailbox:
    """The queue between event loops and the engine's thread: commands in, outcomes out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._commands: list[Callable[[Scheduler], None]] = []
        self._futures: dict[_Item, Future[Any]] = {}
        self._end: EngineDeadError | None = None

    def post(self, command: Callable[[Scheduler], None], item: _Item | None = None) -> Future[Any]:
        """Queue a command for the thread; the future has ``item``'s outcome. EngineDeadError when closed or dead."""
        future: Future[Any] = Future()
        with self._changed:
            if self._end is not None:
                raise EngineDeadError(str(self._end)) from self._end.__cause__
            if item is not None:
                self._futures[item] = future
            self._commands.append(command)
            self._changed.notify()
        return future

    def withdraw(self, item: Request | Update) -> None:
        with self._changed:
            if self._futures.pop(item, None) is not None and self._end is None:
                self._commands.append(lambda scheduler: scheduler.cancel(item))
                self._changed.notify()

    def collect(self, wait: bool) -> list[Callable[[Scheduler], None]] | None:
        """Return the queued commands; sleeps until there are some if ``wait``; ``None`` when the engine has ended."""
        with self._changed:
            while wait and not self._commands and self._end is None:
                self._changed.wait()
            if self._end is not None:
                return None
            commands, self._commands = self._commands, []
            return commands

    def settle(self, outcomes: Sequence[tuple[_Item, Generation | BaseException | None]]) -> None:
        with self._changed:
            settled = [(self._futures.pop(item, None), outcome) for item, outcome in outcomes]
        for future, outcome in settled:
            if future is None or not future.set_running_or_notify_cancel():
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    def end(self, reason: str, cause: BaseException | None = None) -> None:
        """Refuse new commands and fail all pending ones. Only the first reason counts."""
        with self._changed:
            if self._end is None:
                self._end = EngineDeadError(reason)
                self._end.__cause__ = cause
            outcomes = []
            for item in self._futures:
                error = EngineDeadError(str(self._end))  # one for each: raising writes a traceback into it
                error.__cause__ = self._end.__cause__
                outcomes.append((item, error))
            self._changed.notify()
        self.settle(outcomes)


def _blocks(config: Any, section: TorchEngineSection, slots: int, device: torch.device, dtype: torch.dtype) -> int:
    """Return the number of blocks: as many as requests can use, or as fit in the memory."""
    size, least = position_bytes(config, dtype) * SIZE, blocks_for(section.max_context)
    if section.kv_cache_bytes is None:
        gpu = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        steps = engine_bytes(slots, config.vocab_size, "whole", graphs=section.cuda_graphs)  # requests may ask for any
        room = max(default_kv_bytes(gpu, steps) // size, least)
    else:
        room = section.kv_cache_bytes // size
    if room < least:
        raise ValueError(
            f"kv_cache_gib={section.kv_cache_gib:g} has room for {room * SIZE} positions, and one request may have "
            f"max_context={section.max_context}; give at least {math.ceil(least * size / 2**30 * 1e6) / 1e6:g}"
        )
    return min(room, slots * least)


def _cuda_graphs(decoder: Decoder, rows: int, unused: Tensor | None) -> StaticStep | None:
    try:
        return StaticStep(decoder, rows, unused)
    except ValueError as reason:
        log.warning("engine.cuda_graphs: steps are computed without graphs, which is slower: %s", reason)
        return None


def _serve(
    scheduler: Scheduler,
    mailbox: _Mailbox,
    threads: int | None,
    device: torch.device,
    stream: EngineStream,
    ready: torch.cuda.Event | None,
) -> None:
    """Run the engine's thread: take commands, step, deliver outcomes; sleep without work.

    ``ready`` marks that the scheduler's tensors are there.
    """
    try:
        if device.type == "cuda" and device.index is not None:  # else pinned memory takes a context on the first GPU
            torch.cuda.set_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        stream.wait(ready)
        with stream.use(), torch.inference_mode():
            while (commands := mailbox.collect(wait=not scheduler.has_work)) is not None:
                for command in commands:
                    command(scheduler)
                mailbox.settle(scheduler.step())
    except BaseException as error:  # all waiters must get the error
        mailbox.end(f"the torch engine died: {type(error).__name__}: {error}", error)
    finally:
        with contextlib.suppress(RuntimeError):  # of the GPU: its steps have failed before
            stream.finish()


def _stop(mailbox: _Mailbox, thread: threading.Thread) -> None:
    mailbox.end("the torch engine is closed")
    thread.join()
