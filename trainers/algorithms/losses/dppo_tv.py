"""Divergence PPO, by total variation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class DPPOTV(ClippedLoss):
    """Bound the change of the distribution instead of the ratio; see :func:`~.policy_losses.dppo`."""

    policy_loss: Literal["dppo_tv"] = "dppo_tv"
    clip_ratio_c: float | None = Field(None, gt=1)
    """Dual clip of `ppo`: with a negative advantage the ratio counts up to this; of `dppo_tv` and `dppo_kl`: always.
    null is no limit."""

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import dppo

        limits = {**self.clip_range(), "ratio_cap": self.clip_ratio_c}
        importance = columns.get("importance")
        return dppo(logprobs, old_logprobs, advantages, divergence="tv", **limits, importance=importance)
