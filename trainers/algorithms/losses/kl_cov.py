"""The unclipped surrogate with a penalty on the tokens that lower the entropy most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import Bools, Floats
from trainers.algorithms.losses.base import PolicyLoss, TokenLoss, count_of_share, covariances, log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class KLCov(PolicyLoss):
    """Hold tokens of the highest covariance back by a KL (KL-Cov, arXiv 2505.22617).

    ``-rho A``, plus ``ppo_kl_coef |logprobs - old_logprobs|`` on the selected tokens: those of greatest ``c``
    (:func:`~.base.covariances`), a share ``kl_cov_ratio`` of the trained ones, at least one; the first of equals. The
    absolute value is the released code's estimate of the KL to the policy before the update. Its slope is 0 where the
    two are equal, so the penalty acts from the second optimizer step of a batch on.
    """

    always_has_gradient: ClassVar = True

    policy_loss: Literal["kl_cov"] = "kl_cov"
    kl_cov_ratio: float = Field(0.0002, gt=0, le=1, description="Share of tokens with the penalty.")
    ppo_kl_coef: float = Field(0.1, ge=0, description="Weight of the penalty (1 in the paper).")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns)
        ratio, selected = log_ratio.exp(), columns["selected"] != 0
        loss = -ratio * advantages + (self.ppo_kl_coef * log_ratio.abs()).where(selected, 0.0)
        stats = {"ratio": ratio, "clipped": ratio.new_zeros(ratio.shape), "selected": selected}
        return weighed(loss, log_ratio, columns.get("importance"), **stats)

    def select(self, old_logprobs: Floats, advantages: Floats, mask: Bools, rng: np.random.Generator) -> Bools | None:
        shares, trained = covariances(old_logprobs, advantages, mask), np.flatnonzero(mask)
        greatest = trained[np.argsort(-shares[trained], kind="stable")]
        selected = np.zeros(len(mask), np.bool_)
        selected[greatest[: count_of_share(self.kl_cov_ratio, mask)]] = True
        return selected
