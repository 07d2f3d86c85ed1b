"""Estimators and losses in tests, by name."""

from __future__ import annotations

from typing import Any
from unittest import mock

from torch import Tensor

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import ESTIMATORS, Estimator, base
from trainers.algorithms.losses import LOSSES, TokenLoss


def estimator(name: str, **options: Any) -> Estimator:
    """Return the estimator of that name, comparing an episode with its group where it has a ``baseline``."""
    kind = ESTIMATORS[name]
    baseline = {"baseline": "group"} if "baseline" in kind.model_fields else {}
    return kind(**(baseline | options))


def estimate(name: str, batch: ActionBatch, *, eps: float = base.EPS, **options: Any) -> Advantages:
    """Return advantages; with a greater ``eps``, deviations that are rounding alone do not blow up."""
    with mock.patch.object(base, "EPS", eps):
        return estimator(name, **options).advantages(batch)


def keys_of(name: str, **values: float) -> dict[str, float]:
    """Return those of the values whose keys the loss reads."""
    return {key: value for key, value in values.items() if key in LOSSES[name].model_fields}


def token_loss(
    name: str, *tensors: Tensor, selected: Tensor | None = None, importance: Tensor | None = None, **keys: Any
) -> TokenLoss:
    """Return the loss of that name, with keys of ``actor``."""
    return LOSSES[name](**keys).token_loss(*tensors, selected=selected, importance=importance)
