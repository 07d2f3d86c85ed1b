"""The compared methods: estimators with their baselines and shapes, and corrections of a policy that is behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trainers.algorithms.names import Aggregation, Importance, Rejection

Version = Literal["rough", "exact"]


@dataclass(frozen=True)
class Way:
    """A way to compute the advantages of a batch.

    Args:
        name: In tables.
        estimator: Of :data:`~trainers.algorithms.estimators.ESTIMATORS`.
        options: Of it.
        norm_adv: ``algorithm.norm_adv``.
        aggregation: ``actor.loss_agg_mode``.
        version: Of the batch: ``rough`` has a critic that errs and the trainer's score norms, ``exact`` the true values
            and norms.
        by_batch: It compares episodes with those of other groups, so it must see one batch at a time.
    """

    name: str
    estimator: str
    options: Mapping[str, Any] = field(default_factory=dict)
    norm_adv: bool = False
    aggregation: Aggregation = "seq-mean-token-sum"
    version: Version = "rough"
    by_batch: bool = False


@dataclass(frozen=True)
class Correction:
    """A correction for the policy that sampled: keys of ``actor``.

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
    across_groups = ("mixed", "shrunk")  # compare groups
    ways = [Way(f"{estimator}, {k}", estimator, {"baseline": k}, by_batch=k in across_groups) for k in kinds]
    return [*ways, Way(f"{estimator}, optimal_token, exact norms", estimator, {"baseline": kinds[-1]}, version="exact")]


def _mixed(name: str, **options: Any) -> Way:
    return Way(f"turn_grpo, mixed{name}", "turn_grpo", {"baseline": "mixed", **options}, by_batch=True)


#: The trainer's default.
DEFAULT = _mixed("")
BASELINES = [*_baselines("rloo"), *_baselines("turn_grpo")]
SHAPES = [
    replace(DEFAULT, name=f"{DEFAULT.name}, norm_adv", norm_adv=True),
    replace(DEFAULT, name=f"{DEFAULT.name}, token-mean", aggregation="token-mean"),
    replace(DEFAULT, name=f"{DEFAULT.name}, norm_adv, token-mean", norm_adv=True, aggregation="token-mean"),
    replace(DEFAULT, name=f"{DEFAULT.name}, seq-mean-token-mean", aggregation="seq-mean-token-mean"),
]
_VERSIONS: tuple[Version, ...] = ("rough", "exact")
WITH_CRITIC = [
    Way(f"{name} λ={lam:g}, {version} critic", name, {"lam": lam}, version=version)
    for name in ("gae", "turn_gae")
    for lam in (1.0, 0.9)
    for version in _VERSIONS
] + [Way(f"bilevel_gae, {version} critic", "bilevel_gae", version=version) for version in _VERSIONS]
WITHOUT_CRITIC = [
    *(Way(name, name) for name in ("grpo", "dr_grpo", "opo", "grpo_passk", "passk", "remax", "gigpo")),
    *(Way(name, name, by_batch=True) for name in ("gdpo", "reinforce_pp", "reinforce_pp_baseline")),
    *BASELINES,
    _mixed(", truncated=drop", truncated="drop"),
    _mixed(", outcome_mix=0.5", outcome_mix=0.5),
    _mixed(", norm_by_std", norm_by_std=True),
    Way("turn_grpo, group, zero_pad", "turn_grpo", {"baseline": "group", "zero_pad": True}),
    *SHAPES,
]
WAYS = WITH_CRITIC + WITHOUT_CRITIC

NO_CORRECTION = Correction("none")
TOKEN_TIS = Correction("token_tis", "token_tis")
_ESTIMATES: tuple[tuple[Rejection, float], ...] = (
    *(("token_k2", 0.02), ("token_k3", 0.02), ("seq_sum_k2", 0.1), ("seq_sum_k3", 0.1)),
    *(("seq_mean_k2", 0.02), ("seq_mean_k3", 0.02), ("seq_max_k2", 0.05), ("seq_max_k3", 0.05)),
)
CORRECTIONS = [
    NO_CORRECTION,
    Correction("old_logprobs=rollout", ratio=True),
    TOKEN_TIS,
    replace(TOKEN_TIS, name="token_tis, normalised", normalized=True),
    Correction("decoupled", "decoupled"),
    Correction("sequence_tis", "sequence_tis"),
    Correction("sequence_tis, no cap", "sequence_tis", None),
    Correction("sequence_tis, normalised", "sequence_tis", normalized=True),
    Correction("rejection=token", rejection="token"),
    Correction("rejection=sequence", rejection="sequence"),
    Correction("rejection=geometric", rejection="geometric", low=0.8, high=1.25),
    Correction("decoupled, rejection=token (IcePop)", "decoupled", None, rejection="token", high=5.0),
    Correction("sequence_tis, rejection=sequence", "sequence_tis", None, rejection="sequence"),
    *(Correction(f"rejection={name}", rejection=name, most=most) for name, most in _ESTIMATES),
]


def compared(ways: list[Way], staleness: int) -> list[tuple[Way, Correction]]:
    """Return each way uncorrected and, where the sampler is behind, with token_tis; the default with each."""
    pairs = [(way, NO_CORRECTION) for way in ways]
    if staleness:
        pairs += [(way, TOKEN_TIS) for way in ways if way != DEFAULT]
        pairs += [(DEFAULT, correction) for correction in CORRECTIONS if correction != NO_CORRECTION]
    return pairs
