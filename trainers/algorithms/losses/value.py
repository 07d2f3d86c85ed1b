"""The critic's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainers.algorithms.losses.base import TokenLoss, same_shape

if TYPE_CHECKING:
    from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = None) -> TokenLoss:
    """Return half the squared error, with the clipping of PPO2; ``ValueError`` where shapes differ.

    ``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``: moving a value further than ``clip`` (positive)
    in one batch earns nothing.

    ``values``, ``old_values`` (that the advantages were computed from) and ``returns`` are ``[n]``. ``value_clipped``
    is 1 where that cut the gradient off.
    """
    same_shape(values=values, old_values=old_values, returns=returns)
    free = (values - returns).square()
    loss = free
    if clip is not None:
        loss = free.maximum((values.clamp(old_values - clip, old_values + clip) - returns).square())
    return TokenLoss(0.5 * loss, {"value_clipped": (loss > free).to(free.dtype)})
