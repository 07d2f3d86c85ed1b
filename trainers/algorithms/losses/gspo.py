"""Group sequence policy optimisation: one ratio an episode, clipped as a whole."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainers.algorithms.losses.base import ClippedLoss, TokenLoss, log_ratios, sequence_mean, weighed

if TYPE_CHECKING:
    from torch import Tensor


class SequenceRatioLoss(ClippedLoss):
    """Clip one ratio for all action tokens of an episode (GSPO, arXiv 2507.18071).

    ``s = exp(mean_t(logprobs - old_logprobs))`` is the geometric mean of their ratios. A token's loss is
    ``-min(s A, clip(s, 1 - clip_ratio_low, 1 + clip_ratio_high) A)``. Such ratios are much closer to 1 than a token's;
    the paper's range is 3e-4 and 4e-4.
    """

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, sequence=sequence, **columns)
        loss, stats = self.clip(self.ratio(sequence_mean(log_ratio, sequence), logprobs), advantages)
        return weighed(loss, log_ratio, columns.get("importance"), **stats)

    @abstractmethod
    def ratio(self, mean: Tensor, logprobs: Tensor) -> Tensor:
        """Return each token's ratio, from its episode's mean log-ratio, ``[n]``."""


class GSPO(SequenceRatioLoss):
    """Clip the ratio of the whole episode.

    The gradient of every token's loss reaches all tokens of the episode alike. That is right where they all have the
    same advantage.
    """

    unit: ClassVar = "episode"

    policy_loss: Literal["gspo"] = "gspo"

    def ratio(self, mean: Tensor, logprobs: Tensor) -> Tensor:
        return mean.exp()


class GSPOToken(SequenceRatioLoss):
    """Clip the ratio of the whole episode, with each token's own advantage: the paper's GSPO-token.

    ``s_t = sg[s] exp(logprobs_t - sg[logprobs_t])`` in place of ``s`` (``sg`` stops the gradient) has the same value
    and is clipped together, but each token's gradient is its own. For equal advantages and equal weights inside each
    episode the two gradients are the same.
    """

    policy_loss: Literal["gspo_token"] = "gspo_token"

    def ratio(self, mean: Tensor, logprobs: Tensor) -> Tensor:
        return (mean.detach() + logprobs - logprobs.detach()).exp()
