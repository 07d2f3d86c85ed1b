"""Parity of all layouts: rows padded and packed, token trees, head in chunks and whole, engine.

In float32, where a GPU attends to packed sequences through a mask, losses and log-probabilities must be within 1e-4 and
gradients within 1e-4 of the whole gradient's norm: sums in another order, nothing else.

In bfloat16, where a GPU attends to packed sequences with its variable-length kernel, every layout rounds in its own
way. What is right is known from float32, so a layout may be as far from that as twice the padded one (plus the
tolerance of float32). A wrong mask, a wrong position or a neighbour's tokens are off by far more.

The engine's log-probabilities of the tokens that it sampled against the learner's of the same tokens: within 1e-3 in
float32; in bfloat16 0.05 on average and 0.5 at most.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import distance, gradients, make_learner
from benchmarks.gpu.shapes import SHAPES, forked, from_tokens, lengths_of, make_model, sequences
from trainers.config.engine import TorchEngineSection
from trainers.engines.base import Generation, Sampling
from trainers.engines.torch_engine import TorchEngine

EXACT = 1e-4
#: Mean and largest difference.
ENGINE: dict[Literal["float32", "bfloat16"], tuple[float, float]] = {"float32": (1e-3, 1e-3), "bfloat16": (0.05, 0.5)}
_CHECKPOINTING = {"enable_gradient_checkpointing": True}
_LAYOUTS: dict[str, dict[str, Any]] = {
    "padded": {"share_prefixes": False},
    "packed": {"layout": {"use_remove_padding": True}, "share_prefixes": False},
    "trees": {},
    "padded, whole head": {"chunk_size": 10**9, "share_prefixes": False},
    "packed, checkpointing": {"layout": {"use_remove_padding": True, **_CHECKPOINTING}, "share_prefixes": False},
    "trees, checkpointing": {"layout": _CHECKPOINTING},
}


def run(job: Job) -> None:
    """Compare everything; good is what is within its tolerance."""
    for shape in ("toy", *(name for name in job.shapes[:1] if name != "toy")):
        for name, part in (("engine", against_engine), ("layout", layouts)):
            guess = 0 if shape == "toy" else 20
            job.try_to(guess, partial(part, job, shape), what=name, shape=shape)


def layouts(job: Job, shape: str) -> None:
    """Compare losses, gradients and log-probabilities of all layouts, in both precisions."""
    size = job.sizes.micro // 4
    vocabulary = SHAPES[shape].get("vocab_size", 151_936)
    trajectories = sequences(lengths_of(2 * size, max(2, size // 32), size // 2), vocabulary)
    trajectories += forked(3, 0.5, size, vocabulary, leaves=4)
    # Where random weights give logits near 0, wrong attention would hardly show: the attention is sharpened.
    model = sharpened(make_model(shape, job.device))
    exact: dict[str, Any] = {}
    padded_gaps: dict[str, float] = {}

    def measure(dtype: Literal["float32", "bfloat16"], layout: str) -> None:
        settings = {"chunk_size": job.sizes.chunk, **_LAYOUTS[layout]}
        learner = make_learner(job, model, dtype, max_tokens_per_micro_batch=size, **settings)
        logprobs = np.concatenate(learner.logprobs(trajectories))
        gradient, loss = gradients(learner, trajectories)
        if not exact and dtype == "float32":
            exact.update(logprobs=logprobs, gradients=gradient, loss=loss)
            return
        gaps = {
            "logprobs": float(np.abs(logprobs - exact["logprobs"]).mean()),
            "logprobs_max": float(np.abs(logprobs - exact["logprobs"]).max()),
            "gradients": distance(gradient, exact["gradients"]),
            "loss": abs(loss - exact["loss"]),
        }
        if dtype == "bfloat16" and layout == "padded":
            padded_gaps.update(gaps)
            limits = dict.fromkeys(gaps, float("inf"))
        else:
            limits = {name: EXACT + 2 * padded_gaps.get(name, 0.0) for name in gaps}
        good = all(gap <= limits[name] for name, gap in gaps.items())
        job.emit(what="layout", shape=shape, dtype=dtype, layout=layout, good=good, gaps=gaps)

    for dtype, layout in itertools.product(ENGINE, _LAYOUTS):
        what = {"what": "layout", "shape": shape, "dtype": dtype, "layout": layout}
        job.try_to(0, partial(measure, dtype, layout), **what)


@torch.no_grad()
def sharpened(model: Any) -> Any:
    """Enlarge query and key projections, so that attention matters."""
    for name, parameter in model.named_parameters():
        if "q_proj.weight" in name or "k_proj.weight" in name:
            parameter.mul_(4.0)
        elif "embed_tokens" in name:
            parameter.mul_(2.0)
    return model


def against_engine(job: Job, shape: str) -> None:
    """Compare log-probabilities of sampled tokens by the engine that sampled them with the learner's."""
    model = sharpened(make_model(shape, job.device))
    for dtype, (mean_limit, limit) in ENGINE.items():
        sampled = asyncio.run(_sample(job, model, getattr(torch, dtype)))
        learner = make_learner(job, model, dtype, max_tokens_per_micro_batch=job.sizes.micro // 4)
        learned = np.concatenate(
            learner.logprobs([from_tokens(np.concatenate([p, g.token_ids]), len(p)) for p, g in sampled])
        )
        gap = np.abs(learned - np.concatenate([generation.logprobs for _, generation in sampled]))
        good = bool(gap.mean() <= mean_limit and gap.max() <= limit)
        job.emit(
            what="engine", shape=shape, dtype=dtype, good=good, mean_gap=float(gap.mean()), max_gap=float(gap.max())
        )
        del learner
        job.free()


async def _sample(job: Job, model: Any, dtype: torch.dtype) -> list[tuple[np.ndarray, Generation]]:
    rng = np.random.default_rng(0)
    new = job.sizes.new[1]
    prompts = [
        rng.integers(0, model.config.vocab_size, int(size)).astype(np.int32)
        for size in rng.integers(1, job.sizes.prompt + 1, 16)
    ]
    engine = TorchEngine(
        model, TorchEngineSection(max_slots=16, max_context=job.sizes.prompt + new), device=job.device, dtype=dtype
    )
    try:
        sampling = Sampling(max_new_tokens=new, ignore_stop=True)
        made = await asyncio.gather(*(engine.generate(prompt.tolist(), sampling) for prompt in prompts))
    finally:
        await engine.close()
    return list(zip(prompts, made, strict=True))
