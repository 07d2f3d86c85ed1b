"""Generalised advantage estimation over turns, with the mean return from a state as its value."""

from __future__ import annotations

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
from trainers.algorithms.estimators.base import relative
from trainers.algorithms.estimators.critic import gae_over
from trainers.section import Fraction


class GAGPO(AnchoredEstimator):
    """Generalised advantage grouped policy optimisation (GAGPO, arXiv 2605.13217).

    The value of a state is the mean return of the group's turns that began in it, in whichever episode and at whichever
    turn: ``V(s) = mean(G_t of turns with s_t = s)``, ``G_t = r_t + gamma G_{t+1}``. Over turns,
    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)`` and ``A_t = delta_t + gamma lam A_{t+1}``, with 0 for ``V`` and ``A``
    after the last turn, also of a truncated episode. Then ``(A - mean(A)) / (std(A) + eps)``, over all turns of the
    group. (The paper's ratio of whole actions is a loss: ``gspo_token`` is the nearest one here.)

    With ``lam = 1`` and before the normalisation ``A_t = G_t - V(s_t)``. A turn alone in its state has
    ``V(s_t) = G_t``; where no state is met twice, all advantages are 0.

    Biased: by the normalisation, and because the value of a state includes one's own return.

    ``batch`` has ``anchor``; ``gamma`` and ``lam`` are of a turn.
    """

    adv_estimator: Literal["gagpo"] = "gagpo"
    gamma: Fraction = Field(1.0, description="Discount per turn.")
    lam: Fraction = Field(0.95, description="λ of the advantage estimation; 1 is Monte Carlo.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        state, _ = group_states(batch)
        counted = kept_episodes(batch, self.truncated)
        turns = np.flatnonzero(counted[batch.episode_of_turn])
        to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, self.gamma)
        surplus = np.zeros(len(to_go))
        surplus[turns] = relative(to_go[turns], state[turns], norm_by_std=False)
        # r_t is G_t - gamma G_{t+1}, so V - G as the value, without rewards, gives the same errors; equal returns give
        # errors of 0 to the last bit.
        nothing, end = np.zeros(len(to_go)), np.zeros(batch.num_episodes)
        by_turn = gae_over(nothing, -surplus, end, batch.turn_offsets, self.gamma, self.lam)
        advantages = np.zeros(len(by_turn))
        group = batch.group[batch.episode_of_turn[turns]]
        advantages[turns] = relative(by_turn[turns], group, self.norm_by_std)
        return Advantages(advantages[batch.turn_of_token], counted[batch.episode_of_token])

    def returns(self, batch: ActionBatch) -> Floats:
        return discounted_sums(batch.net_turn_rewards, batch.turn_offsets, self.gamma)[batch.turn_of_token]
