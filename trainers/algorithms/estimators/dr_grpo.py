"""Group-relative advantages without the division."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, relative, to_tokens, totals


class DrGRPO(CriticFreeEstimator, UnscaledEstimator):
    """GRPO without the division (Dr. GRPO, "GRPO done right", arXiv 2503.20783): ``A = R - mean(R)``.

    The mean is over the group, the episode included, so the gradient is ``(G - 1) / G`` times that of :class:`.RLOO`:
    right in direction. Groups that are nearly solved or nearly hopeless are not blown up as by GRPO. The other half of
    the method is the aggregation: ``seq-mean-token-sum-norm`` instead of a mean over each episode's tokens.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["dr_grpo"] = "dr_grpo"

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        returns = relative(totals(batch)[counted], batch.group[counted], norm_by_std=False)
        return to_tokens(batch, counted, returns)
