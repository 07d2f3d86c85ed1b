"""Group sequence policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class GSPO(ClippedLoss):
    """Clip the ratio of the whole episode; see :func:`~.policy_losses.gspo`."""

    unit: ClassVar = "episode"

    policy_loss: Literal["gspo"] = "gspo"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import gspo

        tensors = (logprobs, old_logprobs, advantages, sequence)
        return gspo(*tensors, **self.clip_range(), by_token=False, importance=columns.get("importance"))
