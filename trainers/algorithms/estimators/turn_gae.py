"""Generalised advantage estimation over turns."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages
from trainers.algorithms.estimators.critic import CriticEstimator, gae_over, values_of
from trainers.section import Fraction


class TurnGAE(CriticEstimator):
    """Generalised advantage estimation where a step is a turn (Turn-PPO, arXiv 2512.17008).

    A turn's state is what stands before its first token, with value ``V_k``; its reward is ``r_k``, minus its tokens'
    penalties. ``delta_k = r_k + gamma V_{k+1} - V_k``, ``A_k = delta_k + gamma lam A_{k+1}``, and every token of turn
    ``k`` gets ``A_k``. Only the values at turn starts are used, so the critic is trained only there (``value_mask``).
    ``gamma`` discounts a turn; ``batch`` is as in :class:`.GAE`.
    """

    unit: ClassVar = "turn"

    adv_estimator: Literal["turn_gae"] = "turn_gae"
    gamma: Fraction = Field(1.0, description="Discount per turn.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        values, bootstrap = values_of(batch)
        starts = batch.turn_starts
        by_turn = gae_over(batch.net_turn_rewards, values[starts], bootstrap, batch.turn_offsets, self.gamma, self.lam)
        returns, value_mask = np.zeros(batch.num_tokens), np.zeros(batch.num_tokens, np.bool_)
        returns[starts] = by_turn + values[starts]
        value_mask[starts] = True
        return Advantages(by_turn[batch.turn_of_token], np.ones(batch.num_tokens, np.bool_), returns, value_mask)
