"""Each turn against the same turn of the other episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.baselines import Baseline, mean_baseline, with_score_norms
from trainers.algorithms.batch import ActionBatch, Advantages, Floats, MadeOf, discounted_sums, kept_episodes
from trainers.algorithms.estimators.base import (
    CriticFreeEstimator,
    UnscaledEstimator,
    divide_by_rms,
    minus_optimal_token,
)
from trainers.section import Fraction, Problems
from trainers.trajectory import Trajectory


class TurnGRPO(CriticFreeEstimator, UnscaledEstimator):
    """Each turn's reward-to-go minus the mean of the siblings that reached the same turn.

    ``G_t = r_t + gamma G_{t+1}`` and ``A_t = G_t - mean(G_t of the other episodes of the group that have a turn t)``;
    every token of turn ``t`` gets ``A_t``. Whether a *sibling* reaches turn ``t`` does not depend on one's own actions,
    so the baseline is independent of them and the gradient is unbiased. An episode that is alone at its turn has no
    such sibling and no baseline there (0), which keeps it unbiased.

    ``gamma``: Discount a turn.
    ``baseline``: ``group``, ``mixed``, ``shrunk`` or ``optimal_token``, as in :class:`.RLOO`, at the same turn. With
    ``optimal_token`` advantages are of tokens, so the options below, which are of turns, are a ``ValueError``.
    ``zero_pad``: Siblings that ended before turn ``t`` count in its mean, with 0. Also unbiased, and lone episodes have
    a baseline; noisier where most siblings do reach the turn.
    ``outcome_mix``: ``lambda``: ``(1 - lambda) A_t + lambda A_0``. ``A_0`` is the advantage of the whole
    episode's outcome; 1 makes this rloo with discounted turns. With ``gamma = 1`` the mixture is unbiased.
    ``norm_by_std``: Divide by the root mean square of the group's ``A_t`` (every turn counts once). With one turn an
    episode this is GRPO; like there, it weighs tasks by their difficulty and so is not unbiased.
    """

    unit: ClassVar = "turn"

    adv_estimator: Literal["turn_grpo"] = "turn_grpo"
    gamma: Fraction = Field(1.0, description="Discount per turn.")
    baseline: Baseline = "mixed"
    """Baseline. `group`: the group's other episodes. `mixed`: half those, half the batch's. `shrunk`: those shrunk
    towards other groups. `optimal_token`: for each token, the episodes that have such a token, weighted by their
    uncertainty up to it."""
    zero_pad: bool = Field(False, description="Count ended episodes as 0 in later turns.")
    outcome_mix: Fraction = Field(0.0, description="Share of the whole episode's advantage.")
    norm_by_std: bool = Field(False, description="Divide by the group's standard deviation.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        episode = batch.episode_of_turn
        to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, self.gamma)
        if self.baseline == "optimal_token":
            if self.zero_pad or self.outcome_mix or self.norm_by_std:
                raise ValueError("baseline optimal_token goes without zero_pad, outcome_mix and norm_by_std")
            return minus_optimal_token(batch, counted, to_go[batch.turn_of_token], by_turn=True)
        turns = np.flatnonzero(counted[episode])
        group, turn = batch.group[episode[turns]], turns - batch.turn_offsets[episode[turns]]
        to_go = to_go[turns]
        by_turn = to_go - mean_baseline(to_go, group, turn, batch.sides[episode[turns]], self.baseline, self.zero_pad)
        outcome = by_turn[np.arange(len(turns)) - turn]  # each entry's own episode at turn 0
        by_turn = (1.0 - self.outcome_mix) * by_turn + self.outcome_mix * outcome
        if self.norm_by_std:
            by_turn = divide_by_rms(by_turn, group)
        advantages = np.zeros(len(episode))
        advantages[turns] = by_turn
        return Advantages(advantages[batch.turn_of_token], counted[batch.episode_of_token])

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add the norms of the tokens' scores, for ``baseline=optimal_token``."""
        return with_score_norms(batch, episodes) if self.baseline == "optimal_token" else batch

    def checks(self, group_size: int) -> Problems:
        if self.baseline == "optimal_token":
            for name in ("zero_pad", "outcome_mix", "norm_by_std"):
                if getattr(self, name):
                    yield name, "must not be set with algorithm.baseline=optimal_token, which compares tokens"

    def returns(self, batch: ActionBatch) -> Floats:
        return discounted_sums(batch.net_turn_rewards, batch.turn_offsets, self.gamma)[batch.turn_of_token]

    def made_of(self, batch: ActionBatch, result: Advantages) -> MadeOf:
        if self.outcome_mix:
            return MadeOf(self.returns(batch), None, result.advantages)
        return super().made_of(batch, result)
