"""The clipped surrogate of PPO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class PPO(ClippedLoss):
    """Clip the ratio of each token; see :func:`~.policy_losses.ppo_clip`."""

    policy_loss: Literal["ppo"] = "ppo"
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip of `ppo`: with a negative advantage the ratio counts up to this; of `dppo_tv` and `dppo_kl`: always.
    null is no limit."""

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import ppo_clip

        tensors = (logprobs, old_logprobs, advantages)
        return ppo_clip(
            *tensors, **self.clip_range(), dual_clip=self.clip_ratio_c, importance=columns.get("importance")
        )
