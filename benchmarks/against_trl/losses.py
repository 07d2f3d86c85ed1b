"""Check that the loss is the same: this side's episodes, scored by TRL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.gpu.learners import distance, gradients
from textenvs.messages import user
from trainers.config.model import ModelSection
from trainers.learner import Learner
from trainers.trajectory import Trajectory

from .trl_side import FixedRollout
from .work import columns, surrogate

Precision = Literal["float32", "bfloat16"]


def compare_losses(
    trainer: Any, model: PreTrainedModel, trajectories: Sequence[Trajectory], dtype: Precision = "float32"
) -> dict[str, float]:
    """Return the losses of both sides and the distance of their gradients, on equal episodes and old log-probabilities.

    Args:
        trainer: TRL's, not started; its model has the weights of ``model``.
        model: For this side.
        trajectories: Episodes, group by group.
        dtype: Of this side's computation.
    """
    batch = columns(trajectories)
    noise = np.random.default_rng(0).normal(0.0, 0.2, len(batch["old"]))  # so that the clipping bites
    batch["old"] = (batch["old"] + noise).astype(np.float32)

    device = trainer.model.device
    learner = Learner(model, ModelSection(device=device.type, dtype=dtype))
    own_gradients, own_loss = gradients(learner, trajectories, batch, surrogate)
    usual, trainer.rollout_func = trainer.rollout_func, FixedRollout(trajectories)
    trainer.model.train()
    inputs = trainer._generate_and_score_completions([{"prompt": [user("")]} for _ in trajectories])
    old, offset = torch.zeros(inputs["completion_ids"].shape), 0
    for row, trajectory in zip(old, trajectories, strict=True):
        where = np.flatnonzero(trajectory.action_mask)
        row[torch.from_numpy(where - where[0])] = torch.from_numpy(batch["old"][offset : offset + len(where)])
        offset += len(where)
    inputs["old_per_token_logps"] = old.to(device)
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation  # as training sets it
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    trl_gradients = {f"lm.{name}": parameter.grad for name, parameter in trainer.model.named_parameters()}
    gradients_apart = distance({name: own_gradients[name] for name in trl_gradients}, trl_gradients)
    trainer.model.zero_grad(set_to_none=True)
    trainer.rollout_func = usual
    trainer._metrics["train"].clear()
    return {
        "ours": own_loss,
        "trl": float(loss.detach()),
        "apart": abs(own_loss - float(loss.detach())),
        "gradients_apart": gradients_apart,
    }
