"""Estimators, baselines and corrections against a known gradient: bias, variance and cosine.

An update is ``u = sum_i c_i grad log pi(a_i)`` over a batch's tokens; estimator, correction and aggregation make the
coefficients ``c`` (:func:`coefficients`, all of it the trainer's own code). With the true gradient ``t`` and ``s`` so
that ``s t`` is the part of ``E[u]`` along ``t``:

* *bias*²: ``|E[u] - s t|^2 / |s t|^2``, the squared tangent of the angle between the mean update and ``t``. An
  estimator's scale is no bias here: a learning rate undoes it, and AdamW does not see it.
* *noise*: ``n tr Cov(u) / |s t|^2`` for batches of ``n`` sampled tokens: how many tokens a batch needs until its
  variance is no more than its squared signal (the simple noise scale of arXiv 1812.06162). A variance per sampled token.
* *cosine*: the mean of single updates' cosines with ``t``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from trainers.algorithms import off_policy
from trainers.algorithms.advantages import ESTIMATORS, Advantages, normalize, restrict
from trainers.algorithms.aggregation import token_weights
from trainers.algorithms.batch import ActionBatch, Floats
from trainers.algorithms.names import Aggregation, Importance, Rejection
from trainers.algorithms.policy_losses import policy_loss

#: Parts that a sample of batches is cut into, for the standard error of the bias.
PARTS = 20


@dataclass(frozen=True)
class Way:
    """How advantages are made of a batch.

    Args:
        name: In tables.
        estimator: Of :data:`~trainers.algorithms.advantages.ESTIMATORS`.
        options: Of it.
        norm_adv: ``algorithm.norm_adv``.
        aggregation: ``actor.loss_agg_mode``.
        batch: Which of the batch's two versions: ``rough`` has a critic that errs and the score norms of the trainer,
            ``exact`` the true values and norms.
    """

    name: str
    estimator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    norm_adv: bool = False
    aggregation: Aggregation = "seq-mean-token-sum"
    batch: Literal["rough", "exact"] = "rough"

    def advantages(self, batches: Mapping[str, ActionBatch]) -> Advantages:
        """Of a batch."""
        return ESTIMATORS[self.estimator](batches[self.batch], **self.options)


@dataclass(frozen=True)
class Correction:
    """What is done about the policy that sampled: keys of ``actor``.

    Args:
        name: In tables.
        importance: ``importance_correction``.
        cap: ``tis_cap``.
        normalized: ``importance_batch_normalize``.
        rejection: The key of that name; likewise the next three.
        low: ``rejection_low``.
        high: ``rejection_high``.
        most: ``rejection_kl``.
        ratio: ``old_logprobs=rollout``: the loss's own ratio, clipped at 0.2.
    """

    name: str
    importance: Importance = "none"
    cap: float | None = 2.0
    normalized: bool = False
    rejection: Rejection = "none"
    low: float = 0.5
    high: float = 2.0
    most: float | None = None
    ratio: bool = False


def _baselines(estimator: str) -> list[Way]:
    kinds = ("group", "mixed", "shrunk", "optimal_token")
    ways = [Way(f"{estimator}, {kind}", estimator, {"baseline": kind}) for kind in kinds]
    return [*ways, Way(f"{estimator}, optimal_token, exact norms", estimator, {"baseline": kinds[-1]}, batch="exact")]


#: The trainer's default estimator.
DEFAULT = Way("turn_grpo, mixed", "turn_grpo", {"baseline": "mixed"})
BASELINES = [*_baselines("rloo"), *_baselines("turn_grpo")]
SHAPES = [
    replace(DEFAULT, name="turn_grpo, mixed, norm_adv", norm_adv=True),
    replace(DEFAULT, name="turn_grpo, mixed, token-mean", aggregation="token-mean"),
    replace(DEFAULT, name="turn_grpo, mixed, norm_adv, token-mean", norm_adv=True, aggregation="token-mean"),
    replace(DEFAULT, name="turn_grpo, mixed, seq-mean-token-mean", aggregation="seq-mean-token-mean"),
]
WAYS = [
    *(
        Way(f"gae λ={lam:g}, {kind} critic", "gae", {"lam": lam}, batch=kind)
        for lam in (1.0, 0.9)
        for kind in ("rough", "exact")
    ),
    *(
        Way(f"turn_gae λ={lam:g}, {kind} critic", "turn_gae", {"lam": lam}, batch=kind)
        for lam in (1.0, 0.9)
        for kind in ("rough", "exact")
    ),
    *(Way(f"bilevel_gae, {kind} critic", "bilevel_gae", batch=kind) for kind in ("rough", "exact")),
    *(
        Way(name, name)
        for name in (
            "grpo",
            "dr_grpo",
            "opo",
            "gdpo",
            "grpo_passk",
            "passk",
            "reinforce_pp",
            "reinforce_pp_baseline",
            "remax",
            "gigpo",
        )
    ),
    *BASELINES,
    Way("turn_grpo, mixed, truncated=drop", "turn_grpo", {"baseline": "mixed", "truncated": "drop"}),
    Way("turn_grpo, group, zero_pad", "turn_grpo", {"zero_pad": True}),
    Way("turn_grpo, mixed, outcome_mix=0.5", "turn_grpo", {"baseline": "mixed", "outcome_mix": 0.5}),
    Way("turn_grpo, mixed, norm_by_std", "turn_grpo", {"baseline": "mixed", "norm_by_std": True}),
    *SHAPES,
]
NO_CORRECTION = Correction("none")
CORRECTIONS = [
    NO_CORRECTION,
    Correction("old_logprobs=rollout", ratio=True),
    Correction("token_tis", "token_tis"),
    Correction("token_tis, normalised", "token_tis", normalized=True),
    Correction("decoupled", "decoupled"),
    Correction("sequence_tis", "sequence_tis"),
    Correction("sequence_tis, no cap", "sequence_tis", None),
    Correction("sequence_tis, normalised", "sequence_tis", normalized=True),
    Correction("rejection token", rejection="token"),
    Correction("rejection sequence", rejection="sequence"),
    Correction("rejection geometric", rejection="geometric", low=0.9, high=1.1),
    Correction("decoupled, rejection token (IcePop)", "decoupled", None, rejection="token", high=5.0),
    Correction("sequence_tis, rejection sequence (MIS)", "sequence_tis", None, rejection="sequence"),
    *(Correction(f"rejection token_{k}", rejection=f"token_{k}", most=0.05) for k in ("k2", "k3")),
    *(Correction(f"rejection seq_sum_{k}", rejection=f"seq_sum_{k}", most=0.1) for k in ("k2", "k3")),
    *(Correction(f"rejection seq_mean_{k}", rejection=f"seq_mean_{k}", most=0.02) for k in ("k2", "k3")),
    *(Correction(f"rejection seq_max_{k}", rejection=f"seq_max_{k}", most=0.05) for k in ("k2", "k3")),
]


def coefficients(
    way: Way, correction: Correction, result: Advantages, batch: ActionBatch, proximal: Floats, behaviour: Floats
) -> Floats:
    """What each token's score counts in the first update of a batch.

    Args:
        way: Normalisation and aggregation.
        correction: Of what ``behaviour`` sampled.
        result: Of the way's estimator.
        batch: The same.
        proximal: ``[N]``; log-probabilities of the policy whose gradient is wanted.
        behaviour: ``[N]``; of the policy that sampled.

    Returns:
        ``[N]``.
    """
    offsets = batch.token_offsets
    bounds = correction.low, correction.high, correction.most
    result = restrict(result, off_policy.kept(correction.rejection, proximal, behaviour, offsets, *bounds))
    if way.norm_adv:
        result = normalize(result)
    share = token_weights(way.aggregation, offsets, result.policy_mask)
    if correction.ratio:
        return share * _loss_slope(result.advantages, proximal, behaviour, batch)
    weights = off_policy.importance_weights(correction.importance, proximal, behaviour, offsets, correction.cap)
    if weights is None:
        return share * result.advantages
    if correction.normalized:
        weights = off_policy.batch_normalized(weights, offsets, correction.importance)
    return share * weights * result.advantages


def _loss_slope(advantages: Floats, logprobs: Floats, old: Floats, batch: ActionBatch) -> Floats:
    """Minus the slope of the default loss, clipped around the policy that sampled."""
    at = torch.tensor(logprobs, requires_grad=True)
    given = (torch.from_numpy(each) for each in (old, advantages, batch.episode_of_token))
    loss = policy_loss("ppo", at, *given, clip_low=0.2, clip_high=0.2, dual_clip=None).loss.sum()
    (slope,) = torch.autograd.grad(loss, at)
    return -np.asarray(slope.numpy(), np.float64)


class Moments:
    """Of updates, for several rows at once.

    Args:
        truth: ``[D]``; the true gradient.
        rows: How many there are.
        batches: In all.
    """

    def __init__(self, truth: Floats, rows: int, batches: int) -> None:
        self.truth, self.batches, self.seen = truth, batches, 0
        self.sums = np.zeros((min(PARTS, batches), rows, len(truth)))
        self.counts = np.zeros(len(self.sums))
        self.squares, self.tokens, self.cosines, self.cosines2 = np.zeros((4, rows))

    def add(self, updates: Floats, tokens: Sequence[int]) -> None:
        """A batch: ``[rows, D]``, and the tokens sampled for each."""
        part = self.seen * len(self.sums) // self.batches
        self.sums[part] += updates
        self.counts[part] += 1
        norms = np.linalg.norm(updates, axis=1)
        cosines = updates @ self.truth / np.maximum(norms * np.linalg.norm(self.truth), 1e-300)
        self.squares += norms**2
        self.tokens += tokens
        self.cosines += cosines
        self.cosines2 += cosines**2
        self.seen += 1

    def results(self) -> list[dict[str, float]]:
        """For each row ``bias2`` and ``bias2_se``, ``noise`` (tokens), ``cosine`` and ``cosine_se``, ``scale``.

        The estimate of the bias is unbiased: it multiplies means of different parts, so it may be below 0.
        """
        unit = self.truth / np.linalg.norm(self.truth)
        mean, count = self.sums.sum(0) / self.seen, self.seen
        along = mean @ unit
        parts = self.sums / self.counts[:, None, None]
        across = parts - (parts @ unit)[..., None] * unit
        bias2 = _between(across) / along**2
        left_out = np.stack([_between(np.delete(across, k, 0)) for k in range(len(across))]) / along**2
        number = len(across)
        error = np.sqrt((number - 1) / number * np.square(left_out - left_out.mean(0)).sum(0))
        variance = (self.squares / count - np.square(mean).sum(1)) * count / max(count - 1, 1)
        cosine = self.cosines / count
        deviation = np.sqrt(np.maximum(self.cosines2 / count - cosine**2, 0.0) / count)
        columns = {
            "bias2": bias2,
            "bias2_se": error,
            "noise": self.tokens / count * variance / along**2,
            "cosine": cosine,
            "cosine_se": deviation,
            "scale": along / np.linalg.norm(self.truth),
        }
        return [{name: float(column[row]) for name, column in columns.items()} for row in range(len(along))]


def _between(parts: Floats) -> Floats:
    """The mean product of different parts, for each row: an unbiased square of the mean."""
    number = len(parts)
    total = np.square(parts.sum(0)).sum(-1) - np.square(parts).sum((0, -1))
    return np.asarray(total / (number * (number - 1)), np.float64)
