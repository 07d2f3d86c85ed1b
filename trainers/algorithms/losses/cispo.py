"""Clipped importance sampling weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class CISPO(ClippedLoss):
    """Clip the ratio as a weight and keep the gradient; see :func:`~.policy_losses.cispo`."""

    policy_loss: Literal["cispo"] = "cispo"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import cispo

        tensors = (logprobs, old_logprobs, advantages)
        return cispo(*tensors, **self.clip_range(), importance=columns.get("importance"))
