"""Updates with parameters and optimizer state in main memory (``trainer.offload``), against those on the GPU.

*off_gpu* is the share of the bytes of master weights and moments that the GPU does not hold between updates. Both
kinds of update must give the same loss, and are timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner, update
from benchmarks.gpu.shapes import lengths_of, make_model, sequences

_CLOSE = 1e-2


def run(job: Job) -> None:
    """Measure the first shape."""
    what = {"what": "offload", "shape": job.shapes[0]}
    if job.device.type == "cpu":
        job.cannot("there is no GPU whose memory could be given back", **what)
        return
    job.try_to(25, partial(measure, job, **what), **what)


def measure(job: Job, what: str, shape: str) -> None:
    """Measure both kinds of update."""
    sizes, sides = job.sizes, dict[str, dict[str, Any]]()
    for name in ("on the GPU", "offloaded"):
        learner = make_learner(
            job,
            make_model(shape, job.device),
            "bfloat16",
            sizes.micro,
            {"enable_gradient_checkpointing": True, "use_remove_padding": True},
            offload=name == "offloaded",
            chunk_size=sizes.chunk,
            share_prefixes=False,
        )
        trajectories = sequences(lengths_of(sizes.update // 2, *sizes.lengths), learner.actor.lm.config.vocab_size)
        first = update(learner, trajectories)
        job.free()
        held = job.reset_peak()
        made = update(learner, trajectories)
        sides[name] = {
            "loss": first["loss"],
            "tokens_per_s": round(made["tokens_per_s"], 1),
            "held_bytes": held,
            "peak_bytes": job.peak(),
        }
        states = 12 * sum(parameter.numel() for parameter in learner.actor_optimizer.names.values())
        del learner
        job.free()
    resident, away = sides["on the GPU"], sides["offloaded"]
    job.emit(
        what=what,
        shape=shape,
        good=abs(resident["loss"] - away["loss"]) <= _CLOSE,
        off_gpu=round((resident["held_bytes"] - away["held_bytes"]) / states, 3),
        sides=sides,
    )
