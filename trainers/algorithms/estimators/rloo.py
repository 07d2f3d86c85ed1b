"""The mean of the other episodes as the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from trainers.algorithms.baselines import Baseline, mean_baseline, with_score_norms
from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import (
    CriticFreeEstimator,
    UnscaledEstimator,
    minus_optimal_token,
    to_tokens,
    totals,
)
from trainers.trajectory import Trajectory


class RLOO(CriticFreeEstimator, UnscaledEstimator):
    """Total reward minus the mean of the *other* episodes (REINFORCE leave-one-out, arXiv 2402.14740).

    Unbiased, because the baseline does not depend on the episode itself. An episode without siblings has the baseline
    0 with ``group`` and the batch's alone with the others.

    ``baseline``: ``group``: the mean ``g`` of its siblings. ``mixed``: ``(g + b) / 2``, where ``b`` is the mean of all
    the other episodes of the batch (of one ``batch.side``). In a small group ``g`` is noisy, and a group that
    only ever fails teaches nothing against ``g`` alone; ``b`` is steady but knows nothing of the task.
    ``shrunk``: ``g`` drawn towards the mean of the other groups, the further the less these differ beside what
    noise alone would do (James and Stein; for this use arXiv 2511.03710). How far is taken from the other
    groups, too. ``optimal_token``: for each token, the mean of the siblings that have such a token, weighed by
    how uncertain they were up to there (:func:`.baselines.optimal_token`). All leave the episode out, so all
    are unbiased.
    """

    unit: ClassVar = "episode"

    adv_estimator: Literal["rloo"] = "rloo"
    baseline: Baseline = "mixed"
    """Baseline. `group`: the group's other episodes. `mixed`: half those, half the batch's. `shrunk`: those shrunk
    towards other groups. `optimal_token`: for each token, the episodes that have such a token, weighted by their
    uncertainty up to it."""

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        if self.baseline == "optimal_token":
            return minus_optimal_token(batch, counted, totals(batch)[batch.episode_of_token], by_turn=False)
        group, returns = batch.group[counted], totals(batch)[counted]
        expected = mean_baseline(returns, group, np.zeros_like(group), batch.sides[counted], self.baseline)
        return to_tokens(batch, counted, returns - expected)

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add the norms of the tokens' scores, for ``baseline=optimal_token``."""
        return with_score_norms(batch, episodes) if self.baseline == "optimal_token" else batch
