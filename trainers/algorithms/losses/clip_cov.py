"""PPO without the tokens that lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats
from trainers.algorithms.losses.base import ClippedLoss, TokenLoss, count_of_share, covariances, log_ratios, weighed
from trainers.section import Problems

if TYPE_CHECKING:
    from torch import Tensor


class ClipCov(ClippedLoss):
    """Clip like ``ppo``, without some tokens of high covariance (Clip-Cov, arXiv 2505.22617).

    The selected tokens have the loss 0; they still count in means. They are drawn at random among those with
    ``clip_cov_lb < c < clip_cov_ub`` (:func:`~.base.covariances`): a share ``clip_cov_ratio`` of the trained ones, at
    least one, and fewer where fewer are in the range. The bounds are meant for advantages of variance 1; the greatest
    covariances are left in: they are outliers.
    """

    policy_loss: Literal["clip_cov"] = "clip_cov"
    clip_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Share of tokens without a gradient.")
    clip_cov_lb: float = Field(1.0, description="Minimum covariance of those tokens.")
    clip_cov_ub: float = Field(5.0, description="Maximum covariance of those tokens.")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns)
        loss, stats = self.clip(log_ratio.exp(), advantages)
        selected = columns["selected"] != 0
        return weighed(loss.where(~selected, 0.0), log_ratio, columns.get("importance"), **stats, selected=selected)

    def select(self, old_logprobs: Floats, advantages: Floats, mask: Bools, rng: np.random.Generator) -> Bools | None:
        shares = covariances(old_logprobs, advantages, mask)
        candidates = np.flatnonzero(mask & (shares > self.clip_cov_lb) & (shares < self.clip_cov_ub))
        selected = np.zeros(len(mask), np.bool_)
        count = min(count_of_share(self.clip_cov_ratio, mask), len(candidates))
        selected[rng.choice(candidates, count, replace=False)] = True
        return selected

    def checks(self) -> Problems:
        if self.clip_cov_lb >= self.clip_cov_ub:
            yield "clip_cov_lb", f"is {self.clip_cov_lb:g}; it must be below actor.clip_cov_ub={self.clip_cov_ub:g}"
