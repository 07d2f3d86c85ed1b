"""The embedded engine on this device: with CUDA graphs against without, its attention, its log-probabilities.

*graphs*: the same requests, of different lengths, greedy and sampled, some of which are cancelled, are played by two
engines, one with ``engine.cuda_graphs`` and one without; then again after an update, and once more after sleep and
another update. Each request must get the same tokens but for near ties: log-probabilities of the tokens that both have,
up to the first difference, must be within the limits of :data:`LIMITS`, and in float32 19 of 20 requests must be equal.
The engine must have computed steps as graphs, which it counts (``static_steps``). On a CPU the same steps run without a
graph.

*reference*: the log-probabilities of sampled tokens against transformers' forward pass of the same model in float32,
for shapes of attention with all kinds of groups of heads, head sizes, windows and context lengths around multiples of
a block.

*learner*: the same against the learner, whose kernels are others, also for a model of many layers.

Rounding alone decides how far these may differ: 1e-3 and twice (the greatest difference: four times) what transformers'
forward pass differs by itself: in float32 between its two kernels of attention, in 16 bits from float32.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner
from benchmarks.gpu.shapes import from_tokens, make_model, sharpened
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Generation, Sampling
from trainers.engines.decoder import SIZE
from trainers.engines.static_step import StaticStep
from trainers.engines.torch_engine import TorchEngine

#: By type: mean and greatest difference of log-probabilities with and without graphs.
LIMITS = {"float32": (1e-3, 1e-3), "float16": (0.01, 0.2), "bfloat16": (0.05, 0.5)}
_EQUAL = 0.95  # of the requests, in float32
_EXACT = 1e-3
#: Family, heads, heads of keys and values, size of a head, sliding window.
ATTENTION = [
    ("qwen2", 4, 2, 16, None),
    ("llama", 8, 8, 64, None),
    ("llama", 9, 3, 64, None),
    ("qwen2", 14, 2, 64, None),
    ("qwen3", 16, 8, 128, None),
    ("qwen2", 12, 2, 128, None),
    ("qwen3", 32, 8, 128, None),
    ("llama", 8, 1, 96, None),
    ("llama", 4, 4, 256, None),
    ("qwen2", 4, 2, 64, 24),
    ("qwen3", 16, 4, 128, 100),
]
_REQUESTS = 24


def run(job: Job) -> None:
    """Compare everything; good is what is within its limits."""
    large = [name for name in job.shapes[:1] if name != "toy"]
    for shape in ("toy", *large):
        for dtype in ("float32", "bfloat16"):
            what: dict[str, Any] = {"what": "graphs", "shape": shape, "dtype": dtype}
            job.try_to(0 if shape == "toy" else 15, partial(graphs, job, **what), **what)
    for case in ATTENTION[:1] + ATTENTION[-2:-1] if job.toy else ATTENTION:
        for dtype in ("float32", "bfloat16") if job.toy else LIMITS:
            what = {"what": "reference", "attention": list(case), "dtype": dtype}
            job.try_to(0 if job.toy else 2, partial(against_transformers, job, **what), **what)
    for shape in ("toy", *large):
        for dtype in ("float32", "bfloat16"):
            what = {"what": "learner", "shape": shape, "dtype": dtype}
            job.try_to(0 if shape == "toy" else 15, partial(against_learner, job, **what), **what)


# ------------------ graphs


def graphs(job: Job, what: str, shape: str, dtype: str) -> None:
    """Play the same requests with and without graphs."""
    described = {"what": what, "shape": shape, "dtype": dtype}
    models: list[Any] = [make_model(shape, job.device, seed=seed) for seed in range(3)]
    if shape == "toy":  # many sharp layers would amplify rounding
        models = [sharpened(model) for model in models]
    (plain, _), (graph, steps) = (asyncio.run(_rounds(job, models, dtype, graphs=switch)) for switch in (False, True))
    pairs = list(zip(plain, graph, strict=True))
    gaps = np.concatenate([_common_gap(*pair) for pair in pairs])
    equal = float(np.mean([np.array_equal(plain.token_ids, graph.token_ids) for plain, graph in pairs]))
    mean, greatest = LIMITS[dtype]
    good = gaps.mean() <= mean and gaps.max() <= greatest and (dtype != "float32" or equal >= _EQUAL)
    good &= steps > 0  # else it went on without graphs, and was compared with itself
    job.emit(
        **described,
        good=bool(good),
        requests=len(pairs),
        static_steps=steps,
        equal=equal,
        mean_gap=float(gaps.mean()),
        max_gap=float(gaps.max()),
    )


def _common_gap(plain: Generation, graph: Generation) -> np.ndarray:
    """Return the differences of log-probabilities up to the first token that differs."""
    different = np.flatnonzero(plain.token_ids != graph.token_ids)
    size = different[0] if len(different) else len(plain.token_ids)
    return np.abs(plain.logprobs[:size] - graph.logprobs[:size]) if size else np.zeros(1)


async def _rounds(job: Job, models: list[Any], dtype: str, *, graphs: bool) -> tuple[list[Generation], float]:
    """Return all replies, and the number of static steps."""
    context = job.sizes.prompt + job.sizes.new[1]
    section = TorchEngineSection(max_slots=_REQUESTS // 2, max_context=context, cuda_graphs=graphs)
    kind, static = getattr(torch, dtype), StaticStep if graphs and job.device.type == "cpu" else None
    engine = TorchEngine(models[0], section, device=job.device, dtype=kind, static=static, sleep_level=2)
    try:
        replies = await _round(job, engine, models[0], 0)
        await engine.update_weights(models[1].state_dict(), 1)
        replies += await _round(job, engine, models[0], 1)
        await engine.sleep()
        await engine.update_weights(models[2].state_dict(), 2)
        replies += await _round(job, engine, models[0], 2)
        return replies, engine.stats()["static_steps"]
    finally:
        await engine.close()


async def _round(job: Job, engine: TorchEngine, model: Any, number: int) -> list[Generation]:
    """Play requests that begin and end at different steps; a quarter more is cancelled."""
    rng = np.random.default_rng(number)
    ways: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.9}]
    prompts = [
        rng.integers(0, model.config.vocab_size, int(size)).tolist()
        for size in rng.integers(1, job.sizes.prompt + 1, _REQUESTS)
    ]
    lengths = rng.integers(1, job.sizes.new[1] + 1, _REQUESTS)
    tasks = [
        asyncio.ensure_future(
            engine.generate(
                prompt,
                Sampling(max_new_tokens=int(length), ignore_stop=True, seed=place, **ways[place % len(ways)]),
                f"{number}-{place}",
            )
        )
        for place, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    forever = Sampling(max_new_tokens=job.sizes.new[1], ignore_stop=True)
    cancelled = [asyncio.ensure_future(engine.generate(prompt, forever)) for prompt in prompts[: _REQUESTS // 4]]
    first, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert first
    for task in cancelled:
        task.cancel()
    replies = await asyncio.gather(*tasks)
    for task in cancelled:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return list(replies)


# ------------------ against other forward passes


def against_transformers(job: Job, what: str, attention: list[Any], dtype: str) -> None:
    """Compare one shape of attention with transformers' forward pass."""
    family, heads, kv_heads, size, window = attention
    overrides: dict[str, Any] = {} if family == "qwen2" else {"head_dim": size}
    if window is not None:
        overrides |= {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    shape = {"family": family, "heads": heads, "kv_heads": kv_heads, "hidden": heads * size, "intermediate": 64}
    model = sharpened(make_model("toy", job.device, **shape, **overrides))
    longest = 40 if job.toy else 1500
    lengths = [size for size in (1, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 100, 257, 1000, longest) if size <= longest]
    sampled = asyncio.run(_sample(job, model, getattr(torch, dtype), lengths, job.sizes.new[1]))
    exact = _forward(model, sampled)
    gap = np.abs(np.concatenate([reply.logprobs for _, reply in sampled]) - exact)
    limits = _limits(model, sampled, exact, dtype)
    job.emit(what=what, attention=list(attention), dtype=dtype, **_within(gap, limits))


def _limits(model: Any, sampled: list[tuple[np.ndarray, Generation]], exact: np.ndarray, dtype: str) -> list[float]:
    """Return the limits of the mean and the greatest difference; changes the model."""
    if dtype == "float32":
        model.set_attn_implementation("eager")
    rounded = np.abs(_forward(model.to(getattr(torch, dtype)), sampled) - exact)
    return [_EXACT + 2 * float(rounded.mean()), _EXACT + 4 * float(rounded.max())]


def _within(gap: np.ndarray, limits: list[float]) -> dict[str, Any]:
    gaps = {"mean_gap": float(gap.mean()), "max_gap": float(gap.max())}
    return {"good": gaps["mean_gap"] <= limits[0] and gaps["max_gap"] <= limits[1], **gaps, "limits": limits}


@torch.inference_mode()
def _forward(model: Any, sampled: list[tuple[np.ndarray, Generation]]) -> np.ndarray:
    scores = []
    for prompt, reply in sampled:
        tokens = torch.from_numpy(np.concatenate([prompt, reply.token_ids])).long().to(model.device)
        logits = model(tokens[None, :-1]).logits[0, len(prompt) - 1 :].float()
        scores.append(logits.log_softmax(-1).gather(1, tokens[len(prompt) :, None])[:, 0].cpu().numpy())
    return np.concatenate(scores)


def against_learner(job: Job, what: str, shape: str, dtype: str) -> None:
    """Compare log-probabilities of sampled tokens with the learner's."""
    model = sharpened(make_model(shape, job.device))
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, job.sizes.prompt + 1, 16).tolist()
    sampled = asyncio.run(_sample(job, model, getattr(torch, dtype), lengths, job.sizes.new[1]))
    learner = make_learner(job, model, dtype, max_tokens_per_micro_batch=job.sizes.micro // 4)  # type: ignore[arg-type]
    learned = np.concatenate(
        learner.logprobs([from_tokens(np.concatenate([p, g.token_ids]), len(p)) for p, g in sampled])
    )
    del learner
    job.free()
    gap = np.abs(learned - np.concatenate([generation.logprobs for _, generation in sampled]))
    limits = _limits(model, sampled, _forward(model, sampled), dtype)
    job.emit(what=what, shape=shape, dtype=dtype, **_within(gap, limits))


async def _sample(
    job: Job, model: Any, dtype: torch.dtype, lengths: list[int], new: int
) -> list[tuple[np.ndarray, Generation]]:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.config.vocab_size, size).astype(np.int32) for size in lengths]
    section = TorchEngineSection(max_slots=len(lengths), max_context=max(lengths) + new)
    engine = TorchEngine(model, section, device=job.device, dtype=dtype)
    try:
        sampling = Sampling(max_new_tokens=new, ignore_stop=True)
        made = await asyncio.gather(*(engine.generate(prompt.tolist(), sampling) for prompt in prompts))
    finally:
        await engine.close()
    return list(zip(prompts, made, strict=True))
