"""Warnings about allowed settings that the documentation calls noisy, wrong or biased."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

#: Defects of a KL estimator's gradient, in the reward and in the loss.
_IN_REWARD = {
    "k2": "its gradient there is wrong",
    "k3": "its gradient there is nearly none while the policies are close",
    "abs": "its gradient there is wrong",
}
_IN_REWARD["low_var_kl"] = _IN_REWARD["k3"]
_IN_LOSS = {"k1": "its gradient there is zero in expectation, which is noise", "abs": "its gradient there is wrong"}
_KL = "(docs/algorithms.md, KL)"
#: Credit assignments that change the optimal policy, and the condition under which they do.
_MISLEADING_CREDIT = {
    "spread": "what is done decides how many turns follow",
    "discounted": "what is done decides when a reward comes",
}


def notices(config: Any) -> Iterator[str]:
    """Yield warnings about allowed settings, a line each, printed when a run starts."""
    if getattr(config, "algorithm", None) is not None:  # a command that trains with rewards
        yield from _rewards(config)
        yield from _sampling(config)


def _rewards(config: Any) -> Iterator[str]:
    algorithm, actor = config.algorithm, config.actor
    credit = algorithm.reward_credit
    if credit in _MISLEADING_CREDIT and (credit != "discounted" or algorithm.reward_credit_decay > 0):
        yield (
            f"warning: algorithm.reward_credit={credit} learns another policy than the one that earns most wherever "
            f"{_MISLEADING_CREDIT[credit]} (docs/credit.md has an example); as_earned and last do not"
        )
    if algorithm.use_kl_in_reward and (why := _IN_REWARD.get(algorithm.kl_penalty)):
        yield f"warning: algorithm.kl_penalty={algorithm.kl_penalty} in the reward: {why}; use k1 {_KL}"
    if actor.use_kl_loss and (why := _IN_LOSS.get(actor.kl_loss_type)):
        yield f"warning: actor.kl_loss_type={actor.kl_loss_type} in the loss: {why}; use k2 or k3 {_KL}"
    if algorithm.adv_estimator == "bilevel_gae" and algorithm.turn_lam < 1:
        yield (
            f"warning: algorithm.turn_lam={algorithm.turn_lam:g} is biased, with a right critic too, where the policy "
            "chooses how long a reply is; use 1, or algorithm.adv_estimator=turn_gae (docs/algorithms.md, bilevel_gae)"
        )


def _sampling(config: Any) -> Iterator[str]:
    algorithm, rollout = config.algorithm, config.rollout
    cuts = {"top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0, "min_p": rollout.min_p > 0}
    if any(cuts.values()) and rollout.temperature > 0 and not rollout.keep_sampling_mask:
        named = " ".join(f"rollout.{name}={getattr(rollout, name):g}" for name, cuts_off in cuts.items() if cuts_off)
        mask = f"use rollout.keep_sampling_mask=true{'' if rollout.top_k else ' (with rollout.top_k)'}, or "
        yield (
            f"warning: {named} samples from another policy than the one that is trained, and nothing corrects that: "
            f"{mask if config.engine.name == 'torch' else ''}sample without cuts (docs/algorithms.md, Sampling masks)"
        )
    mixes = algorithm.adv_estimator != "fork" and getattr(algorithm, "baseline", "group") != "group"
    filters = {
        "filter_zero_variance=true": rollout.filter_zero_variance,
        f"filter_variance_top_p={rollout.filter_variance_top_p:g}": rollout.filter_variance_top_p < 1,
    }
    for name in (name for name, filtering in filters.items() if filtering and mixes):
        yield (
            f"warning: rollout.{name} with algorithm.baseline={algorithm.baseline} bends the "
            "gradient, of which a group whose episodes earned the same has a part there; use algorithm.baseline=group "
            "(docs/algorithms.md, Dynamic sampling)"
        )
    beside = {
        "actor.distill": config.actor.distill.teacher is not None,
        "algorithm.reaction_credit.scale=fixed": (credit := algorithm.reaction_credit).weight
        and credit.scale == "fixed",
    }
    for name, other in itertools.product((n for n, on in filters.items() if on), (n for n, on in beside.items() if on)):
        yield (
            f"warning: rollout.{name} drops groups whose episodes earned the same, of which {other} would learn, too; "
            "use neither filter"
        )
