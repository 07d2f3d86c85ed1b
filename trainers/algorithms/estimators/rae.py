"""A running mean of each role's returns as the baseline, for self-play."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, Need, UnscaledEstimator, to_tokens, totals
from trainers.section import Fraction


class RAE(CriticFreeEstimator, UnscaledEstimator):
    """Role-conditioned advantage estimation (SPIRAL, arXiv 2506.24119): ``A = R - b``, ``b`` of each role.

    ``b <- decay * b + (1 - decay) * R`` after each episode of the environment and role, from 0, over all batches of the
    run (:class:`.baselines.RoleBaselines`). An episode is compared with ``b`` of the episodes before it, so this is
    unbiased, also for single episodes. ``batch.role_baseline`` must be there.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"role_baseline"})
    unit: ClassVar = "episode"

    adv_estimator: Literal["rae"] = "rae"
    decay: Fraction = Field(0.95, description="Weight of the earlier episodes in a role's running mean of returns.")

    def advantages(self, batch: ActionBatch) -> Advantages:
        if batch.role_baseline is None:
            raise ValueError("rae needs role_baseline [E], the mean return of each episode's role so far")
        counted = kept_episodes(batch, self.truncated)
        return to_tokens(batch, counted, (totals(batch) - batch.role_baseline)[counted])
