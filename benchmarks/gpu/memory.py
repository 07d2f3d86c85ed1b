"""Peak memory of the head and of a whole update: logits in chunks, all at once, and through torch's autograd.

Peaks are ``torch.cuda.max_memory_allocated``, less the memory before; on the CPU, where torch does not count it,
they are null and the parts only run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.job import Job
from benchmarks.gpu.learners import make_learner, update
from benchmarks.gpu.shapes import SHAPES, make_model, sequences
from trainers.learner.logprobs import token_logprobs

Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def run(job: Job) -> None:
    """Measure the head alone, and updates of each shape."""
    ways = {"in chunks": job.sizes.chunk, "all at once": 10**9}
    heads: dict[str, Head] = {way: partial(token_logprobs, chunk_size=chunk) for way, chunk in ways.items()}
    heads["through autograd"] = plain_head
    for shape in job.shapes:
        for way, head in heads.items():
            what = {"what": "head", "shape": shape, "logits": way}
            job.try_to(2, partial(head_alone, job, head, what), **what)
        for way, chunk in ways.items():
            what = {"what": "update", "shape": shape, "logits": way}
            job.try_to(10, partial(whole_update, job, chunk, what), **what)


def plain_head(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute float32 log-probabilities of everything, by autograd: the naive way."""
    log_p = (hidden @ weight.T).float().log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def head_alone(job: Job, head: Head, what: dict[str, str]) -> None:
    """Measure forward and backward of the head on the positions of one micro-batch."""
    shape, count = SHAPES[what["shape"]], job.sizes.micro
    vocabulary = shape.get("vocab_size", 151_936)
    dtype = torch.bfloat16 if job.device.type == "cuda" else torch.float32
    options = {"device": job.device, "dtype": dtype}
    hidden = torch.randn(count, shape["hidden"], **options).requires_grad_()
    weight = (torch.randn(vocabulary, shape["hidden"], **options) * shape["hidden"] ** -0.5).requires_grad_()
    targets = torch.randint(vocabulary, (count,), device=job.device)
    before = job.reset_peak()
    logprobs, entropy = head(hidden, weight, targets)
    (logprobs.mean() + 1e-3 * entropy.mean()).backward()
    job.emit(**what, positions=count, vocabulary=vocabulary, peak_bytes=job.peak(before))


def whole_update(job: Job, chunk: int, what: dict[str, str]) -> None:
    """Measure one micro-batch's update, with the optimizer's states allocated before."""
    learner = make_learner(
        job,
        make_model(what["shape"], job.device),
        "bfloat16",
        job.sizes.micro,
        {"enable_gradient_checkpointing": True, "use_remove_padding": True},
        chunk_size=chunk,
        share_prefixes=False,
    )
    longest = job.sizes.lengths[1]
    trajectories = sequences([longest] * (job.sizes.micro // longest), learner.actor.lm.config.vocab_size)
    update(learner, trajectories)
    before = job.reset_peak()
    metrics = update(learner, trajectories)
    job.emit(**what, tokens=int(metrics["tokens"]), held_bytes=before, peak_bytes=job.peak(before))
