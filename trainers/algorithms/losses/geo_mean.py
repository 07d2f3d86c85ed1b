"""Geometric-mean policy optimisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.algorithms.losses.base import ClippedLoss, TokenLoss, log_ratios, sequence_mean, weighed

if TYPE_CHECKING:
    from torch import Tensor


class GeoMean(ClippedLoss):
    """Clip the ratio of each token before their geometric mean (GMPO, arXiv 2507.20673).

    With ``l = logprobs - old_logprobs`` and ``c = clip(l, -clip_ratio_low, clip_ratio_high)``, a token counts as
    ``min(l, c)`` where ``A > 0`` and as ``max(l, c)`` where ``A < 0``. ``s = exp(mean of these over the episode)`` and
    a token's loss is ``-s A``. The bounds are of the *logarithm* of the ratio (the paper: 0.4, so the ratio is in
    [0.67, 1.49]). ``gspo`` clips the mean as a whole; here one far-off token loses its own gradient and the others keep
    theirs. As in ``gspo``, the gradient of every token's loss reaches the whole episode, which is right where all its
    tokens have the same advantage; with ``seq-mean-token-mean`` the loss is then the paper's.

    ``ratio`` is the episode's ``s``, ``clipped`` and ``outside_clip`` are the token's.
    """

    unit: ClassVar = "episode"

    policy_loss: Literal["geo_mean"] = "geo_mean"

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, sequence=sequence, **columns)
        bounded = log_ratio.clamp(-self.clip_ratio_low, self.clip_ratio_high)
        counted = log_ratio.maximum(bounded).where(advantages < 0, log_ratio.minimum(bounded))
        ratio = sequence_mean(counted, sequence).exp()
        stats = {"ratio": ratio, "clipped": counted != log_ratio, "outside_clip": bounded != log_ratio}
        return weighed(-ratio * advantages, log_ratio, columns.get("importance"), **stats)
