"""The kernel of paged attention on this device: its results, also in a CUDA graph, and its speed by constants.

*paged*: random queries, keys and values, block tables and positions, rows of padding among them, for the shapes of
attention and the types of the part ``engine``. The truth is PyTorch in float64. The kernel may be as far from it as
twice (the greatest difference: four times) what PyTorch is in the same type, and 1e-6. A graph of a call must give the
same bits when it is replayed on other inputs.

*speed*: seconds of a call in a graph, for a model's heads at several numbers of rows and lengths of context, and the
bytes of keys and values that are read a second; with the constants that the library chooses and with others.

On a CPU PyTorch's function stands in for the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.engine import ATTENTION, LIMITS
from benchmarks.gpu.job import Job
from trainers.engines.decoder import SIZE
from trainers.engines.paged_attention import Tuning, launch, paged_attention, paged_attention_reference, plan

_EXACT = 1e-6
_ROWS = 48
_HEADS, _KV_HEADS, _DIM = 14, 2, 64  #: of the shape 0.5b
_CALLS, _REPLAYS = 20, 5
TUNINGS = (
    *(Tuning(keys=64, warps=4, stages=5), Tuning(keys=64, warps=4, stages=3), Tuning(keys=128, warps=4, stages=4)),
    *(Tuning(keys=128, warps=8, stages=3), Tuning(keys=32, warps=4, stages=5), Tuning(keys=64, warps=8, stages=4)),
)


def run(job: Job) -> None:
    """Compare everything, then measure."""
    for case in ATTENTION[:1] + ATTENTION[-2:-1] if job.toy else ATTENTION:
        for dtype in ("float32", "bfloat16") if job.toy else LIMITS:
            what: dict[str, Any] = {"what": "paged", "attention": list(case[1:]), "dtype": dtype}
            job.try_to(0 if job.toy else 4, partial(compare, job, **what), **what)
    for rows, context in ((2, 40),) if job.toy else ((1, 544), (16, 544), (256, 544), (64, 4096)):
        what = {"what": "speed", "rows": rows, "context": context}
        job.try_to(0 if job.toy else 3, partial(speed, job, None, **what), **what)
    for number, tuning in enumerate(() if job.toy else TUNINGS):
        what = {"what": "tuning", "number": number, "rows": 256, "context": 544}
        job.try_to(6, partial(speed, job, tuning, **what), **what)


class Inputs:
    """Random arguments of the kernel, ``width`` blocks a row."""

    def __init__(
        self, job: Job, rows: int, heads: int, kv_heads: int, dim: int, width: int, dtype: torch.dtype, seed: int
    ) -> None:
        generator = torch.Generator(job.device).manual_seed(seed)
        options: dict[str, Any] = {"device": job.device, "generator": generator}
        blocks = rows * width
        self.q = torch.randn(rows, heads, dim, dtype=torch.float32, **options).to(dtype)
        self.cache = torch.randn(blocks * SIZE, 2 * kv_heads, dim, dtype=torch.float32, **options).to(dtype)
        self.table = torch.randperm(blocks, **options).view(rows, width).to(torch.int32)
        self.positions = torch.randint(-1, width * SIZE, (rows,), **options)
        self.scale = dim**-0.5

    def call(self, attend: Callable[..., Tensor], window: int | None, dtype: torch.dtype | None = None) -> Tensor:
        """Return what a function makes of them, computed as ``dtype``."""
        q, cache = (value if dtype is None else value.to(dtype) for value in (self.q, self.cache))
        return attend(q, cache, self.table, self.positions, scale=self.scale, window=window)

    def copy_(self, other: Inputs) -> None:
        """Take over another's values, at the same addresses."""
        for name in ("q", "cache", "table", "positions"):
            getattr(self, name).copy_(getattr(other, name))


def attention_of(job: Job) -> Callable[..., Tensor]:
    """Return the function that decodes on the device, or its stand-in."""
    return paged_attention if job.device.type == "cuda" else paged_attention_reference


def compare(job: Job, what: str, attention: list[Any], dtype: str) -> None:
    """Compare one shape and type, and the graph of a call."""
    heads, kv_heads, dim, window = attention
    attend = attention_of(job)
    kind, width = getattr(torch, dtype), 4 if job.toy else 70
    inputs, second = (Inputs(job, _ROWS, heads, kv_heads, dim, width, kind, seed) for seed in (0, 1))
    truth = inputs.call(paged_attention_reference, window, torch.float64)
    gap = (inputs.call(attend, window).double() - truth).abs()
    rounded = (inputs.call(paged_attention_reference, window).double() - truth).abs()
    limits = [_EXACT + 2 * float(rounded.mean()), _EXACT + 4 * float(rounded.max())]
    result: dict[str, Any] = {"mean_gap": float(gap.mean()), "max_gap": float(gap.max()), "limits": limits}
    good = result["mean_gap"] <= limits[0] and result["max_gap"] <= limits[1]
    if job.device.type == "cuda":
        result["replayed"] = _is_replayed(inputs, second, attend, window)
        good &= result["replayed"]
    job.emit(what=what, attention=attention, dtype=dtype, good=good, **result)


def _is_replayed(inputs: Inputs, second: Inputs, attend: Callable[..., Tensor], window: int | None) -> bool:
    """Return whether a graph, replayed on other inputs, gives what a call gives."""
    expected = second.call(attend, window)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = inputs.call(attend, window)
    inputs.copy_(second)
    graph.replay()
    return torch.equal(out, expected)


def speed(job: Job, tuning: Tuning | None, what: str, rows: int, context: int, number: int | None = None) -> None:
    """Measure a call, with the library's constants or others."""
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    inputs = Inputs(job, rows, _HEADS, _KV_HEADS, _DIM, -(-context // SIZE), dtype, 0)
    inputs.positions.fill_(context - 1)
    if tuning is None:
        seconds = _seconds(job, lambda: inputs.call(attention_of(job), None))
    else:
        width, processors = inputs.table.shape[1] * SIZE, torch.cuda.get_device_properties(0).multi_processor_count
        planned = replace(plan(rows, _KV_HEADS, _DIM, width, None, dtype, processors), tuning=tuning)
        values = inputs.q, inputs.cache, inputs.table, inputs.positions, inputs.scale
        seconds = _seconds(job, lambda: launch(*values, None, planned))
    read = rows * context * 2 * _KV_HEADS * _DIM * dtype.itemsize
    chosen = {} if tuning is None else {"keys": tuning.keys, "warps": tuning.warps, "stages": tuning.stages}
    described = {} if number is None else {"number": number}
    job.emit(
        what=what,
        **described,
        rows=rows,
        context=context,
        us=round(1e6 * seconds, 2),
        bytes_per_s=read / seconds,
        **chosen,
    )


def _seconds(job: Job, call: Callable[[], object]) -> float:
    """Return the seconds of a call; on CUDA in a graph of several, because launching takes longer than computing."""
    call()  # which compiles
    if job.device.type == "cpu":
        began = job.now()
        call()
        return job.now() - began
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            call()
    graph.replay()
    began = job.now()
    for _ in range(_REPLAYS):
        graph.replay()
    return (job.now() - began) / (_CALLS * _REPLAYS)
