"""AdamW with a learning-rate schedule and clipping: one object for each trained model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainers.learner.fsdp import whole
from trainers.section import OptimizerSection

_EPS = 1e-8  #: AdamW's
_FLOOR = 0.1  #: the share of the rate that a cosine falls to


def lr_at(section: OptimizerSection, step: int, total_steps: int | None = None) -> float:
    """Return the learning rate of update ``step``, from 0; a cosine reaches its floor at ``total_steps``."""
    warmup = section.lr_warmup_steps
    if step < warmup:
        return section.lr * (step + 1) / warmup
    if section.lr_schedule == "constant":
        return section.lr
    if total_steps is None:
        raise ValueError("lr_schedule=cosine needs total_steps: the updates until the rate has fallen to a tenth")
    progress = min(1.0, (step - warmup) / max(total_steps - warmup, 1))
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    return section.lr * (_FLOOR + (1.0 - _FLOOR) * cosine)


def _mesh(tensor: Tensor) -> DeviceMesh | None:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, each counted once, on whatever meshes they are; a scalar."""
    groups: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(_mesh(gradient), []).append(gradient)
    norms = [whole(torch.nn.utils.get_total_norm(group)) for group in groups.values()]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


class Optimizer:
    """AdamW over a model's parameters, sharded or not. All of its state exists from the start, for checkpoints.

    Raises ``ValueError``: the schedule is a cosine, and ``total_steps`` is missing.
    """

    def __init__(self, model: nn.Module, section: OptimizerSection, total_steps: int | None = None) -> None:
        self.section, self.total_steps = section, total_steps
        lr_at(section, section.lr_warmup_steps, total_steps)
        self.step_count = 0
        self.names = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        parameters = list(self.names.values())
        groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
        for parameter in parameters:
            # The fused update takes no tensors of different meshes in one call.
            groups.setdefault((parameter.ndim > 1, _mesh(parameter)), []).append(parameter)
        self._adamw = torch.optim.AdamW(
            [  # vectors (norms, biases) are not decayed
                {"params": group, "weight_decay": section.weight_decay if decayed else 0.0}
                for (decayed, _), group in groups.items()
            ],
            lr=section.lr,
            betas=section.betas,
            eps=_EPS,
            fused=True,
        )
        for parameter in parameters:
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the live state tensors by parameter name; writing into them is loading."""
        return {name: self._adamw.state[parameter] for name, parameter in self.names.items()}

    def gradient_bytes(self, device: torch.device) -> int:
        """Return the bytes that the gradients of this rank take on a device, where offloaded ones are not."""
        parts = [
            parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in self.names.values()
        ]
        return sum(part.numel() * part.element_size() for part in parts if part.device.type == device.type)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad()

    def step(self, what: str) -> dict[str, float]:
        """Clip, update, forget the gradients; returns ``grad_norm`` (before clipping) and ``lr``.

        ``what`` names the data of this update in the error. Raises FloatingPointError: the gradient is not finite; the
        parameters and the optimizer's state are as before.
        """
        gradients = [parameter.grad for parameter in self.names.values() if parameter.grad is not None]
        # The one time that the host waits for the update.
        value, lr = float(_norm(gradients)), lr_at(self.section, self.step_count, self.total_steps)
        if not math.isfinite(value):
            self.zero_grad()
            raise FloatingPointError(
                f"the gradient's norm is {value} in update {self.step_count} of {what}. Parameters are unchanged: "
                "lower the learning rate, or look at these episodes' rewards and log-probabilities"
            )
        if value > self.section.grad_clip:
            parts = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
            torch._foreach_mul_(parts, self.section.grad_clip / value)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self.step_count += 1  # before it changes anything: concurrent readers see that
        self._adamw.step()
        torch.autograd.graph.increment_version(list(self.names.values()))  # the fused update does not, see .cpu
        self.zero_grad()
        return {"grad_norm": value, "lr": lr}
