"""Updates of token trees against the same episodes packed row by row, in bfloat16: the Triton kernel on CUDA.

Episodes are forks of one conversation after each of its turns, which share 50, 75 or 90 % of their tokens
(:func:`benchmarks.gpu.shapes.forked`), so the ideal update takes ``unique / total`` of the time. *of ideal* is that
over the measured share: 1 is the ideal. In float32, at toy sizes, the gradient of trees must be that of rows within
1e-4 of its norm.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import distance, gradients, make_learner, update
from benchmarks.gpu.shapes import SHAPES, forked, make_model

SHARINGS = (0.5, 0.75, 0.9)
EXACT = 1e-4
_DEPTH = 3
_GUESS_S = 30.0


def run(job: Job) -> None:
    """Compare the gradients; then measure the times of all shapes."""
    for sharing in SHARINGS:
        job.try_to(0, partial(compare, job, sharing), what="gradient", sharing=sharing)
    for shape in job.shapes:
        for sharing in SHARINGS:
            what: dict[str, Any] = {"what": "update", "shape": shape, "sharing": sharing}
            job.try_to(0 if shape == "toy" else _GUESS_S, partial(measure, job, **what), **what)


def compare(job: Job, sharing: float) -> None:
    """Compare the gradients of trees and of rows, in float32."""
    trajectories = forked(_DEPTH, sharing, 2000, SHAPES["toy"]["vocab_size"])
    both = []
    for trees in (False, True):
        learner = make_learner(job, make_model("toy", job.device), "float32", **_options(job, trees))
        both.append(gradients(learner, trajectories)[0])
    gap = distance(both[1], both[0])
    job.emit(what="gradient", sharing=sharing, gap=gap, good=gap <= EXACT)


def measure(job: Job, what: str, shape: str, sharing: float) -> None:
    """Measure seconds and, on CUDA, peak memory of an update, of rows and of trees."""
    results: dict[str, dict[str, Any]] = {}
    for trees in (False, True):
        learner = make_learner(job, make_model(shape, job.device), "bfloat16", **_options(job, trees))
        trajectories = forked(_DEPTH, sharing, job.sizes.forked, learner.actor.lm.config.vocab_size)
        sizes: list[int] = []
        cut = learner._cut
        learner._cut = lambda units, cut=cut, sizes=sizes: [sizes.append(b.real) or b for b in cut(units)]  # type: ignore[method-assign, func-returns-value]
        update(learner, trajectories)  # which compiles
        tokens = sum(sizes)
        job.reset_peak()
        seconds = []
        for _ in range(job.sizes.updates):
            started = job.now()
            update(learner, trajectories)
            seconds.append(job.now() - started)
        results["trees" if trees else "rows"] = {"tokens": tokens, "s": min(seconds), "peak_bytes": job.peak()}
        del learner, cut
        job.free()
    ideal = results["trees"]["tokens"] / results["rows"]["tokens"]
    job.emit(
        what=what,
        shape=shape,
        sharing=sharing,
        **results,
        of_ideal=ideal * results["rows"]["s"] / results["trees"]["s"],
    )


def _options(job: Job, trees: bool) -> dict[str, Any]:
    sizes = {"max_tokens_per_micro_batch": job.sizes.forked // 8, "chunk_size": job.sizes.chunk}
    return {**sizes, "layout": {"use_remove_padding": True}, "share_prefixes": trees}
