"""Episodes of a group, and turns that began in the same state."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import (
    ActionBatch,
    Advantages,
    Floats,
    discounted_sums,
    group_states,
    kept_episodes,
)
from trainers.algorithms.estimators.anchored import AnchoredEstimator
from trainers.algorithms.estimators.base import relative, totals
from trainers.algorithms.estimators.grpo import GRPO
from trainers.section import Fraction


class GiGPO(AnchoredEstimator):
    """Group-in-group policy optimisation (GiGPO, arXiv 2505.10978): the episode among its group, the turn in its state.

    ``A_t = A^E + step_weight A^S_t``. ``A^E`` is :class:`.GRPO`'s. For ``A^S_t``, the turns of the group that began in
    the same *anchor state*, in whichever episode and at whichever turn, are compared like the episodes of a group:
    ``A^S_t = (G_t - mean(G)) / (std(G) + eps)`` with ``G_t = r_t + gamma G_{t+1}``. A turn alone in its state
    has ``A^S_t = 0``; where no state is met twice, GiGPO is GRPO.

    Biased: by the deviations, and because a state met twice in one episode is compared with its own future.

    ``batch`` has ``anchor``; ``gamma`` discounts a turn in ``G_t`` (the paper: 0.95); ``step_weight`` is the paper's
    ``omega``, at least 0 (there 1).
    """

    adv_estimator: Literal["gigpo"] = "gigpo"
    gamma: Fraction = Field(1.0, description="Discount per turn.")
    step_weight: float = Field(1.0, ge=0, description="Weight of the comparison of turns.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        state, _ = group_states(batch)
        of_episode = GRPO(norm_by_std=self.norm_by_std, truncated=self.truncated).advantages(batch)
        counted = kept_episodes(batch, self.truncated)
        turns = np.flatnonzero(counted[batch.episode_of_turn])
        to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, self.gamma)
        of_turn = np.zeros(len(to_go))
        of_turn[turns] = relative(to_go[turns], state[turns], self.norm_by_std)
        advantages = of_episode.advantages + self.step_weight * of_turn[batch.turn_of_token]
        return replace(of_episode, advantages=advantages)

    def returns(self, batch: ActionBatch) -> Floats:
        return totals(batch)[batch.episode_of_token]
