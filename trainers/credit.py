"""From turn rewards to the numbers that a learner's losses need, for each action token; and the losses.

Estimators, losses and corrections themselves are :mod:`trainers.algorithms`; here the configuration chooses among them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .algorithms import off_policy
from .algorithms.advantages import (
    ESTIMATORS,
    NEEDS_ANCHOR,
    NEEDS_GREEDY,
    NEEDS_TERMS,
    Advantages,
    made_of,
    normalize,
    restrict,
)
from .algorithms.baselines import score_norms
from .algorithms.batch import ActionBatch, anchor_states, episode_terms, gather, shared_anchors
from .algorithms.kl import KLController, kl_estimate, mean_kl
from .algorithms.policy_losses import LOSS_OPTIONS, clip_cov_tokens, kl_cov_tokens, value_loss
from .algorithms.policy_losses import policy_loss as policy_loss_of
from .cluster.group import LearnerGroup
from .config import PPOConfig
from .config.schema import ActorSection, AlgorithmSection, CriticSection, estimator_keys
from .learner import Learner
from .report.episodes import Explained
from .trajectory import Trajectory, action_offsets

log = logging.getLogger(__name__)

Floats = NDArray[np.float64]


def credit(
    config: PPOConfig,
    learner: Learner | LearnerGroup,
    kl: KLController,
    trajectories: Sequence[Trajectory],
    greedy: Mapping[str, float] | None = None,
    *,
    users: int = 0,
    explain: bool = False,
) -> tuple[dict[str, Floats], Advantages, dict[str, float]]:
    """From turn rewards to what the losses need, ``[N]`` each by name; the advantages; metrics.

    The coefficient of ``kl``, in the reward, is updated with this batch's :func:`~.algorithms.kl.mean_kl`. ``greedy``
    is what a greedy episode earned, by group. So many of the last trajectories are the user's side of others
    (``users``). ``explain``: say what the advantages are made of. A column ``entropy`` is there with
    ``actor.old_logprobs=recompute``.
    """
    rollout = gather(trajectories, [t.logprobs for t in trajectories]).astype(np.float64)
    metrics: dict[str, float] = {}
    old, kept = rollout, np.ones(len(rollout), np.bool_)
    columns = {"old_logprobs": old}
    if config.actor.old_logprobs == "recompute":
        scores, spread = learner.logprobs(trajectories, entropy=True)  # the same pass
        old = columns["old_logprobs"] = _flat(scores)
        columns["entropy"] = _flat(spread)
        weights, kept, found = off_policy_correction(config.actor, old, rollout, action_offsets(trajectories))
        metrics |= {f"actor/{name}": value for name, value in found.items()}
        if weights is not None:
            columns["importance"] = weights

    penalty = None
    if learner.reference is not None:
        columns["ref_logprobs"] = _flat(learner.logprobs(trajectories, model="reference"))
        estimate = kl_estimate(
            torch.from_numpy(old), torch.from_numpy(columns["ref_logprobs"]), config.algorithm.kl_penalty
        ).numpy()
        roots = [t for t in trajectories if not t.forked_from]  # a target means the same with forks and without
        of_root = np.repeat([not t.forked_from for t in trajectories], np.diff(action_offsets(trajectories)))
        metrics["actor/ref_kl"] = mean_kl(estimate[of_root], action_offsets(roots))
        if config.algorithm.use_kl_in_reward:
            metrics["actor/kl_coef"] = kl.beta
            penalty = kl.beta * estimate
            kl.update(metrics["actor/ref_kl"], len(roots))

    values = bootstrap = None
    if learner.critic is not None:
        parts, bootstrap = learner.values(trajectories)
        values = columns["old_values"] = _flat(parts)
    side = np.arange(len(trajectories)) >= len(trajectories) - users
    batch = ActionBatch.from_trajectories(trajectories, values=values, bootstrap=bootstrap, penalty=penalty, side=side)
    batch, found = compared_with(config.algorithm, batch, trajectories, greedy or {})
    metrics |= {f"actor/{name}": value for name, value in found.items()}
    estimator, options = config.algorithm.adv_estimator, estimator_options(config.algorithm)
    advantages = ESTIMATORS[estimator](batch, **options)
    if explain:
        advantages = replace(advantages, made_of=made_of(estimator, batch, advantages, options))
    advantages = restrict(advantages, kept)
    counted = advantages.advantages[advantages.policy_mask]
    metrics |= {
        "actor/advantage_std": float(counted.std()) if counted.size else 0.0,
        "actor/advantage_abs_max": float(np.abs(counted).max(initial=0.0)),
    }
    if advantages.returns is not None:
        assert values is not None
        assert advantages.value_mask is not None
        columns["returns"] = advantages.returns
        foreseen, returns = values[advantages.value_mask], advantages.returns[advantages.value_mask]
        metrics["critic/value_mean"] = float(foreseen.mean())
        if (variance := float(np.var(returns))) > 0:  # 1: all of it; 0: no more than their mean; below it, less
            metrics["critic/explained"] = 1.0 - float(np.var(returns - foreseen)) / variance
    if config.algorithm.norm_adv:
        advantages = normalize(advantages)
    columns["advantages"] = advantages.advantages
    return columns, advantages, metrics


def explained_of(
    config: PPOConfig,
    columns: Mapping[str, Floats],
    advantages: Advantages,
    recorded: Mapping[str, Floats],
    paid: Sequence[Trajectory],
    greedy: Mapping[str, float],
    steps: Sequence[Mapping[str, float]],
) -> Explained:
    """What is written of a batch: of :func:`credit`, and ``recorded`` of each token, ``[N]`` (:data:`RECORDED`)."""
    named: dict[str, NDArray[np.floating]] = {
        "learner_logprobs": recorded["token_logprobs"].astype(np.float32),
        "loss_weight": recorded["weight"],
    }
    named |= {name: recorded[f"token_{name}"].astype(np.float32) for name in ("entropy", "ratio", "clipped", "loss")}
    named |= advantage_columns(columns, advantages)
    made, mask = advantages.made_of, advantages.policy_mask
    assert made is not None
    return Explained(named, paid, made.unscaled, mask, made.by_fork, greedy, recorded["step"], steps,
                     config.algorithm.adv_estimator in NEEDS_TERMS)  # fmt: skip


def advantage_columns(columns: Mapping[str, Floats], advantages: Advantages) -> dict[str, Floats]:
    """What :func:`credit`, which was asked to explain, says of each token, by the names of the files of episodes."""
    assert advantages.made_of is not None
    named = {"advantage": advantages.advantages, "return": advantages.made_of.returns}
    if advantages.made_of.baseline is not None:
        named["baseline"] = advantages.made_of.baseline
    if "importance" in columns:
        named["importance_weight"] = columns["importance"]
    return named


def off_policy_correction(
    section: ActorSection, old: Floats, rollout: Floats, offsets: NDArray[np.int64]
) -> tuple[Floats | None, NDArray[np.bool_], dict[str, float]]:
    """From the policy that sampled to the one that the update starts from: weights, tokens to keep, metrics."""
    mode, cap = section.importance_correction, section.tis_cap
    weights = off_policy.importance_weights(mode, old, rollout, offsets, cap)
    band = section.rejection_low, section.rejection_high
    kept = off_policy.acceptance_mask(section.rejection, old, rollout, offsets, *band, section.rejection_kl)
    metrics = off_policy.mismatch(old, rollout)
    if weights is not None:
        metrics |= off_policy.weight_metrics(weights, mode, cap)
        if section.importance_batch_normalize:
            weights = off_policy.batch_normalized(weights, offsets, mode)
    if section.rejection != "none" and kept.size:
        metrics["rejected"] = 1.0 - float(kept.mean())
    return weights, kept, metrics


def compared_with(
    section: AlgorithmSection, batch: ActionBatch, trajectories: Sequence[Trajectory], greedy: Mapping[str, float]
) -> tuple[ActionBatch, dict[str, float]]:
    """The batch with what the estimator compares episodes with, besides each other; and metrics."""
    if section.adv_estimator in NEEDS_GREEDY:
        returns = np.array([greedy[trajectory.group_id] for trajectory in trajectories], np.float64)
        return replace(batch, greedy=returns), {"greedy_reward": float(np.mean(list(greedy.values())))}
    if section.adv_estimator in NEEDS_ANCHOR:
        batch = replace(batch, anchor=anchor_states(trajectories, section.anchor))
        return batch, {"anchored": float(np.mean(shared_anchors(batch)))}
    if section.adv_estimator in NEEDS_TERMS:
        names, terms = episode_terms(trajectories, section.gdpo_reward_keys)
        paid = {name for each in trajectories for turn in each.turn_terms for name in turn}
        if missing := sorted(set(names) - paid):
            log.warning("no episode of this batch was paid %s; its terms are %s", missing, sorted(paid))
        deviations = {f"term_std/{name}": float(term.std()) for name, term in zip(names, terms.T, strict=True)}
        return replace(batch, terms=terms), deviations
    if "baseline" in estimator_keys(section.adv_estimator) and section.baseline == "optimal_token":
        sampled = gather(trajectories, [t.logprobs for t in trajectories]).astype(np.float64)
        return replace(batch, score_norms=score_norms(sampled)), {}
    return batch, {}


def estimator_options(section: AlgorithmSection) -> dict[str, Any]:
    options = {name: getattr(section, name) for name in estimator_keys(section.adv_estimator)}
    for name in ("anchor", "gdpo_reward_keys"):  # they say what the batch holds
        options.pop(name, None)
    if options.get("norm_by_std", False) is None:
        del options["norm_by_std"]  # the estimator's own habit
    return options


def selected_tokens(
    section: ActorSection, columns: Mapping[str, Floats], mask: NDArray[np.bool_], rng: np.random.Generator
) -> dict[str, Floats]:
    """The tokens that ``clip_cov`` and ``kl_cov`` treat differently, chosen once from the whole batch.

    ``mask``, bool ``[N]``, are the tokens that the policy is trained on. The column ``selected`` ``[N]`` is 1 where a
    token is chosen; other losses have none.
    """
    given = columns["old_logprobs"], columns["advantages"], mask
    if section.policy_loss == "clip_cov":
        low, high = section.clip_cov_lb, section.clip_cov_ub
        chosen = clip_cov_tokens(*given, ratio=section.clip_cov_ratio, low=low, high=high, rng=rng)
    elif section.policy_loss == "kl_cov":
        chosen = kl_cov_tokens(*given, ratio=section.kl_cov_ratio)
    else:
        return {}
    return {"selected": chosen.astype(np.float64)}


def has_gradient(
    section: ActorSection, advantages: Floats, mask: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which episodes the policy's gradient depends on, bool ``[E]``; ``advantages`` and ``mask`` are ``[N]``.

    An advantage of 0 everywhere leaves every loss but ``kl_cov`` without a gradient; an entropy bonus and a KL have one
    for every token. ``offsets`` ``[E + 1]``: :func:`~trainers.trajectory.action_offsets`.
    """
    if section.entropy_coeff or section.use_kl_loss or section.policy_loss == "kl_cov":
        return np.ones(len(offsets) - 1, np.bool_)
    before = np.concatenate([[0], np.cumsum(mask & (advantages != 0))])
    return np.diff(before[offsets]) > 0


#: The key of ``actor`` that is each option of a loss.
LOSS_KEYS = {
    "clip_low": "clip_ratio_low",
    "clip_high": "clip_ratio_high",
    "dual_clip": "clip_ratio_c",
    "ratio_cap": "clip_ratio_c",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
    "kl_coef": "ppo_kl_coef",
}


#: What is recorded of each token: of the learner, and of :func:`policy_loss`.
RECORDED = ("token_logprobs", "token_entropy", "token_ratio", "token_clipped", "token_loss")


def policy_loss(section: ActorSection, record: bool = False) -> Any:
    """The policy's loss, an entropy bonus, and the KL to the reference if asked for; ``record``: :data:`RECORDED`."""
    options = {name: getattr(section, LOSS_KEYS[name]) for name in LOSS_OPTIONS[section.policy_loss]}

    def loss(logprobs: Tensor, entropy: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        surrogate = policy_loss_of(
            section.policy_loss,
            logprobs,
            batch["old_logprobs"],
            batch["advantages"],
            batch["trajectory"],
            selected=batch.get("selected"),
            importance=batch.get("importance"),
            **options,
        )
        per_token = surrogate.loss
        if section.entropy_coeff:  # a gradient of 0 would be computed all the same
            per_token = per_token - section.entropy_coeff * entropy
        sums = {name: (batch["share"] * value).sum() for name, value in surrogate.stats.items()}
        if section.use_kl_loss:
            kl = kl_estimate(logprobs, batch["ref_logprobs"], section.kl_loss_type)
            per_token = per_token + section.kl_loss_coef * kl
            sums["kl_loss"] = (batch["share"] * kl.detach()).sum()
        if record:
            of_tokens = {"ratio": surrogate.stats["ratio"], "clipped": surrogate.stats["clipped"], "loss": per_token}
            sums |= {f"token_{name}": value.detach() for name, value in of_tokens.items()}
        return (batch["weight"] * per_token).sum(), sums

    return loss


def critic_loss(section: CriticSection) -> Any:
    """The squared error of the values, clipped if asked for; see ``Learner``."""

    def loss(values: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        error = value_loss(values, batch["old_values"], batch["returns"], clip=section.cliprange_value)
        return (batch["weight"] * error.loss).sum(), {"clipped": (batch["weight"] * error.stats["value_clipped"]).sum()}

    return loss


def norm_length(config: PPOConfig) -> float | None:
    """What ``seq-mean-token-sum-norm`` divides by, where it is asked for."""
    wanted = config.actor.loss_agg_mode == "seq-mean-token-sum-norm"
    return float(config.rollout.max_response_length) if wanted else None


def _flat(parts: Sequence[NDArray[np.float32]]) -> Floats:
    return np.concatenate([np.zeros(0), *parts])
