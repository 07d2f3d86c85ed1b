"""Learners for the parts, and their updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.job import Job
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.learner import Learner
from trainers.learner.fsdp import whole
from trainers.section import ActorSection
from trainers.trajectory import Trajectory


def make_learner(
    job: Job,
    model: PreTrainedModel,
    dtype: Literal["float32", "bfloat16"],
    max_tokens_per_micro_batch: int,
    layout: Mapping[str, Any] | None = None,
    *,
    compile: bool = False,
    offload: bool = False,
    **options: Any,
) -> Learner:
    """Return a learner on the job's device; ``layout`` are keys of its model section."""
    device: Literal["cuda", "cpu"] = "cuda" if job.device.type == "cuda" else "cpu"
    section = ModelSection(device=device, dtype=dtype, compile=compile, **(layout or {}))
    actor = ActorSection(max_tokens_per_micro_batch=max_tokens_per_micro_batch)
    return Learner(model, section, RunSection(offload=offload), actor, **options)


def policy_gradient(logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the parts: weighted log-probabilities, and some entropy, so that both gradients are needed."""
    return -(batch["advantage"] * logprobs + 1e-3 * batch["weight"] * entropy).sum(), {}


def numbers_of(trajectories: Sequence[Trajectory], seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return random advantages, weighted so that the loss is a mean over tokens."""
    rng = np.random.default_rng(seed)
    count = sum(int(trajectory.action_mask.sum()) for trajectory in trajectories)
    weight = np.full(count, 1 / count, np.float32)
    return {"advantage": rng.normal(size=count).astype(np.float32) * weight, "weight": weight}


def update(learner: Learner, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    return learner.update_actor(trajectories, numbers_of(trajectories), policy_gradient)


def gradients(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    columns: Mapping[str, NDArray[Any]] | None = None,
    loss: Callable[..., Any] = policy_gradient,
) -> tuple[dict[str, Tensor], float]:
    """Return the whole gradients of an update, and its loss; parameters stay as they are.

    The columns are those of :func:`numbers_of` by default.
    """
    optimizer = learner.actor_optimizer
    caught: dict[str, Tensor] = {}

    def instead(what: str) -> dict[str, float]:
        for name, parameter in optimizer.names.items():
            if parameter.grad is not None:
                caught[name] = whole(parameter.grad).detach()
        optimizer.zero_grad()
        return {}

    optimizer.step = instead  # type: ignore[method-assign]
    try:
        metrics = learner.update_actor(trajectories, columns or numbers_of(trajectories), loss)
    finally:
        del optimizer.step  # the class's own again
    return caught, metrics["loss"]


def distance(gradient: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference of two gradients, relative to that of the second."""
    assert gradient.keys() == reference.keys()
    gap = sum(float((gradient[name] - value).double().square().sum()) for name, value in reference.items())
    return float((gap / sum(float(value.double().square().sum()) for value in reference.values())) ** 0.5)
