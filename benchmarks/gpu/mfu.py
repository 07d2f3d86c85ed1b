"""Tokens/s and MFU of the learner's updates, packed, in bfloat16, for models of known shapes.

Every token but a sequence's first is an action, so the head is computed everywhere, and the reference, a critic and
log-probabilities beside the update are left out. FLOPs are those of :mod:`trainers.learner.flops`: ``6 N`` a token,
``6 L n_h d S`` for causal attention (half of what is often stated), ``6 V H`` for the head, and nothing for what is
computed twice. An update is timed with the optimizer's step, after one that warms up (and compiles).
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner, update
from benchmarks.gpu.shapes import lengths_of, make_model, sequences

_GUESS_S = {"toy": 0.0, "0.5b": 10.0, "0.6b": 10.0, "1.5b": 15.0, "1.7b": 15.0, "4b": 40.0}
_COMPILING_S = 60.0


def run(job: Job) -> None:
    """Measure all shapes, the plainest settings of each first."""
    settings = sorted(itertools.product(job.sizes.compiled, (False, True)), key=sum)
    for compiled, checkpointing in settings:
        for shape in job.shapes:
            what: dict[str, Any] = {"shape": shape, "gradient_checkpointing": checkpointing, "compile": compiled}
            guess = _GUESS_S[shape] + (_COMPILING_S if compiled else 0.0)
            job.try_to(guess, partial(measure, job, **what), **what)


def measure(job: Job, shape: str, gradient_checkpointing: bool, compile: bool) -> None:
    """Measure one shape with one way to compute."""
    sizes = job.sizes
    lengths = lengths_of(sizes.update, *sizes.lengths)
    learner = make_learner(
        job,
        make_model(shape, job.device),
        "bfloat16",
        sizes.micro,
        {"enable_gradient_checkpointing": gradient_checkpointing, "use_remove_padding": True},
        compile=compile,
        chunk_size=sizes.chunk,
        share_prefixes=False,
    )
    parameters = sum(parameter.numel() for parameter in learner.actor_optimizer.names.values())
    trajectories = sequences(lengths, learner.actor.lm.config.vocab_size)
    started = job.now()
    update(learner, trajectories)
    first = job.now() - started
    job.reset_peak()
    made = [update(learner, trajectories) for _ in range(sizes.updates)]
    job.emit(
        what="update",
        shape=shape,
        parameters=parameters,
        gradient_checkpointing=gradient_checkpointing,
        compile=compile,
        sequences=len(lengths),
        tokens=int(made[0]["tokens"]),
        micro=sizes.micro,
        chunk=sizes.chunk,
        first_s=round(first, 2),
        tokens_per_s=round(statistics.median(metrics["tokens_per_s"] for metrics in made), 1),
        tflops=round(statistics.median(metrics["tflops"] for metrics in made), 3),
        mfu=statistics.median(metrics["mfu"] for metrics in made) if "mfu" in made[0] else None,
        peak_bytes=job.peak(),
    )
