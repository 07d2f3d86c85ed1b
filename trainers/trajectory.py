"""The one thing that everything passes on: an episode as tokens, turns and rewards.

Written by the rollout, read by credit assignment and the learner, dumped to Parquet for people.

Invariants (checked on construction, so that no consumer has to):

* all per-token arrays have the length of ``token_ids``; they are NumPy, never padded;
* ``action_mask[i]`` is true exactly where the policy sampled token ``i``; there ``turn_id >= 0``, ``weight_version >= 0``
  and ``logprobs`` is finite; elsewhere they are ``-1``, ``-1`` and ``0``;
* turn ids are non-decreasing over the action tokens and index ``turn_rewards``;
* a turn's reward stands at its last action token (:meth:`Trajectory.token_rewards`);
* ``segment_starts`` splits the arrays into token sequences that the model sees apart from each other: one, unless the
  chat template rewrote history and the episode had to be rendered anew from some turn on. The token ids of a segment
  are what the engine was given and returned, never re-tokenised text.
* tokens after the last action token are the observation that a *truncated* episode ended in, with the next generation
  prompt: the state whose value bootstraps the return. A terminated episode ends with an action token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from textenvs.messages import Messages


class Status(StrEnum):
    """How an episode ended. Errors are data: an episode always ends in one of these."""

    COMPLETED = "completed"  #: the environment terminated
    TRUNCATED_TURNS = "truncated_turns"  #: a turn budget of the environment ran out
    TRUNCATED_CONTEXT = "truncated_context"  #: the context or the response budget ran out
    TRUNCATED_TIME = "truncated_time"  #: a step, generation or episode timeout
    ERROR_ENV = "error_env"  #: the environment raised, died, or marked the episode as failed
    ERROR_ENGINE = "error_engine"  #: the engine raised or died
    ERROR_REWARD = "error_reward"  #: a later reward could not be computed
    ABORTED = "aborted"  #: cancelled by the collector

    @property
    def trainable(self) -> bool:
        """Whether the episode's rewards mean what they say, so that training may use it."""
        return self in (Status.COMPLETED, Status.TRUNCATED_TURNS, Status.TRUNCATED_CONTEXT)


@dataclass(frozen=True)
class Trajectory:
    """One episode. ``T`` tokens over all segments, ``K`` assistant turns.

    Args:
        token_ids: int32 ``[T]``.
        action_mask: bool ``[T]``; true where the policy sampled the token.
        logprobs: float32 ``[T]``; natural log, of the policy that sampled the token, at the sampling temperature over
            the full vocabulary (see :mod:`trainers.engines.base`); 0 elsewhere.
        weight_version: int32 ``[T]``; the weights that sampled the token; -1 elsewhere.
        turn_id: int32 ``[T]``; the assistant turn of an action token, from 0; -1 elsewhere.
        turn_rewards: float64 ``[K]``.
        turn_terms: ``K`` mappings, the named parts of each turn's reward.
        terminated: The task is over; the return ends here.
        truncated: A budget ran out (or the episode was cut short); the return would have gone on.
        status: How it ended, including failures.
        stop: The environment's own word for why it ended, if it had one.
        episode_id: Unique within a run.
        group_id: Episodes of the same task drawn together share it.
        task_key: The task's stable name.
        data_source: The task's source.
        segment_starts: int32 ``[S]``, ``S >= 1`` (for ``T > 0``), the first is 0.
        messages: The conversation, for people and for judges.
        metrics: Numbers worth reporting.
        error: What went wrong, where the status is an error.
    """

    token_ids: NDArray[np.int32]
    action_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    weight_version: NDArray[np.int32]
    turn_id: NDArray[np.int32]
    turn_rewards: NDArray[np.float64]
    turn_terms: tuple[Mapping[str, float], ...] = ()
    terminated: bool = False
    truncated: bool = False
    status: Status = Status.COMPLETED
    stop: str | None = None
    episode_id: str = ""
    group_id: str = ""
    task_key: str = ""
    data_source: str = ""
    segment_starts: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    messages: Messages = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def num_turns(self) -> int:
        """Assistant turns with a reward, ``K``."""
        return len(self.turn_rewards)

    @property
    def total_reward(self) -> float:
        """The episode's undiscounted return."""
        return float(np.sum(self.turn_rewards))

    @property
    def oldest_version(self) -> int | None:
        """The smallest weight version among the action tokens; ``None`` without any."""
        versions = self.weight_version[self.action_mask]
        return int(versions.min()) if versions.size else None

    def token_rewards(self) -> NDArray[np.float64]:
        """float64 ``[T]``: each turn's reward at its last action token, 0 elsewhere."""
        rewards = np.zeros(len(self.token_ids), np.float64)
        ends = self.turn_ends()
        assert bool(self.action_mask[ends].all()), "a turn's reward must stand on a token that the policy sampled"
        rewards[ends] = self.turn_rewards
        return rewards

    def turn_ends(self) -> NDArray[np.int64]:
        """int64 ``[K]``: the index of each turn's last action token."""
        where = np.flatnonzero(self.action_mask)
        ends = np.full(self.num_turns, -1, np.int64)
        ends[self.turn_id[where]] = where  # later writes win: the last token of each turn stays
        return ends


def trajectory_to_row(trajectory: Trajectory) -> dict[str, Any]:  # completed with Arrow/Parquet by the rollout part
    """Placeholder of the contract: replaced with the Arrow round trip."""
    raise NotImplementedError
