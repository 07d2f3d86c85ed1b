"""Generalised advantage estimation in two levels, turns and tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, discounted_sums
from trainers.algorithms.estimators.critic import CriticEstimator, gae_over, values_of
from trainers.section import Fraction


class BilevelGAE(CriticEstimator):
    """Bi-level GAE: first over turns, then over the tokens inside each turn (VAGEN, arXiv 2510.16907).

    With ``e_k`` the last token of turn ``k``, over turns: ``delta_k = r_k + turn_gamma V_{e_{k+1}} - V_{e_k}`` and
    ``A_{e_k} = delta_k + turn_gamma turn_lam A_{e_{k+1}}``. Then inside each turn, backwards from ``A_{e_k}`` at its
    last token: ``A_i = gamma V_{i+1} - V_i + gamma lam A_{i+1}``. (The paper's text and its released code differ at the
    last token; this is the code: ``A_{e_k}`` replaces what token-level GAE would say there.) So an error of the critic
    late in the episode is discounted by the turns between, not by their tokens. The critic's target is ``A_i + V_i``.

    Without any discount and any lambda (all four 1) it *is* :class:`.GAE`. Tokens' penalties count where they fall.
    ``gamma`` and ``lam`` are inside a turn, ``turn_gamma`` (by default the released configuration's) and ``turn_lam``
    over turns.
    """

    unit: ClassVar = "token"

    adv_estimator: Literal["bilevel_gae"] = "bilevel_gae"
    gamma: Fraction = Field(1.0, description="Discount per token.")
    turn_gamma: Fraction = Field(0.99, description="Discount per turn.")
    turn_lam: Fraction = Field(1.0, description="λ over turns; below 1 is biased.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        values, bootstrap = values_of(batch)
        rewards, ends = batch.token_rewards, batch.turn_ends
        before_end = np.bincount(batch.turn_of_token, rewards, minlength=len(ends)) - rewards[ends]
        following_turn = np.append(before_end[1:], 0.0)[: len(ends)]
        following_turn[batch.turn_offsets[1:][np.diff(batch.turn_offsets) > 0] - 1] = 0.0
        turn_rewards = rewards[ends] + self.turn_gamma * following_turn
        by_turn = gae_over(turn_rewards, values[ends], bootstrap, batch.turn_offsets, self.turn_gamma, self.turn_lam)
        errors = rewards + self.gamma * np.append(values[1:], 0.0)[: len(values)] - values
        errors[ends] = by_turn
        advantages = discounted_sums(errors, np.append(batch.turn_starts, batch.num_tokens), self.gamma * self.lam)
        everything = np.ones(batch.num_tokens, np.bool_)
        return Advantages(advantages, everything, advantages + values, everything)
