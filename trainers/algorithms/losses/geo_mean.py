"""Geometric-mean policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class GeoMean(ClippedLoss):
    """Clip the ratio of each token before their geometric mean; see :func:`~.policy_losses.geo_mean`."""

    unit: ClassVar = "episode"

    policy_loss: Literal["geo_mean"] = "geo_mean"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import geo_mean

        tensors = (logprobs, old_logprobs, advantages, sequence)
        return geo_mean(*tensors, **self.clip_range(), importance=columns.get("importance"))
