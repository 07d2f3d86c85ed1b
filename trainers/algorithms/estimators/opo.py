"""The optimal baseline over a group, by length."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from trainers.algorithms.baselines import any_of, sums
from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, to_tokens, totals


class OPO(CriticFreeEstimator, UnscaledEstimator):
    """On-policy RL with the optimal baseline (OPO, arXiv 2505.23585): ``A = R - sum(n R) / sum(n)`` over the group.

    ``n`` are the episodes' action tokens. The baseline of least variance weighs returns by the squared norm of the
    episode's score; the paper takes that to grow with the length. The sums hold the episode itself, with its own
    length: biased, less the larger the group.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["opo"] = "opo"

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        group, returns = batch.group[counted], totals(batch)[counted]
        lengths = np.diff(batch.token_offsets)[counted].astype(np.float64)
        moved = returns - any_of(returns, group)  # so that equal returns become 0 to the last bit
        return to_tokens(batch, counted, moved - sums(lengths * moved, group) / sums(lengths, group))
