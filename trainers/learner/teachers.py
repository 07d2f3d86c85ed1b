"""Teachers: episodes as a teacher with privileged context sees them, and models that only score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.models.source import ModelSource
from trainers.trajectory import Trajectory


def as_taught(trajectory: Trajectory) -> Trajectory:
    """Return the episode with each turn in its teacher's context: one context a turn, which ends with the reply.

    The action tokens are the same, in the same order of time, and only they are. A turn without a teacher's context has
    its own. ``ValueError``: the episode was collected without (``teacher_shared``).
    """
    turns = trajectory.num_turns
    if len(trajectory.teacher_shared) != turns:
        name = f"trajectory {trajectory.episode_id or '?'}"
        raise ValueError(
            f"{name} has no context for a teacher: it was collected without actor.distill.context; collect it again"
        )
    if not turns:
        return trajectory
    starts = trajectory.segment_starts
    ends = np.cumsum(trajectory.teacher_counts)
    pieces: list[NDArray[np.int64]] = []  # of each context: places in the arrays, where negative: -1 - place in its own
    bounds = [0]
    for turn in range(turns):
        own = np.flatnonzero(trajectory.turn_id == turn)
        start = int(starts[np.searchsorted(starts, own[0], side="right") - 1])
        if (shared := int(trajectory.teacher_shared[turn])) < 0:
            prefix = np.arange(start, own[0])
        else:
            added = np.arange(ends[turn] - trajectory.teacher_counts[turn], ends[turn])
            prefix = np.concatenate([np.arange(start, start + shared), -1 - added])
        pieces += [prefix, own]
        bounds.append(bounds[-1] + len(prefix) + len(own))
    places = np.concatenate(pieces)
    known = places >= 0
    # The tokens of the teacher's own contexts stand behind the episode's.
    index = np.where(known, places, len(trajectory.token_ids) - 1 - places)
    own_mask = np.concatenate([np.full(len(part), bool(number % 2)) for number, part in enumerate(pieces)])

    def shown(array: NDArray[Any], other: float) -> NDArray[Any]:
        return np.where(own_mask, array[np.where(known, places, 0)], other).astype(array.dtype)

    counts = trajectory.kept_counts
    return replace(
        trajectory,
        token_ids=np.concatenate([trajectory.token_ids, trajectory.teacher_ids])[index],
        action_mask=own_mask,
        logprobs=shown(trajectory.logprobs, 0.0),
        weight_version=shown(trajectory.weight_version, -1),
        turn_id=shown(trajectory.turn_id, -1),
        segment_starts=np.array(bounds[:-1], np.int32),
        kept_ids=_by_turn(trajectory) if len(counts) else trajectory.kept_ids,
        kept_counts=shown(counts, 0) if len(counts) else counts,
        observation_mask=trajectory.observation_mask[:0],
        teacher_shared=trajectory.teacher_shared[:0],
        teacher_counts=trajectory.teacher_counts[:0],
        teacher_ids=trajectory.teacher_ids[:0],
    )


def _by_turn(trajectory: Trajectory) -> NDArray[np.int32]:
    """Return the sampling mask's ids in the order of time."""
    ends = np.cumsum(trajectory.kept_counts)
    parts = [trajectory.kept_ids[ends[i] - trajectory.kept_counts[i] : ends[i]] for i in trajectory.actions]
    return np.concatenate([trajectory.kept_ids[:0], *parts])


def taught_tokens(trajectories: Sequence[Trajectory], *, privileged: bool) -> NDArray[np.bool_]:
    """Return which of all action tokens a teacher scores, bool ``[N]``: with ``privileged``, those of its contexts."""
    parts = [np.zeros(0, np.bool_)]
    for item in trajectories:
        turns = item.turn_id[item.actions]
        parts.append(item.teacher_shared[turns] >= 0 if privileged else np.ones(len(turns), np.bool_))
    return np.concatenate(parts)


def unused_of_teacher(teacher: ModelSource, vocabulary: int, unused: Sequence[int]) -> list[int]:
    """Return the ids that a teacher's distribution leaves out, so that it is over the ids that the policy samples.

    ``vocabulary`` and ``unused`` are the policy's. ``ValueError``: the teacher has no such ids, so other tokens.
    """
    own = int(teacher.config.get_text_config().vocab_size)
    left_out = set(unused)
    if missing := [token for token in range(own, vocabulary) if token not in left_out]:
        raise ValueError(
            f"the teacher {teacher} has {own} tokens, and the policy's tokenizer has the token {missing[0]}"
        )
    return sorted({token for token in left_out if token < own} | set(range(vocabulary, own)))
