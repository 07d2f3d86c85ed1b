"""Advantage estimators for verl that see turns, made of those in :mod:`trainers.algorithms.advantages`.

verl gives an estimator rewards a token, the mask of what the policy said, and the group; a turn is a run of the mask.
That is all that is needed where turn rewards stand at the ends of turns, as the ``textenv`` agent loop puts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from ...algorithms.advantages import turn_grpo
from ...algorithms.batch import ActionBatch, Bools

#: Of ``algorithm.textenv``, as in :func:`trainers.algorithms.advantages.turn_grpo`.
_OPTIONS = frozenset({"baseline", "zero_pad", "outcome_mix"})


def action_batch(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any) -> ActionBatch:
    """A padded batch of verl as turns of action tokens.

    A turn earns the rewards from its first token up to the next turn's: its own tokens', so a KL penalty in them, too,
    and any that stands on what the environment said in answer. What stands before the first turn is the first one's.
    Every episode counts as terminated, because verl does not say which were truncated.

    Args:
        token_level_rewards: float ``[B, L]``.
        response_mask: ``[B, L]``; not 0 where the policy sampled the token.
        index: ``[B]``; episodes of the same prompt share it.

    Raises:
        ValueError: ``index`` is missing.
    """
    if index is None:
        raise ValueError("a group estimator needs the prompts' uid, and verl's batch has none")
    mask = _numpy_mask(response_mask)
    rewards = token_level_rewards.detach().cpu().numpy().astype(np.float64)
    starts = mask & ~np.pad(mask, ((0, 0), (1, 0)))[:, :-1]
    turn_of = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    turns = starts.sum(axis=1)
    turn_offsets = np.concatenate([[0], np.cumsum(turns)])
    acted = turns > 0
    of_batch = (turn_of + turn_offsets[:-1, None])[acted]
    turn_rewards = np.bincount(of_batch.ravel(), rewards[acted].ravel(), minlength=int(turn_offsets[-1]))
    _, group = np.unique(np.asarray([str(name) for name in index]), return_inverse=True)
    return ActionBatch(
        token_offsets=np.concatenate([[0], np.cumsum(mask.sum(axis=1))]),
        turn_offsets=turn_offsets,
        turn_index=turn_of[mask],
        turn_rewards=turn_rewards,
        terminated=np.ones(len(mask), np.bool_),
        truncated=np.zeros(len(mask), np.bool_),
        group=group,
    )


@register_adv_est("textenv_turn_grpo")
def textenv_turn_grpo(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any = None,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`~trainers.algorithms.advantages.turn_grpo` for ``algorithm.adv_estimator=textenv_turn_grpo``.

    Of the configuration it reads ``algorithm.gamma`` (a discount a turn), ``algorithm.norm_adv_by_std_in_grpo`` (verl's
    default is true; false is unbiased), and ``algorithm.textenv`` with ``baseline``, ``zero_pad`` and ``outcome_mix``.
    Other arguments are those of :func:`action_batch`.

    Returns:
        Advantages and returns (the same, as in verl's own group estimators), float ``[B, L]``, 0 where the mask is.

    Raises:
        ValueError: There is no ``index``, or ``algorithm.textenv`` has an unknown key or a value out of range.
    """
    settings: Mapping[str, Any] = config if config is not None else {}
    options = dict(settings.get("textenv") or {})
    if unknown := set(options) - _OPTIONS:
        raise ValueError(f"algorithm.textenv: unknown keys {sorted(unknown)}; known are {sorted(_OPTIONS)}")
    result = turn_grpo(
        action_batch(token_level_rewards, response_mask, index),
        gamma=float(settings.get("gamma", 1.0)),
        norm_by_std=bool(settings.get("norm_adv_by_std_in_grpo", True)),
        **options,
    )
    advantages = torch.zeros_like(token_level_rewards)
    mask = torch.from_numpy(_numpy_mask(response_mask)).to(advantages.device)
    advantages[mask] = torch.from_numpy(result.advantages).to(advantages)
    return advantages, advantages.clone()


def _numpy_mask(response_mask: torch.Tensor) -> Bools:
    return np.asarray(response_mask.detach().cpu().numpy() > 0)
