"""Estimators and losses in tests, by name."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch import Tensor

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import ESTIMATORS, Estimator, base
from trainers.algorithms.losses import LOSSES
from trainers.algorithms.policy_losses import TokenLoss

#: The key of ``actor`` that each option of the losses' functions is read from.
KEYS = {
    **{"clip_low": "clip_ratio_low", "clip_high": "clip_ratio_high", "kl_coef": "ppo_kl_coef"},
    **{"dual_clip": "clip_ratio_c", "ratio_cap": "clip_ratio_c"},
}


def estimator(name: str, **options: Any) -> Estimator:
    """Return the estimator of that name, comparing an episode with its group where it has a ``baseline``."""
    kind = ESTIMATORS[name]
    baseline = {"baseline": "group"} if "baseline" in kind.model_fields else {}
    return kind(**(baseline | options))


def estimate(name: str, batch: ActionBatch, *, eps: float = base.EPS, **options: Any) -> Advantages:
    """Return advantages; with a greater ``eps``, deviations that are rounding alone do not blow up."""
    with mock.patch.object(base, "EPS", eps):
        return estimator(name, **options).advantages(batch)


def options_of(name: str) -> set[str]:
    """Return the names of the options that a loss reads; of the two for ``clip_ratio_c``, both."""
    fields = LOSSES[name].model_fields
    return {option for option in (*KEYS, "tau_pos", "tau_neg") if KEYS.get(option, option) in fields}


def token_loss(
    name: str, *tensors: Tensor, selected: Tensor | None = None, importance: Tensor | None = None, **options: Any
) -> TokenLoss:
    """Return the loss of that name, with options by the names of the functions' arguments."""
    keys = {KEYS.get(option, option): value for option, value in options.items()}
    return LOSSES[name](**keys).token_loss(*tensors, selected=selected, importance=importance)
