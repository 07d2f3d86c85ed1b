"""PPO without the tokens that lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats
from trainers.algorithms.losses.base import ClippedLoss
from trainers.section import Problems

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class ClipCov(ClippedLoss):
    """Clip like ``ppo``, without some tokens of high covariance; see :func:`~.policy_losses.clip_cov`."""

    policy_loss: Literal["clip_cov"] = "clip_cov"
    clip_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Share of tokens without a gradient.")
    clip_cov_lb: float = Field(1.0, description="Minimum covariance of those tokens.")
    clip_cov_ub: float = Field(5.0, description="Maximum covariance of those tokens.")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import clip_cov

        tensors = (logprobs, old_logprobs, advantages, columns["selected"])
        return clip_cov(*tensors, **self.clip_range(), importance=columns.get("importance"))

    def select(self, old_logprobs: Floats, advantages: Floats, mask: Bools, rng: np.random.Generator) -> Bools | None:
        from trainers.algorithms.policy_losses import clip_cov_tokens

        limits = {"ratio": self.clip_cov_ratio, "low": self.clip_cov_lb, "high": self.clip_cov_ub}
        return clip_cov_tokens(old_logprobs, advantages, mask, **limits, rng=rng)

    def checks(self) -> Problems:
        if self.clip_cov_lb >= self.clip_cov_ub:
            yield "clip_cov_lb", f"is {self.clip_cov_lb:g}; it must be below actor.clip_cov_ub={self.clip_cov_ub:g}"
