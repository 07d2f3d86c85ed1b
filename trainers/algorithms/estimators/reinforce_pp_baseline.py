"""Group means subtracted, normalised over the batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from trainers.algorithms.batch import ActionBatch, Advantages, Floats, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, normalize, relative, to_tokens, totals


class ReinforcePPBaseline(CriticFreeEstimator):
    """REINFORCE++ with a baseline (arXiv 2501.03262): ``R - mean(R)`` of the group, normalised over the whole batch.

    Every token of an episode gets the same. Dividing by the batch's deviation instead of the group's (GRPO) weighs
    all tasks alike. The paper puts the KL in the loss here, as ``k2``. A group of one gets what is left of 0 after the
    batch's mean.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["reinforce_pp_baseline"] = "reinforce_pp_baseline"

    def advantages(self, batch: ActionBatch) -> Advantages:
        return normalize(self._centred(batch))

    def unscaled(self, batch: ActionBatch, result: Advantages) -> Floats:
        mask = result.policy_mask
        if not mask.any():
            return result.advantages
        centred = self._centred(batch).advantages
        return np.where(mask, centred - centred[mask].mean(), 0.0)

    def _centred(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        returns = relative(totals(batch)[counted], batch.group[counted], norm_by_std=False)
        return to_tokens(batch, counted, returns)
