"""Credit for the best episode of a group."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from trainers.algorithms.baselines import best_over_second
from trainers.algorithms.batch import ActionBatch, Advantages, Floats
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, by_group, scaled


class GRPOPassK(CriticFreeEstimator, UnscaledEstimator):
    """Credit the best episode of a group with its lead over the second best; 0 for the others (arXiv 2503.19595).

    This is verl's form. Without ``norm_by_std`` it is unbiased for the expected best return of a whole group, over its
    size: each is compared with the best of the *others*. A group whose best are equal gets 0.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True
    mixes_baselines: ClassVar = True

    adv_estimator: Literal["grpo_passk"] = "grpo_passk"
    norm_by_std: bool = Field(True, description="Divide by the group's standard deviation.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        def lead(returns: Floats) -> Floats:
            leads = best_over_second(returns)
            return scaled(leads, float(returns.std())) if self.norm_by_std else leads

        return by_group(batch, self.truncated, lead)
