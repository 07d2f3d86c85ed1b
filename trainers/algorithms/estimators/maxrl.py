"""Maximum likelihood of success."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from trainers.algorithms.baselines import sums
from trainers.algorithms.batch import ActionBatch, Advantages, Floats, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, relative, to_tokens, totals


class MaxRL(CriticFreeEstimator, UnscaledEstimator):
    """Maximum likelihood reinforcement learning (MaxRL, arXiv 2602.02710): ``A = (R - mean(R)) / mean(R)``.

    The mean is over the group, itself included; a group that earned nothing gets 0. ``R`` is the total reward, and
    what is below 0 (a failure with a penalty) counts as 0. An advantage is from -1 to ``G - 1``.

    With ``R`` 0 or 1 and success probability ``p``, the gradient is that of ``-sum_{k=1}^{G-1} (1 - p)^k / k``, the
    first terms of ``log p``: tasks weigh ``(1 - (1 - p)^(G - 1)) / p`` times what they do in the gradient of ``p``, so
    more the rarer success is, and with ``G = 2`` this is :class:`.RLOO`. (The paper proves order ``G`` where groups
    without success keep ``-1``; leaving them out, as its algorithm does, takes the term of order ``G`` away.) For the
    mean return it is biased, and with rewards between 0 and 1 it follows the logarithm of the mean return in large
    groups alone.
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True

    adv_estimator: Literal["maxrl"] = "maxrl"

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = kept_episodes(batch, self.truncated)
        returns, group = _successes(batch)[counted], batch.group[counted]
        mean = sums(returns, group) / np.bincount(group)[group]
        centred = relative(returns, group, norm_by_std=False)
        return to_tokens(batch, counted, np.divide(centred, mean, out=np.zeros_like(mean), where=mean > 0))

    def returns(self, batch: ActionBatch) -> Floats:
        return _successes(batch)[batch.episode_of_token]

    def unscaled(self, batch: ActionBatch, result: Advantages) -> Floats:
        counted = kept_episodes(batch, self.truncated)
        centred = relative(_successes(batch)[counted], batch.group[counted], norm_by_std=False)
        return to_tokens(batch, counted, centred).advantages


def _successes(batch: ActionBatch) -> Floats:
    return np.maximum(totals(batch), 0.0)
