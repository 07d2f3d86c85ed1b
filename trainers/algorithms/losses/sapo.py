"""Soft adaptive policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainers.algorithms.losses.base import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class SAPO(PolicyLoss):
    """Fade the ratio out smoothly; see :func:`~.policy_losses.sapo`."""

    policy_loss: Literal["sapo"] = "sapo"
    tau_pos: float = Field(1.0, gt=0, description="Rate of the gradient's fading for advantages > 0.")
    tau_neg: float = Field(1.05, gt=0, description="Rate for the other tokens.")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import sapo

        rates = {"tau_pos": self.tau_pos, "tau_neg": self.tau_neg}
        return sapo(logprobs, old_logprobs, advantages, **rates, importance=columns.get("importance"))
