"""Trajectories and models for the tests of the learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainers.config.learning import CriticSection
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.section import ActorSection
from trainers.trajectory import Status, Trajectory

VOCAB = 61


def sections(**keys: Any) -> dict[str, Any]:
    """Return a learner's arguments on the CPU: the keys of its sections in these, and a section for ``critic=True``."""
    keys = {"device": "cpu"} | keys
    kinds = {"model": ModelSection, "run": RunSection, "actor": ActorSection}
    made = {
        name: kind(**{key: keys.pop(key) for key in kind.model_fields.keys() & keys.keys()})
        for name, kind in kinds.items()
    }
    critic = keys.pop("critic", False)
    return {**made, "critic": CriticSection() if critic is True else critic or None, **keys}


def trajectory(
    rng: np.random.Generator, segments: Sequence[Sequence[tuple[int, int]]], *, tail: int = 0, vocab: int = VOCAB
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


def masked(item: Trajectory, rng: np.random.Generator, vocab: int = VOCAB) -> Trajectory:
    """With a sampling mask of 1 to 9 tokens for most action tokens."""
    counts = np.where(item.action_mask & (rng.random(len(item.token_ids)) < 0.8), rng.integers(1, 10), 0)
    sets = []
    for token, count in zip(item.token_ids, counts, strict=True):
        rest = rng.permutation(np.delete(np.arange(vocab), token))[: max(count - 1, 0)]
        sets.append(np.sort(np.append(rest, token)) if count else rest)
    ids = np.concatenate([np.zeros(0), *sets]).astype(np.int32)
    return replace(item, kept_ids=ids, kept_counts=counts.astype(np.int32))


def some_masked_trajectories() -> list[Trajectory]:
    """Return :func:`some_trajectories`, every second with a sampling mask."""
    rng = np.random.default_rng(7)
    return [item if number % 2 else masked(item, rng) for number, item in enumerate(some_trajectories())]


def forks(items: Sequence[Trajectory], seed: int = 5) -> list[Trajectory]:
    """Return for each trajectory of at least 8 tokens another one, which differs from the middle on."""
    rng = np.random.default_rng(seed)
    made = []
    for item in items:
        if (size := len(item.token_ids)) >= 8:
            rest = rng.integers(0, VOCAB, size - size // 2).astype(np.int32)
            tokens = np.append(item.token_ids[: size // 2], rest)
            nothing = np.zeros(0, np.int32)
            made.append(replace(item, token_ids=tokens, kept_ids=nothing, kept_counts=nothing))
    return made


def some_trajectories(seed: int = 0) -> list[Trajectory]:
    """Return trajectories of all kinds: short, long, one turn, several, two segments, truncated, without an action."""
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
