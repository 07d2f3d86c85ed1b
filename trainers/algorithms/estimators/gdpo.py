"""Each reward term normalised by itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import ActionBatch, Advantages, episode_terms, kept_episodes
from trainers.algorithms.estimators.base import CriticFreeEstimator, Need, normalize, relative, to_tokens
from trainers.section import Problems
from trainers.trajectory import Trajectory

log = logging.getLogger(__name__)


class GDPO(CriticFreeEstimator):
    """Group reward-decoupled normalisation (GDPO, arXiv 2601.05242): each named reward by itself, then the batch.

    ``A = sum_m w_m (R_m - mean(R_m)) / (std(R_m) + eps)``, with ``R_m`` the sum of the term ``m`` over the *whole
    episode* and means over its group; then :func:`normalize`. So a term that hardly varies counts as much as one that
    varies a lot. (The paper's second normalisation is over episodes; its released code's, and this one, over tokens.)
    No per-turn reward is normalised (rule B); ``batch.penalty`` does not count. ``w`` are ``gdpo_reward_weights``, one
    a term of the batch's ``terms``, or 1 each; else a ``ValueError``. A group of one gets what is left of 0 after the
    batch's mean.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"terms"})
    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True
    mixes_baselines: ClassVar = True

    adv_estimator: Literal["gdpo"] = "gdpo"
    norm_by_std: bool = Field(True, description="Divide by the group's standard deviation.")
    gdpo_reward_keys: tuple[str, ...] | None = Field(None, min_length=1)
    """Names of the reward terms that count; null is all."""
    gdpo_reward_weights: tuple[float, ...] | None = Field(None, min_length=1)
    """Weight of each of `gdpo_reward_keys`; null is 1."""

    def advantages(self, batch: ActionBatch) -> Advantages:
        if batch.terms is None:
            raise ValueError("gdpo needs terms [E, M], what each episode earned by name (see batch.episode_terms)")
        weights = (
            np.ones(batch.terms.shape[1])
            if self.gdpo_reward_weights is None
            else np.array(self.gdpo_reward_weights, float)
        )
        if weights.shape != batch.terms.shape[1:]:
            raise ValueError(f"gdpo_reward_weights has {len(weights)} numbers for {batch.terms.shape[1]} terms")
        counted = kept_episodes(batch, self.truncated)
        total = np.zeros(int(counted.sum()))
        for weight, term in zip(weights, batch.terms.T, strict=True):
            total += weight * relative(term[counted], batch.group[counted], self.norm_by_std)
        return normalize(to_tokens(batch, counted, total))

    def complete(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
        """Add the episodes' reward terms; TermsError where no episode was paid any of them."""
        names, terms = episode_terms(episodes, self.gdpo_reward_keys)
        present = {name for episode in episodes for turn in episode.turn_terms for name in turn}
        if missing := sorted(set(names) - present):
            log.warning("no episode of this batch was paid %s; its terms are %s", missing, sorted(present))
        return replace(batch, terms=terms)

    def metrics(self, batch: ActionBatch, episodes: Sequence[Trajectory]) -> dict[str, float]:
        names, terms = episode_terms(episodes, self.gdpo_reward_keys)
        return {f"term_std/{name}": float(term.std()) for name, term in zip(names, terms.T, strict=True)}

    def checks(self, group_size: int) -> Problems:
        names, weights = self.gdpo_reward_keys, self.gdpo_reward_weights
        if names is not None and len(set(names)) < len(names):
            yield "gdpo_reward_keys", "names a term twice"
        if weights is not None and (names is None or len(weights) != len(names)):
            yield "gdpo_reward_weights", "needs algorithm.gdpo_reward_keys, with one weight for each"
        if self.use_kl_in_reward:
            yield "use_kl_in_reward", "has no effect with gdpo, which sees terms alone: use actor.use_kl_loss"
        if ":" in self.reward_credit:
            yield "reward_credit", "has no effect with gdpo, which sees the terms as they were earned"
