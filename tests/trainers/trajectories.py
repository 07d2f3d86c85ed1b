"""Trajectories for tests, from the turn of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainers.trajectory import Trajectory


def turns_of(*turns: tuple[int, int], tail: int = 0) -> list[int]:
    """Return the turn of each token, -1 if observed: ``turns`` are (observed, sampled), ``tail`` is observed."""
    of_turns = [[-1] * observed + [turn] * sampled for turn, (observed, sampled) in enumerate(turns)]
    return [*sum(of_turns, []), *[-1] * tail]


def trajectory_of(
    turn_id: Sequence[int] | np.ndarray,
    rewards: ArrayLike | None = None,
    *,
    token_ids: ArrayLike | None = None,
    logprobs: ArrayLike = -0.5,
    version: ArrayLike = 0,
    **fields: Any,
) -> Trajectory:
    """Build an episode: rewards are 0 and ids are 0, 1, ... where left out, and it ended by itself or was cut.

    ``logprobs`` and ``version`` are one number, or one for each token; observed tokens have none.
    """
    turns = np.asarray(turn_id, np.int32)
    sampled = turns >= 0
    count = int(turns.max(initial=-1)) + 1
    return Trajectory(
        token_ids=np.asarray(np.arange(len(turns)) if token_ids is None else token_ids, np.int32),
        action_mask=sampled,
        logprobs=np.where(sampled, logprobs, 0).astype(np.float32),
        weight_version=np.where(sampled, version, -1).astype(np.int32),
        turn_id=turns,
        turn_rewards=np.asarray(np.zeros(count) if rewards is None else rewards, np.float64),
        **{"terminated": not fields.get("truncated", False), **fields},
    )
