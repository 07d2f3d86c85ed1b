"""Trajectories for tests, from the turn of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainers.algorithms.batch import ActionBatch
from trainers.engines.base import Generation
from trainers.trajectory import Trajectory


def turns_of(*turns: tuple[int, int], tail: int = 0) -> list[int]:
    """Return the turn of each token, -1 if observed: ``turns`` are (observed, sampled), ``tail`` is observed."""
    turn_id: list[int] = []
    for observed, sampled in turns:
        turn_id += [-1] * observed + [max(turn_id, default=-1) + 1] * sampled
    return turn_id + [-1] * tail


def trajectory_of(
    turn_id: Sequence[int] | np.ndarray,
    rewards: ArrayLike | None = None,
    *,
    token_ids: ArrayLike | None = None,
    logprobs: ArrayLike = -0.5,
    version: ArrayLike = 0,
    **fields: Any,
) -> Trajectory:
    """Build an episode: rewards are 0 and ids are 0, 1, ... where left out. It terminated if it ends with an action.

    ``logprobs`` and ``version`` are one number, or one for each token; observed tokens have none.
    """
    turns = np.asarray(turn_id, np.int32)
    sampled = turns >= 0
    count = int(turns.max(initial=-1)) + 1
    truncated = fields.pop("truncated", not sampled[-1:].any())
    return Trajectory(
        token_ids=np.asarray(np.arange(len(turns)) if token_ids is None else token_ids, np.int32),
        action_mask=sampled,
        logprobs=np.where(sampled, logprobs, 0).astype(np.float32),
        weight_version=np.where(sampled, version, -1).astype(np.int32),
        turn_id=turns,
        turn_rewards=np.asarray(np.zeros(count) if rewards is None else rewards, np.float64),
        truncated=truncated,
        **{"terminated": not truncated, **fields},
    )


def in_contexts(visits: Sequence[tuple[int, int, int]], tail: int = 0) -> tuple[list[int], list[int]]:
    """Return the turn of each token, and where contexts start: ``visits`` are (context, observed, sampled) in time."""
    contexts: dict[int, list[int]] = {}
    for turn, (number, observed, sampled) in enumerate(visits):
        contexts[number] = contexts.pop(number, []) + [-1] * observed + [turn] * sampled  # the one used last at the end
    parts = list(contexts.values())
    starts = np.cumsum([0, *map(len, parts)])[:-1].tolist()
    return [*(turn for part in parts for turn in part), *[-1] * tail], starts if parts or not tail else [0]


def mixed(item: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Return the same tokens, with the turns of different contexts in a random order, which their last uses allow."""
    context = np.searchsorted(item.segment_starts, item.turn_ends(), side="right") - 1  # of each turn
    remaining = [np.flatnonzero(context == number).tolist() for number in range(len(item.segment_starts))]
    remaining = [turns for turns in remaining if turns]
    order: list[int] = []  # from the last turn back to the first
    opened = 0
    while any(remaining):
        choices = [*(turns for turns in remaining[len(remaining) - opened :] if turns)]
        if opened < len(remaining) and (not choices or rng.random() < 0.5):
            opened += 1
            choices = [remaining[len(remaining) - opened]]
        order.append(choices[rng.integers(len(choices))].pop())
    time = np.empty(len(order) + 1, np.int32)
    time[order[::-1]], time[-1] = np.arange(len(order)), -1
    return replace(item, turn_id=time[item.turn_id])


def episode_of(prompt: Sequence[int], reply: Generation) -> Trajectory:
    """Build an episode of one turn: the reply that an engine sampled."""
    return trajectory_of(
        turns_of((len(prompt), len(reply.token_ids))),
        token_ids=[*prompt, *reply.token_ids],
        logprobs=[*[0.0] * len(prompt), *reply.logprobs],
    )


def action_batch(
    lengths: Sequence[Sequence[int]], rewards: ArrayLike, group: ArrayLike | None = None, **fields: Any
) -> ActionBatch:
    """Build a batch of episodes that terminated: ``lengths`` are an episode's action tokens by turn; one group."""
    count = len(lengths)
    return ActionBatch(
        token_offsets=np.cumsum([0, *map(sum, lengths)]),
        turn_offsets=np.cumsum([0, *map(len, lengths)]),
        turn_index=np.concatenate([np.repeat(np.arange(len(turns)), turns) for turns in lengths]),
        turn_rewards=np.asarray(rewards, np.float64),
        group=np.zeros(count, np.int64) if group is None else np.asarray(group),
        **{"terminated": np.ones(count, np.bool_), "truncated": np.zeros(count, np.bool_), **fields},
    )
