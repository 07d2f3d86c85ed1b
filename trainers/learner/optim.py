"""AdamW with a learning-rate schedule and clipping: one object for each trained model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from trainers.learner.fsdp import whole


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of one model's optimizer. Raises ``ValueError``: a value outside its range."""

    lr: float = 1e-6  #: the learning rate after the warm-up
    betas: tuple[float, float] = (0.9, 0.999)  #: AdamW's decay rates of the two moments
    eps: float = 1e-8  #: AdamW's
    weight_decay: float = 0.01  #: of matrices; vectors (norms, biases) are not decayed
    warmup_steps: int = 0  #: the rate rises linearly over this many updates
    #: ``constant``, or ``cosine``: down to ``min_lr_ratio * lr`` at ``total_steps``, and stay there.
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: int | None = None  #: updates until the end of the schedule; for ``cosine``
    min_lr_ratio: float = 0.0  #: for ``cosine``
    grad_clip: float | None = 1.0  #: the gradient's norm at most; ``None`` for no limit

    def __post_init__(self) -> None:
        checks = (
            ("lr", self.lr >= 0, "at least 0"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            ("schedule", self.schedule in ("constant", "cosine"), "'constant' or 'cosine'"),
            ("min_lr_ratio", 0 <= self.min_lr_ratio <= 1, "in [0, 1]"),
            ("grad_clip", self.grad_clip is None or self.grad_clip > 0, "above 0, or None for no limit"),
        )
        for name, good, rule in checks:
            if not good:
                raise ValueError(f"optimizer {name} must be {rule}, not {getattr(self, name)!r}")
        if self.schedule == "cosine" and (self.total_steps is None or self.total_steps <= self.warmup_steps):
            raise ValueError(
                f"the cosine schedule needs optimizer total_steps above warmup_steps ({self.warmup_steps}), "
                f"not {self.total_steps!r}"
            )

    def lr_at(self, step: int) -> float:
        """Return the rate of update ``step``, from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.lr
        assert self.total_steps is not None
        progress = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.lr * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * cosine)


def _mesh(tensor: Tensor) -> DeviceMesh | None:
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def _norm(gradients: Sequence[Tensor]) -> float:
    """Return the norm of all gradients together, each counted once, on whatever meshes they are."""
    groups: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        groups.setdefault(_mesh(gradient), []).append(gradient)
    norms = [float(whole(torch.nn.utils.get_total_norm(group))) for group in groups.values()]
    return norms[0] if len(norms) == 1 else math.hypot(*norms)


class Optimizer:
    """AdamW over a model's parameters, sharded or not. All of its state exists from the start, for checkpoints."""

    def __init__(self, model: nn.Module, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.step_count = 0
        self.names = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        parameters = list(self.names.values())
        groups: dict[tuple[bool, Any], list[nn.Parameter]] = {}
        for parameter in parameters:
            # The fused update takes no tensors of different meshes in one call.
            groups.setdefault((parameter.ndim > 1, _mesh(parameter)), []).append(parameter)
        self._adamw = torch.optim.AdamW(
            [
                {"params": group, "weight_decay": settings.weight_decay if decayed else 0.0}
                for (decayed, _), group in groups.items()
            ],
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
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

    def zero_grad(self) -> None:
        """Forget the gradients."""
        self._adamw.zero_grad()

    def step(self, what: str) -> dict[str, float]:
        """Clip, update, forget the gradients; returns ``grad_norm`` (before clipping) and ``lr``.

        ``what`` names the data of this update in the error. Raises FloatingPointError: the gradient is not finite; the
        parameters and the optimizer's state are as before.
        """
        gradients = [parameter.grad for parameter in self.names.values() if parameter.grad is not None]
        value, lr = _norm(gradients), self.settings.lr_at(self.step_count)
        if not math.isfinite(value):
            self.zero_grad()
            raise FloatingPointError(
                f"the gradient's norm is {value} in update {self.step_count} of {what}. Parameters are unchanged: "
                "lower the learning rate, or look at these episodes' rewards and log-probabilities"
            )
        if self.settings.grad_clip is not None and value > self.settings.grad_clip:
            for gradient in gradients:
                gradient.mul_(self.settings.grad_clip / value)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self.step_count += 1  # before it changes anything: concurrent readers see that
        self._adamw.step()
        torch.autograd.graph.increment_version(list(self.names.values()))  # the fused update does not, see .cpu
        self.zero_grad()
        return {"grad_norm": value, "lr": lr}
