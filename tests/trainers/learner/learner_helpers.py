"""Trajectories and models for the tests of the learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from trajectories import mixed, trajectory_of, turns_of

from trainers.config.learning import CriticSection
from trainers.config.model import ModelSection
from trainers.config.running import RunSection
from trainers.learner.fsdp import whole
from trainers.learner.top_tokens import TopTokens
from trainers.models.tiny import build_model
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

VOCAB = 61
Ids: TypeAlias = NDArray[np.int32]


def small_model(family: str = "qwen2", **overrides: Any) -> Any:
    return build_model(
        VOCAB, family=family, **{"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "seed": 3} | overrides
    )


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
    """Random tokens: each context is a list of (observed tokens, action tokens); ``tail`` observed ones at the end.

    The turns of different contexts are in a random order.
    """
    turns = turns_of(*chain.from_iterable(segments), tail=tail)
    starts = np.cumsum([0, *(np.sum(segment) for segment in segments[:-1])])
    item = trajectory_of(
        turns,
        token_ids=rng.integers(0, vocab, len(turns)),
        episode_id=f"episode-{rng.integers(1 << 30)}",
        segment_starts=starts.astype(np.int32),
    )
    return mixed(item, np.random.default_rng(len(turns)))


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


def observed(items: Sequence[Trajectory], seed: int = 9) -> list[Trajectory]:
    """With about half of the tokens that may be observation tokens as such, in trajectories with action tokens."""
    rng = np.random.default_rng(seed)
    made = []
    for item in items:
        mask = ~item.action_mask & (rng.random(len(item.token_ids)) < 0.5) & item.action_mask.any()
        mask[item.segment_starts] = False
        made.append(replace(item, observation_mask=mask))
    return made


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
        trajectory(rng, [[(4, 2), (2, 1), (3, 2)], [(5, 3), (1, 2)], [(2, 2), (2, 4)]]),
    ]


def naive_scores(model: Any, item: Trajectory, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probability and entropy of each action token, over its mask, from the model's own logits.

    A context at a time, without padding.
    """
    scores = {}
    starts = np.concatenate([[0], np.cumsum(item.kept_counts)])
    for part in item.segments():
        ids = torch.from_numpy(item.token_ids[part].astype(np.int64))
        logits = model(input_ids=ids[None], use_cache=False).logits[0] / temperature
        for i in np.flatnonzero(item.action_mask[part]):
            at = part.start + i
            tokens = list(range(logits.shape[1]))
            if len(item.kept_counts) and item.kept_counts[at]:
                tokens = item.kept_ids[starts[at] : starts[at + 1]].tolist()
            log_p = torch.log_softmax(logits[i - 1, tokens], -1)
            scores[at] = log_p[tokens.index(int(ids[i]))], -(log_p.exp() * log_p).sum()
    if not scores:
        return torch.zeros(0), torch.zeros(0)
    logprobs, entropies = zip(*(scores[at] for at in item.actions), strict=True)
    return torch.stack(logprobs), torch.stack(entropies)


def naive_top(model: Any, item: Trajectory, ids: Ids, temperature: float) -> torch.Tensor:
    """Return the log-probabilities of ``ids`` ``[n, k]`` of each action token's distribution; 0 where below 0."""
    rows = dict(zip(item.actions.tolist(), torch.from_numpy(ids.astype(np.int64)), strict=True))
    scores: dict[int, torch.Tensor] = {}
    starts = np.concatenate([[0], np.cumsum(item.kept_counts)])
    for part in item.segments():
        tokens = torch.from_numpy(item.token_ids[part].astype(np.int64))
        logits = model(input_ids=tokens[None], use_cache=False).logits[0] / temperature
        for i in np.flatnonzero(item.action_mask[part]):
            row = logits[i - 1]
            at = part.start + int(i)
            if len(item.kept_counts) and item.kept_counts[at]:
                kept = torch.from_numpy(item.kept_ids[starts[at] : starts[at + 1]].astype(np.int64))
                row = torch.full_like(row, -1e9).scatter(0, kept, row[kept])
            scores[at] = torch.where(rows[at] < 0, 0.0, torch.log_softmax(row, -1)[rows[at].clamp(min=0)])
    return torch.stack([scores[int(at)] for at in item.actions]) if scores else torch.zeros(ids.shape)


def top_tokens(states: int, count: int = 5, seed: int = 6) -> TopTokens:
    """Return a teacher's scores of different tokens of each state; every fourth state has none, others one less."""
    rng = np.random.default_rng(seed)
    ids = rng.random((states, VOCAB)).argsort(-1)[:, :count].astype(np.int32)
    ids[::4], ids[1::4, -1] = -1, -1
    logprobs = np.log(rng.uniform(0.01, 0.9 / count, ids.shape)).astype(np.float32)
    return TopTokens(ids, np.where(ids < 0, np.float32(0), logprobs))


def naive_observations(model: Any, item: Trajectory) -> torch.Tensor:
    """Return the log-probability of each observation token at temperature 1, from the model's own logits."""
    scores = []
    for part in item.segments():
        ids = torch.from_numpy(item.token_ids[part].astype(np.int64))
        log_p = torch.log_softmax(model(input_ids=ids[None], use_cache=False).logits[0], -1)
        scores += [log_p[i - 1, ids[i]] for i in np.flatnonzero(item.observation_mask[part])]
    return torch.stack(scores) if scores else torch.zeros(0)


def caught_gradients(optimizer: Any, update: Callable[[], Any]) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the whole gradients that an update is made of, and its metrics."""
    caught: dict[str, torch.Tensor] = {}
    original = optimizer.step

    def step(what: str) -> Any:
        caught.update({name: whole(p.grad).clone() for name, p in optimizer.names.items()})
        return original(what)

    optimizer.step = step
    try:
        metrics = update()
    finally:
        optimizer.step = original
    return caught, metrics
