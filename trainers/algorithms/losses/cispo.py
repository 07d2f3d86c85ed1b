"""Clipped importance sampling weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trainers.algorithms.losses.base import ClippedLoss, TokenLoss, log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class CISPO(ClippedLoss):
    """Clip the ratio as a weight and keep the gradient (MiniMax-M1, arXiv 2506.13585).

    ``-sg[clip(rho, 1 - clip_ratio_low, 1 + clip_ratio_high)] A logprobs``, with ``rho = exp(logprobs - old_logprobs)``
    and ``sg`` stopping the gradient: a policy gradient with a bounded weight. PPO gives a token outside the range no
    gradient at all; here it keeps one, so rare words that matter ("however", "wait") are not lost after the first
    update.

    ``clip_ratio_low`` of 1 is no lower bound, as in the paper; a token is ``clipped`` where the weight was cut.
    """

    policy_loss: Literal["cispo"] = "cispo"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns).detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(1.0 - self.clip_ratio_low, 1.0 + self.clip_ratio_high)
        stats = {"ratio": ratio, "clipped": weight != ratio, "outside_clip": weight != ratio}
        return weighed(-weight * advantages * logprobs, log_ratio, columns.get("importance"), **stats)
