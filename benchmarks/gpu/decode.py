"""The embedded engine's decoding against its roofline, at several batch sizes.

Two runs of the same requests differ in their numbers of new tokens, and only the difference of their times counts: no
prefill, no start. The roofline of a step of ``B`` requests with ``c`` tokens of context is

    max((W + B c k) / bandwidth, (2 N B + 4 L n_h d c B) / arithmetic)

with ``W`` the bytes of all matrices and norms that a step reads (the embedding table only as the head, where it is
that), ``k`` those of the keys and values of a token, ``N`` the number of matrix parameters. Bandwidth (bytes read plus
bytes written, of a copy) and arithmetic (a square bfloat16 product) are measured on the device itself, just before.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.shapes import make_model
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Engine, Sampling
from trainers.engines.torch_engine import TorchEngine


def run(job: Job) -> None:
    """Measure all shapes and all batch sizes, the smallest model first."""
    rates = bandwidth(job), arithmetic(job)
    job.emit(what="device", bytes_per_s=rates[0], flops=rates[1])
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    for shape in job.shapes:

        def measure(shape: str = shape) -> None:
            model = make_model(shape, job.device).to(dtype)  # type: ignore[arg-type]
            for batch in job.sizes.batches:
                what = {"what": "decode", "shape": shape, "batch": batch}
                job.try_to(
                    8 if shape != "toy" else 0,
                    lambda batch=batch, what=what: decode(job, model, dtype, batch, rates, what),
                    **what,
                )

        job.try_to(8 if shape != "toy" else 0, measure, what="decode", shape=shape)


def decode(
    job: Job, model: Any, dtype: torch.dtype, batch: int, rates: tuple[float, float], what: dict[str, Any]
) -> None:
    few, many = job.sizes.new
    prompt = job.sizes.prompt
    seconds = asyncio.run(_timed(job, model, dtype, batch))
    context = prompt + (few + many) / 2
    step = (seconds[1] - seconds[0]) / (many - few)
    ideal = roofline(model, dtype, batch, context, *rates)
    job.emit(
        **what,
        prompt=prompt,
        new=[few, many],
        step_ms=round(1e3 * step, 3),
        tokens_per_s=round(batch / step, 1),
        roofline_tokens_per_s=round(batch / ideal, 1),
        of_roofline=ideal / step,
    )


async def _timed(job: Job, model: Any, dtype: torch.dtype, batch: int) -> list[float]:
    section = TorchEngineSection(max_slots=batch, max_context=job.sizes.prompt + job.sizes.new[1])
    engine = TorchEngine(model, section, device=job.device, dtype=dtype, prefill_budget=8192)
    try:
        return await timed(job, engine, model.config.vocab_size, batch)
    finally:
        await engine.close()


async def timed(job: Job, engine: Engine, vocabulary: int, batch: int) -> list[float]:
    """Return the seconds of the run of few and of the run of many tokens; the better of two each, after a warm-up."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, vocabulary, (batch, job.sizes.prompt)).tolist()

    async def once(new: int) -> float:
        sampling = Sampling(max_new_tokens=new, ignore_stop=True)
        started = job.now()
        replies = await asyncio.gather(*(engine.generate(tokens, sampling) for tokens in prompts))
        assert all(len(reply.token_ids) == new for reply in replies)
        return job.now() - started

    await once(job.sizes.new[0])
    return [min([await once(new) for _ in range(2)]) for new in job.sizes.new]


def roofline(model: Any, dtype: torch.dtype, batch: int, context: float, bytes_per_s: float, flops: float) -> float:
    """Return the seconds that a step must take; see the module."""
    config = model.config
    size = dtype.itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    tied = config.tie_word_embeddings
    read = [
        parameter
        for name, parameter in model.named_parameters()
        if tied or "embed_tokens" not in name  # a table is not read, but for a few rows
    ]
    weights = size * sum(parameter.numel() for parameter in read)
    matrices = sum(parameter.numel() for parameter in read if parameter.ndim == 2)
    kv = size * config.num_hidden_layers * 2 * config.num_key_value_heads * head_dim
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * head_dim * context
    memory = (weights + batch * context * kv) / bytes_per_s
    return max(memory, batch * (2 * matrices + attention) / flops)


def bandwidth(job: Job) -> float:
    """Return the bytes read plus bytes written per second, of a large copy; the best of ten."""
    source = torch.zeros(job.sizes.buffer, dtype=torch.uint8, device=job.device)
    target = torch.empty_like(source)
    return 2 * job.sizes.buffer / _best(job, lambda: target.copy_(source))


def arithmetic(job: Job) -> float:
    """Return the FLOP/s of a square product of random numbers (zeros would be faster); the best of ten."""
    size = job.sizes.matrix
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=job.device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / _best(job, lambda: torch.mm(a, b))


def _best(job: Job, work: Any) -> float:
    work()
    times = []
    for _ in range(10):
        started = job.now()
        work()
        times.append(job.now() - started)
    return min(times)
