"""Trajectories and models for the tests of the learner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.trajectory import Status, Trajectory

VOCAB = 61


def trajectory(
    rng: np.random.Generator,
    segments: Sequence[Sequence[tuple[int, int]]],
    *,
    tail: int = 0,
    vocab: int = VOCAB,
) -> Trajectory:
    """Random tokens: each segment is a list of (observed tokens, action tokens); ``tail`` observed ones at the end."""
    mask: list[bool] = []
    turns: list[int] = []
    starts: list[int] = []
    turn = 0
    for segment in segments:
        starts.append(len(mask))
        for observed, acted in segment:
            mask += [False] * observed + [True] * acted
            turns += [-1] * observed + [turn] * acted
            turn += int(acted > 0)
    mask += [False] * tail
    turns += [-1] * tail
    actions = np.array(mask, np.bool_)
    over = bool(mask) and mask[-1]  # an episode that terminated ends with an action
    return Trajectory(
        token_ids=rng.integers(0, vocab, len(mask)).astype(np.int32),
        action_mask=actions,
        logprobs=np.where(actions, -1.0, 0.0).astype(np.float32),
        weight_version=np.where(actions, 0, -1).astype(np.int32),
        turn_id=np.array(turns, np.int32),
        turn_rewards=np.zeros(turn),
        terminated=over,
        truncated=not over,
        status=Status.COMPLETED if over else Status.TRUNCATED_TURNS,
        episode_id=f"episode-{rng.integers(1 << 30)}",
        segment_starts=np.array(starts, np.int32),
    )


def some_trajectories(seed: int = 0) -> list[Trajectory]:
    """Of all kinds: short and long, one turn and several, two segments, truncated ones, one without an action."""
    rng = np.random.default_rng(seed)
    return [
        trajectory(rng, [[(3, 4)]]),
        trajectory(rng, [[(9, 5), (4, 7), (2, 6)]]),
        trajectory(rng, [[(1, 1)]]),
        trajectory(rng, [[(5, 3), (3, 2)], [(6, 4)]]),
        trajectory(rng, [[(12, 8), (3, 9)]], tail=5),
        trajectory(rng, [[(7, 3)], [(4, 0)]], tail=2),
        trajectory(rng, [[(4, 0)]], tail=1),
        trajectory(rng, [[(2, 20)]]),
        trajectory(rng, [[(11, 2)]]),
    ]
