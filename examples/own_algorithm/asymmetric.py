"""A loss of your own: `actor.policy_loss=asymmetric`, after `pip install examples/own_algorithm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainers.algorithms.losses import ClippedLoss, TokenLoss
from trainers.algorithms.losses.base import log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class Asymmetric(ClippedLoss):
    """PPO's clipped loss, in which tokens with a negative advantage count less."""

    policy_loss: Literal["asymmetric"] = "asymmetric"
    negative_weight: float = Field(0.5, ge=0, description="Weight of tokens with a negative advantage.")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        """Return the loss of each token, with the statistics of PPO."""
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages)
        loss, stats = self.clip(log_ratio.exp(), advantages.where(advantages > 0, self.negative_weight * advantages))
        return weighed(loss, log_ratio, columns.get("importance"), **stats)
