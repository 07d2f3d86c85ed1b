"""What an advantage is made of, for people: the return that an estimator compares, and the baseline it subtracts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainers.algorithms.advantages import ESTIMATORS, NEEDS_CRITIC, Advantages
from trainers.algorithms.batch import ActionBatch, Floats
from trainers.algorithms.fork import fork_values
from trainers.algorithms.returns import MadeOf, discounted_sums

#: Estimators that compare whole episodes; the others compare what is earned from a turn, or a token, on.
_OF_EPISODES = frozenset(
    {"grpo", "dr_grpo", "opo", "gdpo", "grpo_passk", "passk", "rloo", "reinforce_pp_baseline", "remax", "gigpo"}
)
#: Those that add up several comparisons, or compare other numbers than returns: they have no one baseline.
_MIXED = frozenset({"gdpo", "grpo_passk", "passk", "gigpo"})


def made_of(name: str, batch: ActionBatch, result: Advantages, options: Mapping[str, Any]) -> MadeOf:
    """What the advantages of estimator ``name`` are made of: ``(return - baseline)``, up to a scale."""
    by_fork: Floats | None = None
    returns: Floats
    if name in NEEDS_CRITIC:
        assert batch.values is not None
        values = batch.values[batch.turn_starts[batch.turn_of_token]] if name == "turn_gae" else batch.values
        return MadeOf(result.advantages + values, values, result.advantages)
    if name in _OF_EPISODES:
        totals = np.bincount(batch.episode_of_turn, batch.net_turn_rewards, minlength=batch.num_episodes)
        returns = np.asarray(totals, np.float64)[batch.episode_of_token]
    elif name == "fork":
        q, by_fork = fork_values(batch, gamma=options.get("gamma", 1.0), truncated=options.get("truncated", "count"))
        returns = q[batch.turn_of_token]
    elif name == "turn_grpo":
        to_go = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, options.get("gamma", 1.0))
        returns = to_go[batch.turn_of_token]
    else:
        returns = discounted_sums(batch.token_rewards, batch.token_offsets, options.get("gamma", 1.0))
    if name in _MIXED or options.get("outcome_mix"):
        return MadeOf(returns, None, result.advantages, by_fork)
    unscaled = _unscaled(name, batch, result, returns, options)
    return MadeOf(returns, np.where(result.policy_mask, returns - unscaled, np.nan), unscaled, by_fork)


def _unscaled(name: str, batch: ActionBatch, result: Advantages, returns: Floats, options: Mapping[str, Any]) -> Floats:
    """The advantages without a division by a deviation."""
    mask = result.policy_mask
    if name in ("reinforce_pp", "reinforce_pp_baseline") and mask.any():  # the batch's mean is in the baseline, too
        given = returns if name == "reinforce_pp" else ESTIMATORS["dr_grpo"](batch, **options).advantages
        return np.where(mask, given - given[mask].mean(), 0.0)
    if name == "grpo" or options.get("norm_by_std"):
        return ESTIMATORS[name](batch, **{**options, "norm_by_std": False}).advantages
    return result.advantages
