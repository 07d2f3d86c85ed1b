"""Rewards-to-go normalised over the batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, Floats, discounted_sums, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, normalize
from trainers.section import Fraction


class ReinforcePP(CriticFreeEstimator):
    """REINFORCE++ (arXiv 2501.03262): each token's reward-to-go, normalised over the whole batch.

    ``G_i = r_i - beta kl_i + gamma G_{i+1}`` over action tokens, to the end of the episode, then :func:`normalize`.
    (``beta kl_i`` is the batch's ``penalty``; the paper puts ``k1`` there.) The batch's mean is the baseline, so groups
    are not needed. It holds the episode itself and divides by a deviation: biased, less the larger the batch.
    ``gamma`` discounts a token.
    """

    unit: ClassVar = "token"

    adv_estimator: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: Fraction = Field(1.0, description="Discount per token.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)[batch.episode_of_token]
        to_go = discounted_sums(batch.token_rewards, batch.token_offsets, self.gamma)
        return normalize(Advantages(np.where(counted, to_go, 0.0), counted))

    def unscaled(self, batch: ActionBatch, result: Advantages) -> Floats:
        mask, returns = result.policy_mask, self.returns(batch)
        return np.where(mask, returns - returns[mask].mean(), 0.0) if mask.any() else result.advantages
