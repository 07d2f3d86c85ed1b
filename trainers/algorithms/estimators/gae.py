"""Generalised advantage estimation over tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators.critic import CriticEstimator, gae_over, values_of
from trainers.section import Fraction


class GAE(CriticEstimator):
    """Generalised advantage estimation over action tokens (arXiv 1506.02438).

    ``delta_i = r_i + gamma V_{i+1} - V_i`` and ``A_i = delta_i + gamma lam A_{i+1}``, where ``i + 1`` is the episode's
    next *action* token, however long the observation between the two. After the last token ``V`` is 0 if the episode
    terminated and ``batch.bootstrap`` if it was truncated. The critic's target is ``A_i + V_i``.

    ``batch`` has ``values``, and ``bootstrap`` if an episode was truncated. ``gamma`` discounts a token; ``lam`` 1 is
    the Monte Carlo return minus the value, 0 the one-step error.
    """

    unit: ClassVar = "token"

    adv_estimator: Literal["gae"] = "gae"
    gamma: Fraction = Field(1.0, description="Discount per token.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        values, bootstrap = values_of(batch)
        advantages = gae_over(batch.token_rewards, values, bootstrap, batch.token_offsets, self.gamma, self.lam)
        everything = np.ones(batch.num_tokens, np.bool_)
        return Advantages(advantages, everything, advantages + values, everything)
