"""The unclipped surrogate with a penalty on the tokens that lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats
from trainers.algorithms.losses.base import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class KLCov(PolicyLoss):
    """Hold tokens of the highest covariance back by a KL; see :func:`~.policy_losses.kl_cov`."""

    always_has_gradient: ClassVar = True

    policy_loss: Literal["kl_cov"] = "kl_cov"
    kl_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Share of tokens with the penalty.")
    ppo_kl_coef: float = Field(0.1, ge=0, description="Weight of the penalty (1 in the paper).")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import kl_cov

        importance = columns.get("importance")
        return kl_cov(
            logprobs, old_logprobs, advantages, columns["selected"], kl_coef=self.ppo_kl_coef, importance=importance
        )

    def select(self, old_logprobs: Floats, advantages: Floats, mask: Bools, rng: np.random.Generator) -> Bools | None:
        from trainers.algorithms.policy_losses import kl_cov_tokens

        return kl_cov_tokens(old_logprobs, advantages, mask, ratio=self.kl_cov_ratio)
