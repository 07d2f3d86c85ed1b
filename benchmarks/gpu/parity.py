"""Parity of the learner's layouts: rows padded and packed, token trees, head in chunks and whole.

In float32, where a GPU attends to packed sequences through a mask, losses and log-probabilities must be within 1e-4 and
gradients within 1e-4 of the whole gradient's norm: sums in another order, nothing else.

In bfloat16, where a GPU attends to packed sequences with its variable-length kernel, every layout rounds in its own
way. What is right is known from float32, so a layout may be as far from that as twice the padded one (plus the
tolerance of float32). A wrong mask, a wrong position or a neighbour's tokens are off by far more.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import Tensor

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import distance, gradients, make_learner
from benchmarks.gpu.shapes import SHAPES, forked, lengths_of, make_model, sequences, sharpened

EXACT = 1e-4
_DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
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
        job.try_to(0 if shape == "toy" else 20, partial(layouts, job, shape), what="layouts", shape=shape)


def layouts(job: Job, shape: str) -> None:
    """Compare losses, gradients and log-probabilities of all layouts, in both precisions."""
    size = job.sizes.micro // 4
    vocabulary = SHAPES[shape].get("vocab_size", 151_936)
    trajectories = sequences(lengths_of(2 * size, max(2, size // 32), size // 2), vocabulary)
    trajectories += forked(3, 0.5, size, vocabulary, leaves=4)
    # Where random weights give logits near 0, wrong attention would hardly show: the attention is sharpened.
    model = sharpened(make_model(shape, job.device))

    def score(dtype: Literal["float32", "bfloat16"], layout: str) -> tuple[Any, dict[str, Tensor], float]:
        settings = {"chunk_size": job.sizes.chunk, **_LAYOUTS[layout]}
        learner = make_learner(job, model, dtype, max_tokens_per_micro_batch=size, **settings)
        return np.concatenate(learner.logprobs(trajectories)), *gradients(learner, trajectories)

    def gaps_of(dtype: Literal["float32", "bfloat16"], layout: str) -> dict[str, float]:
        logprobs, gradient, loss = score(dtype, layout)
        return {
            "logprobs": float(np.abs(logprobs - exact[0]).mean()),
            "logprobs_max": float(np.abs(logprobs - exact[0]).max()),
            "gradients": distance(gradient, exact[1]),
            "loss": abs(loss - exact[2]),
        }

    def measure(dtype: Literal["float32", "bfloat16"], layout: str, what: dict[str, str]) -> None:
        gaps = gaps_of(dtype, layout)
        limits = {name: EXACT + (2 * gap if dtype == "bfloat16" else 0.0) for name, gap in rounded.items()}
        job.emit(**what, good=all(gap <= limits[name] for name, gap in gaps.items()), gaps=gaps)

    exact = score("float32", "padded")
    rounded = gaps_of("bfloat16", "padded")
    for dtype, layout in itertools.product(_DTYPES, _LAYOUTS):
        if layout != "padded":
            what = {"what": "layout", "shape": shape, "dtype": dtype, "layout": layout}
            job.try_to(0, partial(measure, dtype, layout, what), **what)
