"""Soft adaptive policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainers.algorithms.losses.base import PolicyLoss, TokenLoss, log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class SAPO(PolicyLoss):
    """Fade the ratio out smoothly in place of clipping (arXiv 2511.20347).

    With the ratio ``rho``: ``-(4 / tau) sigmoid(tau (rho - 1)) A``, where ``tau`` is ``tau_pos`` for ``A > 0`` and
    ``tau_neg`` else. The gradient is the policy gradient's times ``4 p (1 - p) rho``, ``p = sigmoid(tau (rho - 1))``:
    1 at the ratio 1, and it fades in both directions, faster with a greater ``tau``.

    The paper's ``tau_neg`` is a little greater, because negative advantages raise many unlikely tokens. There is no
    ``outside_clip``, and nothing is ever ``clipped``.
    """

    policy_loss: Literal["sapo"] = "sapo"
    tau_pos: float = Field(1.0, gt=0, description="Rate of the gradient's fading for advantages > 0.")
    tau_neg: float = Field(1.05, gt=0, description="Rate for the other tokens.")

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns)
        ratio = log_ratio.exp()
        tau = self.tau_neg + (self.tau_pos - self.tau_neg) * (advantages > 0).to(ratio.dtype)
        loss = -(4.0 / tau) * (tau * (ratio - 1.0)).sigmoid() * advantages
        return weighed(loss, log_ratio, columns.get("importance"), ratio=ratio, clipped=ratio.new_zeros(ratio.shape))
