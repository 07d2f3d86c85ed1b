"""Divergence PPO, by total variation or by the Kullback-Leibler divergence."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from trainers.algorithms.losses.base import DualClippedLoss, TokenLoss, log_ratios, weighed

if TYPE_CHECKING:
    from torch import Tensor


class DivergenceLoss(DualClippedLoss):
    """Bound the change of the distribution instead of the ratio (DPPO, arXiv 2602.04879).

    The change is estimated by two outcomes, "this token" with the probability ``p = exp(logprobs)`` and "another", from
    ``q = exp(old_logprobs)``. A token that has moved where its advantage pushes it (``A > 0`` and ``p > q`` by more
    than ``clip_ratio_high``, or ``A < 0`` and ``p < q`` by more than ``clip_ratio_low``) has the loss 0. The others
    have ``-sg[min(rho, clip_ratio_c)] A logprobs`` (``sg`` stops the gradient). An unlikely token may thus multiply its
    probability, which PPO's ratio forbids, and a likely one may not move far, which the ratio allows.

    The paper's ``old_logprobs`` are those of the policy that sampled. ``clipped`` where the loss is 0 for the
    divergence, ``outside_clip`` where that is beyond its bound, and ``dual_clipped`` where the ratio was cut.
    """

    def token_loss(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, sequence: Tensor, **columns: Any
    ) -> TokenLoss:
        log_ratio = log_ratios(logprobs, old_logprobs, advantages=advantages, **columns).detach()
        ratio, up = log_ratio.exp(), log_ratio > 0
        moved = self.divergence(logprobs.detach().exp(), old_logprobs.exp(), log_ratio)
        far = (moved > self.clip_ratio_high).where(up, moved > self.clip_ratio_low)
        outside = far & (advantages > 0).where(up, advantages < 0)
        weight = ratio if self.clip_ratio_c is None else ratio.clamp_max(self.clip_ratio_c)
        loss = (-weight * advantages * logprobs).where(~outside, 0.0)
        stats = {"ratio": ratio, "clipped": outside, "outside_clip": far, "dual_clipped": weight != ratio}
        return weighed(loss, log_ratio, columns.get("importance"), **stats)

    @abstractmethod
    def divergence(self, p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
        """Return how far each token's probability has moved from ``q`` to ``p``; ``log_ratio`` is ``log(p / q)``."""


class DPPOTV(DivergenceLoss):
    """Bound the total variation: ``|p - q|``."""

    policy_loss: Literal["dppo_tv"] = "dppo_tv"

    def divergence(self, p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
        return (p - q).abs()


class DPPOKL(DivergenceLoss):
    """Bound the Kullback-Leibler divergence: ``q log(q / p) + (1 - q) log((1 - q) / (1 - p))``."""

    policy_loss: Literal["dppo_kl"] = "dppo_kl"

    def divergence(self, p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
        rest_p, rest_q = ((1.0 - x).clamp_min(1e-8) for x in (p, q))  # a certain token's is 0: no 0 * inf
        return -q * log_ratio + rest_q * (rest_q / rest_p).log()
