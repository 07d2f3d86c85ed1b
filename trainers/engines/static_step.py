"""Decoding steps with static shapes: one token of each of 1, 2, 4, 8, ... rows, which a CUDA graph holds as a whole.

A step of a small model is hundreds of kernels of a few microseconds, and launching them one by one takes longer than
computing them. A graph launches all at once. It repeats the same kernels on the same memory, so all that changes from
step to step is written into its inputs before, and the number of rows is rounded up: rows of *padding* have the
position -1, and write where nobody reads.

A step does not wait for the host either. The token that a row draws stays on the device, where its next step finds it
(:attr:`StaticStep.last`), and the scheduler reads the draws of a step while the next is under way.

On a CPU the same functions run one by one; the tests do that.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.engines.decoder import Decoder, Paged, blocks_for, staged, to_device
from trainers.engines.paged_attention import load_kernel, paged_attention, paged_attention_reference
from trainers.engines.sampling import Drawn, Draws, Kind, Report, Survivors, device_uniforms, sample

log = logging.getLogger("textenvs")

#: Captures a function that reads and writes the same memory every time, and returns what runs it again.
Capture = Callable[[Callable[[], None]], Callable[[], None]]

# A graph for each would be too many: all greedy; without cuts; with cuts; and all that there is, which keeps a number
# for each row and token. Other parts change no row.
_GREEDY, _PLAIN, _CUT, _WHOLE = (
    Kind(False, True, False, False, False),
    Kind(True, True, True, False, False),
    Kind(True, True, True, True, False),
    Kind(),
)
_INTEGERS = ("row", "known", "position", "cell", "seed", "top_k")
_FLOATS = ("temperature", "top_p", "min_p", "filler")  # two of them take the place of an integer
_TABLE_STEP = 8  # columns of the table are copied in multiples of it


_CAPTURING = threading.Lock()  # one engine of this process captures at a time


@dataclass(eq=False)
class _Buffers:
    """Inputs and outputs of the steps of ``size`` rows; the addresses stay."""

    size: int
    numbers: Tensor  # int64 [8, size]: _INTEGERS, and _FLOATS as float32
    table: Tensor  # int32 [size, blocks of a row]
    tokens: Tensor  # int64 [size]
    logprobs: Tensor  # float32 [2, size]: over the full vocabulary, and as sampled
    survivors: Survivors | None = None  # of the steps that report
    steps: dict[Kind, Callable[[], None]] = field(default_factory=dict)


class StaticStep:
    """Decoding steps of at most ``rows`` rows of a decoder.

    ``unused`` are the ids that are never sampled. ``capture`` makes a step repeatable; by default a CUDA graph on CUDA.

    Raises ``ValueError``: this decoder's steps cannot be computed so; the message says why, and what helps.
    """

    def __init__(
        self, decoder: Decoder, rows: int, unused: Tensor | None = None, capture: Capture | None = None
    ) -> None:
        self._decoder, self._unused = decoder, unused
        self._device, self._most = decoder.device, rows
        cuda = self._device.type == "cuda"
        if cuda:
            _check_kernel(decoder.dtype)
        self._attention = paged_attention if cuda else paged_attention_reference
        self._capture = capture or (_Graphs(self._device) if cuda else _run_again)
        self._memory_version = decoder.memory_version
        #: From the largest down: ``rows``, and the powers of two below.
        self._sizes = [rows, *(1 << bits for bits in reversed(range((rows - 1).bit_length())))]
        self._buffers: dict[int, _Buffers] = {}
        self._captured: set[Kind] = set()
        #: int64 ``[rows + 1]``: the token that each row drew last; padding uses the last place.
        self.last = torch.zeros(rows + 1, dtype=torch.int64, device=self._device)

    def prepare(self, kind: Kind) -> bool:
        """Capture the steps of this kind, if they were not yet; false, with a warning: they cannot be captured.

        After that there can be no more steps, and the caller reads those that are under way, then calls :meth:`free`.

        All sizes at once, the largest first, as vLLM and SGLang do when they start: smaller ones then fit in the memory
        of the largest, and no step waits for a capture in the middle of a batch that shrinks, which needs nearly all
        sizes anyway. Not when the engine starts: only requests say which kinds they need, and sleep voids the graphs.
        """
        if self._memory_version != self._decoder.memory_version:
            self.free()
            self._memory_version = self._decoder.memory_version
        if (kind := _rounded(kind)) in self._captured:
            return True
        self._decoder.allocate_cache()  # not while capturing: it must not be the graphs' memory
        for size in self._sizes:
            buffers = self._buffers_for(size)
            self._fill(buffers, {}, np.zeros((0, 0), np.int64))  # a step is run before it is captured: on padding alone
            try:
                buffers.steps[kind] = self._capture(partial(self._compute, buffers, kind))
            except Exception as error:
                log.warning(
                    "engine.cuda_graphs: the decoding step of %d rows could not be captured (%s: %s). Steps are "
                    "computed without graphs, which is slower; engine.cuda_graphs=false does so from the start",
                    *(size, type(error).__name__, error),
                )
                return False
        self._captured.add(kind)
        return True

    def launch(
        self,
        rows: NDArray[np.int64],
        known: NDArray[np.int64],
        positions: NDArray[np.int64],
        cells: NDArray[np.int64],
        table: NDArray[np.int64],
        draws: NDArray[np.void],
    ) -> Drawn:
        """Launch a step that was prepared.

        Args:
            rows: ``[n]``, each row once.
            known: ``[n]``, the token to compute; -1 is the one that the row drew last.
            positions: ``[n]``, where it stands.
            cells: ``[n]``, where its keys and values go.
            table: ``[n, blocks]``, the blocks of each row, as many as the longest needs.
            draws: :data:`~trainers.engines.sampling.ROW` ``[n]``, how to draw the token behind it.
        """
        count, kind = len(rows), _rounded(Kind.of(draws))
        buffers = self._buffers_for(count)
        columns = {"row": rows, "known": known, "position": positions, "cell": cells}
        self._fill(buffers, columns | {name: draws[name] for name in draws.dtype.names or ()}, table)
        buffers.steps[kind]()
        report = Report(buffers.survivors if kind.reports else None, draws, cut_only=False)
        return Drawn(buffers.tokens[:count], buffers.logprobs[0, :count], buffers.logprobs[1, :count], report)

    def remember(self, rows: NDArray[np.int64], tokens: Tensor) -> None:
        """Take over tokens that other steps drew for these rows; int64 ``[n]`` on the device."""
        self.last.index_copy_(0, to_device(rows, self._device), tokens)

    def free(self) -> None:
        """Release the memory of all graphs, none of which may be running."""
        self._buffers.clear()
        self._captured.clear()
        if isinstance(self._capture, _Graphs):
            self._capture.free()

    def _buffers_for(self, count: int) -> _Buffers:
        size = min(1 << (count - 1).bit_length(), self._most)
        if size not in self._buffers:
            blocks, device = blocks_for(self._decoder.max_context), self._device
            self._buffers[size] = _Buffers(
                size,
                torch.zeros((len(_INTEGERS) + len(_FLOATS) // 2, size), dtype=torch.int64, device=device),
                torch.zeros((size, blocks), dtype=torch.int32, device=device),
                torch.zeros(size, dtype=torch.int64, device=device),
                torch.zeros((2, size), dtype=torch.float32, device=device),
            )
        return self._buffers[size]

    def _fill(self, buffers: _Buffers, columns: dict[str, NDArray[np.generic]], table: NDArray[np.int64]) -> None:
        """Write the inputs; rows behind those of the columns are padding."""
        numbers = np.zeros(buffers.numbers.shape, np.int64)
        numbers[0], numbers[2], numbers[3] = self._most, -1, self._decoder.spare_cell
        floats = numbers[len(_INTEGERS) :].view(np.float32).reshape(len(_FLOATS), -1)
        for name, column in columns.items():
            if name in _INTEGERS:
                numbers[_INTEGERS.index(name), : len(column)] = column.view(np.int64)
            elif name in _FLOATS:
                floats[_FLOATS.index(name), : len(column)] = column
        buffers.numbers.copy_(staged(numbers, self._device), non_blocking=True)
        if table.size:
            width = min(-(-table.shape[1] // _TABLE_STEP) * _TABLE_STEP, buffers.table.shape[1])
            part = np.zeros((len(table), width), np.int32)
            part[:, : table.shape[1]] = table
            buffers.table[: len(table), :width].copy_(staged(part, self._device), non_blocking=True)

    def _compute(self, buffers: _Buffers, kind: Kind) -> None:
        row, known, position, cell, seed, top_k = buffers.numbers[: len(_INTEGERS)].unbind()
        floats = buffers.numbers[len(_INTEGERS) :].view(torch.float32).view(len(_FLOATS), -1)
        tokens = torch.where(known < 0, self.last.index_select(0, row), known)
        attention = Paged(self._attention, buffers.table, position)
        logits = self._decoder.row_logits(tokens, position, cell, attention)
        if self._unused is not None:
            logits.index_fill_(1, self._unused, -torch.inf)
        uniform = device_uniforms(seed, position + 1)
        sampled = sample(logits, Draws(floats[0], floats[1], floats[2], top_k), uniform, kind)
        self.last.index_copy_(0, row, sampled.tokens)
        buffers.tokens.copy_(sampled.tokens)
        torch.stack([sampled.logprobs, sampled.cut_logprobs], out=buffers.logprobs)
        if sampled.survivors is not None:
            buffers.survivors = sampled.survivors


class _Graphs:
    """Captures steps as CUDA graphs, which share their memory: one runs at a time, and leaves nothing for another.

    The thread's current stream captures them, and replays them later; it must not be the default stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        with _CAPTURING, torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            step()  # kernels are compiled, and libraries make their plans, before the capture
            # Not torch.cuda.graph: it waits for all that runs on the GPU, and empties the caches of other threads. They
            # may use the GPU meanwhile: a learner does.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                self._give_up(graph)
                raise
            graph.capture_end()
        return graph.replay

    def _give_up(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed, also for the allocator: in torch 2.11 it would go on there."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        index = torch.cuda.current_device()
        for end in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            with contextlib.suppress(RuntimeError):  # newer ones have done it
                getattr(torch._C, end)(index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()

    def free(self) -> None:
        """Return the memory of the graphs, which no longer exist, to the device: other allocations cannot use it."""
        self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self._device):
            torch.cuda.empty_cache()


def _run_again(step: Callable[[], None]) -> Callable[[], None]:
    step()
    return step


def _rounded(kind: Kind) -> Kind:
    """Return the first kind of steps that has all these parts."""
    if kind.cut:
        return _WHOLE if kind.reports else _CUT
    return _PLAIN if kind.random else _GREEDY


def _check_kernel(dtype: torch.dtype) -> None:
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"its kernel takes bfloat16, float16 and float32, not {dtype}")
    try:
        load_kernel()
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
