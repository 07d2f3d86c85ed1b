"""The clipped surrogate of PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trainers.algorithms.losses.base import DualClippedLoss, TokenLoss, log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class PPO(DualClippedLoss):
    """Clip the ratio of each token (arXiv 1707.06347).

    With ``rho = exp(logprobs - old_logprobs)``: ``-min(rho A, clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high) A)``.
    A higher ``clip_ratio_high`` lets unlikely tokens grow faster (DAPO, arXiv 2503.14476).

    With ``clip_ratio_c = c`` the loss is at most ``-c A`` where ``A < 0``, so that a token that has become much
    likelier cannot dominate (arXiv 1912.09729). ``dual_clipped`` is 1 where that bound cut the gradient off.
    """

    policy_loss: Literal["ppo"] = "ppo"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns)
        loss, stats = self.clip(log_ratio.exp(), advantages)
        dual_clipped = loss.new_zeros(loss.shape)
        if self.clip_ratio_c is not None:
            most = -self.clip_ratio_c * advantages
            dual_clipped = (advantages < 0) & (loss > most)
            loss = most.where(dual_clipped, loss)
        return weighed(loss, log_ratio, columns.get("importance"), **stats, dual_clipped=dual_clipped)
