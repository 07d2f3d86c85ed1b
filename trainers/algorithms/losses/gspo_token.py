"""Group sequence policy optimisation, with advantages of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from trainers.algorithms.losses.base import ClippedLoss

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.algorithms.policy_losses import TokenLoss


class GSPOToken(ClippedLoss):
    """Clip the ratio of the whole episode, with each token's own advantage; see :func:`~.policy_losses.gspo`."""

    policy_loss: Literal["gspo_token"] = "gspo_token"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        from trainers.algorithms.policy_losses import gspo

        tensors = (logprobs, old_logprobs, advantages, sequence)
        return gspo(*tensors, **self.clip_range(), by_token=True, importance=columns.get("importance"))
