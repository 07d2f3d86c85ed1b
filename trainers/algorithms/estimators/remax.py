"""A greedy episode of the same task as the baseline."""

from __future__ import annotations

from typing import ClassVar, Literal

from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, Need, UnscaledEstimator, to_tokens, totals


class ReMax(CriticFreeEstimator, UnscaledEstimator):
    """ReMax (arXiv 2310.10505): total reward minus that of greedy decoding on the same task.

    What greedy decoding earns does not depend on the episode's actions, so this is unbiased, also for single episodes.
    A greedy episode always counts, truncated or not; ``batch.greedy`` must be there.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"greedy"})
    unit: ClassVar = "episode"

    adv_estimator: Literal["remax"] = "remax"

    def advantages(self, batch: ActionBatch) -> Advantages:
        if batch.greedy is None:
            raise ValueError("remax needs greedy [E], the total reward of a greedy episode of each episode's task")
        counted = kept_episodes(batch, self.truncated)
        return to_tokens(batch, counted, (totals(batch) - batch.greedy)[counted])
