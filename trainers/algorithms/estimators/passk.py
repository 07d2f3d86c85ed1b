"""Pass@k training."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from trainers.algorithms.baselines import best_of_k
from trainers.algorithms.batch import ActionBatch, Advantages, Floats
from trainers.algorithms.estimators.base import CriticFreeEstimator, UnscaledEstimator, by_group, scaled
from trainers.section import Problems


class PassK(CriticFreeEstimator, UnscaledEstimator):
    """Pass@k training, the analytic advantage (arXiv 2508.10751), for rewards of any kind.

    Over all sets ``S`` of ``k`` episodes of the group, the reward is ``M(S) = max R``, and
    ``A_i = (E[M(S) | i in S] - E[M(S)]) / (std(M(S)) + eps)``; see :func:`.baselines.best_of_k`. With returns 0 and
    1 it is the paper's closed form, and with ``k = 1`` :class:`.GRPO`. Without the division its direction is right for
    the expected best of ``k``: the gradient times ``(1 - k / G) / k``.

    A group of at most ``k`` gets 0. ``pass_k`` is ``k`` (the paper: 4).
    """

    unit: ClassVar = "episode"
    compares_siblings: ClassVar = True
    mixes_baselines: ClassVar = True

    adv_estimator: Literal["passk"] = "passk"
    norm_by_std: bool = Field(True, description="Divide by the group's standard deviation.")
    pass_k: int = Field(4, ge=1, description="Episodes of which the best counts (k).")

    def advantages(self, batch: ActionBatch) -> Advantages:
        def gains(returns: Floats) -> Floats:
            by_episode, deviation = best_of_k(returns - returns[:1], self.pass_k)  # equal returns: 0 to the last bit
            return scaled(by_episode, deviation) if self.norm_by_std else by_episode

        return by_group(batch, self.truncated, gains)

    def checks(self, group_size: int) -> Problems:
        if 1 < group_size <= self.pass_k:
            text = f"is {self.pass_k}; it must be below rollout.n={group_size}, to leave an episode to compare with"
            yield "pass_k", text
