"""Estimators in tests, with the baseline that most tests are about."""

from __future__ import annotations

from typing import Any
from unittest import mock

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators import ESTIMATORS, Estimator, base


def estimator(name: str, **options: Any) -> Estimator:
    """Return the estimator of that name, comparing an episode with its group where it has a ``baseline``."""
    kind = ESTIMATORS[name]
    baseline = {"baseline": "group"} if "baseline" in kind.model_fields else {}
    return kind(**(baseline | options))


def estimate(name: str, batch: ActionBatch, *, eps: float = base.EPS, **options: Any) -> Advantages:
    """Return advantages; with a greater ``eps``, deviations that are rounding alone do not blow up."""
    with mock.patch.object(base, "EPS", eps):
        return estimator(name, **options).advantages(batch)
