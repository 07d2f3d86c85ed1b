"""Group-relative advantages."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, relative, to_tokens, totals


class GRPO(CriticFreeEstimator, UnscaledEstimator):
    """Group-relative advantage (DeepSeekMath, arXiv 2402.03300): ``A = (R - mean(R)) / (std(R) + eps)``.

    ``R`` is the episode's total reward; mean and population standard deviation are over its group, itself included.
    Every token of the episode gets ``A``. Without ``norm_by_std`` this is :class:`.DrGRPO`.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["grpo"] = "grpo"
    norm_by_std: bool = Field(True, description="Divide by the group's standard deviation.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        return to_tokens(batch, counted, relative(totals(batch)[counted], batch.group[counted], self.norm_by_std))
