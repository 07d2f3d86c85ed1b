"""Tokens/s and MFU of the learner's updates, packed, in bfloat16; host synchronisations; a published configuration.

*update*: models of known shapes. Every token but a sequence's first is an action, so the head is computed everywhere,
and the reference, a critic and log-probabilities beside the update are left out. FLOPs are those of
:mod:`trainers.learner.flops`: ``6 N`` a token, ``6 L n_h d S`` for causal attention (half of what is often stated),
``6 V H`` for the head, and nothing for what is computed twice. An update is timed with the optimizer's step, after one
that warms up (and compiles).

*syncs*: the synchronising operations that PyTorch reports (``torch.cuda.set_sync_debug_mode``) in an update of one
micro-batch and in one of three; half of the difference is what each micro-batch adds, which must be none.

*published*: what prime-rl publishes for Qwen3-0.6B on an H100 (``benchmarks/baselines`` of its repository, 2026-01-15):
two micro-batches of one sequence of 16,384 tokens, all layers recomputed and compiled, full parameters, with the
optimizer's step: 11,896 tokens/s, MFU 11.1 %, 12.5 GiB. Its MFU counts all of attention's scores and takes the width
of a head as ``hidden / heads`` (64, not 128); ``mfu_as_published`` does so, too.
"""

from __future__ import annotations

import itertools
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner, update
from benchmarks.gpu.results import ROOT
from benchmarks.gpu.shapes import lengths_of, make_model, sequences

_GUESS_S = {"toy": 0.0, "0.5b": 8.0, "0.6b": 10.0, "1.5b": 12.0, "1.7b": 15.0, "4b": 40.0}
_COMPILING_S = 40.0
_SYNC = "called a synchronizing CUDA operation"
_LAYERS, _HEADS, _HIDDEN = 28, 16, 1024  #: of Qwen3-0.6B, for the published formula


def run(job: Job) -> None:
    """Measure all shapes, the plainest settings of each first."""
    what: dict[str, Any] = {"what": "syncs", "shape": job.shapes[0]}
    job.try_to(_GUESS_S[job.shapes[0]], partial(syncs, job, **what), **what)
    settings = sorted(itertools.product(job.sizes.compiled, (False, True)), key=sum)
    for compiled, checkpointing in settings:
        if compiled and not checkpointing:
            what = {"what": "published", "shape": "toy" if job.toy else "0.6b"}
            job.try_to(0 if job.toy else 50, partial(published, job, compile=True, **what), **what)
        for shape in job.shapes:
            what = {"what": "update", "shape": shape, "gradient_checkpointing": checkpointing, "compile": compiled}
            guess = _GUESS_S[shape] + (_COMPILING_S if compiled else 0.0)
            job.try_to(guess, partial(measure, job, **what), **what)
    if job.toy:
        what = {"what": "published", "shape": "toy"}
        job.try_to(0, partial(published, job, compile=False, **what), **what)


def measure(job: Job, what: str, shape: str, gradient_checkpointing: bool, compile: bool) -> None:
    """Measure one shape with one way to compute."""
    lengths = lengths_of(job.sizes.update, *job.sizes.lengths)
    figures = _timed(job, shape, lengths, job.sizes.micro, gradient_checkpointing, compile)
    job.emit(what=what, shape=shape, gradient_checkpointing=gradient_checkpointing, compile=compile, **figures)


def published(job: Job, what: str, shape: str, *, compile: bool) -> None:
    """Measure the published configuration."""
    size = job.sizes.published
    figures = _timed(job, shape, [size, size], size, True, compile)
    peak = figures["tflops"] / figures["mfu"] if figures["mfu"] else None
    matrices = figures["matrices"]
    rate = (6 * matrices + 12 * _LAYERS * _HEADS * (_HIDDEN // _HEADS) * size) * figures["tokens_per_s"] / 1e12
    as_published = None if peak is None else round(rate / peak, 4)
    job.emit(what=what, shape=shape, compile=compile, **figures, mfu_as_published=as_published)


def _timed(job: Job, shape: str, lengths: list[int], micro: int, checkpointing: bool, compile: bool) -> dict[str, Any]:
    sizes = job.sizes
    learner = make_learner(
        job,
        make_model(shape, job.device),
        "bfloat16",
        micro,
        {"enable_gradient_checkpointing": checkpointing, "use_remove_padding": True},
        compile=compile,
        chunk_size=sizes.chunk,
        share_prefixes=False,
    )
    parameters = learner.actor_optimizer.names.values()
    trajectories = sequences(lengths, learner.actor.lm.config.vocab_size)
    started = job.now()
    update(learner, trajectories)
    first = job.now() - started
    job.reset_peak()
    made = [update(learner, trajectories) for _ in range(sizes.updates)]
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "matrices": sum(parameter.numel() for parameter in parameters if parameter.ndim == 2),
        "sequences": len(lengths),
        "tokens": int(made[0]["tokens"]),
        "micro": micro,
        "chunk": sizes.chunk,
        "first_s": round(first, 2),
        "tokens_per_s": round(statistics.median(metrics["tokens_per_s"] for metrics in made), 1),
        "tflops": round(statistics.median(metrics["tflops"] for metrics in made), 3),
        "mfu": statistics.median(metrics["mfu"] for metrics in made) if "mfu" in made[0] else None,
        "peak_bytes": job.peak(),
    }


def syncs(job: Job, what: str, shape: str) -> None:
    """Count the synchronisations that a micro-batch adds, and name the lines that they are reported at."""
    micro = max(job.sizes.lengths[1], job.sizes.micro // 2)
    learner = make_learner(
        job,
        make_model(shape, job.device),
        "bfloat16",
        micro,
        {"use_remove_padding": True},
        chunk_size=job.sizes.chunk,
        share_prefixes=False,
    )
    counts = []
    for micro_batches in (1, 3):
        # Lengths of their own: what is kept for equal lengths must not hide a synchronisation.
        trajectories = sequences(
            [micro - number for number in range(micro_batches)], learner.actor.lm.config.vocab_size
        )
        update(learner, trajectories)
        with _reported(job) as lines:
            update(learner, trajectories)
        counts.append(lines)
    added = counts[1] - counts[0]
    added_each = added.total() / 2
    job.emit(
        what=what,
        shape=shape,
        per_micro_batch=added_each,
        lines=dict(added.most_common(8)),
        whole=counts[0].total(),
        good=not added_each,
    )


@contextmanager
def _reported(job: Job) -> Iterator[Counter[str]]:
    """Yield a counter of the lines that PyTorch reports a synchronisation at, filled in at the end."""
    lines = Counter[str]()
    cuda = job.device.type == "cuda"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if cuda:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lines
        finally:
            if cuda:
                torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if _SYNC in str(warning.message):
            file = Path(warning.filename)
            name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file.name
            lines[f"{name}:{warning.lineno}"] += 1
