"""Many batches in flat arrays: estimators that compare episodes within groups alone see them all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from trainers.algorithms import off_policy
from trainers.algorithms.batch import ActionBatch, Advantages, Bools, Floats, Ints
from trainers.algorithms.estimators import ESTIMATORS, normalize, restrict
from trainers.algorithms.losses import PPO, token_weights
from trainers.algorithms.names import Aggregation

from .ways import Correction, Way

_BY_TOKEN = ("turn_index", "values", "penalty", "score_norms")
_BY_TURN = ("turn_rewards", "anchor")


@dataclass(frozen=True, eq=False)
class Stack:
    """Batches of the same number of episodes, one after the other, with groups of their own.

    Args:
        versions: ``rough`` and ``exact``; see :class:`.Way`.
        size: Episodes a batch.
    """

    versions: Mapping[str, ActionBatch]
    size: int

    @cached_property
    def whole(self) -> ActionBatch:
        """Either version, for their common columns."""
        return next(iter(self.versions.values()))

    @cached_property
    def starts(self) -> Ints:
        """The offsets of batches among the tokens, and the end of the last one; int ``[batches + 1]``."""
        return self.whole.token_offsets[:: self.size]

    @cached_property
    def batch_of_token(self) -> Ints:
        """The number of each token's batch, int ``[N]``."""
        return self.whole.episode_of_token // self.size

    @cached_property
    def _parts(self) -> dict[str, list[ActionBatch]]:
        return {
            version: [
                take(batch, np.arange(at, at + self.size), batch.group[at : at + self.size] - batch.group[at])[0]
                for at in range(0, batch.num_episodes, self.size)
            ]
            for version, batch in self.versions.items()
        }

    def by_batch(self, of_batch: Callable[[int, int, Ints], Floats]) -> Floats:
        """Concatenate a function's results for each batch's first and last token and its token offsets, ``[N]``."""
        offsets = self.whole.token_offsets
        firsts = range(0, len(offsets) - 1, self.size)
        results = [
            of_batch(int(a), int(b), offsets[at : at + self.size + 1] - a)
            for at, (a, b) in zip(firsts, pairwise(self.starts), strict=True)
        ]
        return np.concatenate(results)

    def advantages(self, way: Way) -> Advantages:
        estimator = ESTIMATORS[way.estimator](**way.options)
        if not way.by_batch:
            return estimator.advantages(self.versions[way.version])
        return _joined([estimator.advantages(part) for part in self._parts[way.version]])


def take(batch: ActionBatch, episodes: Ints, group: Ints) -> tuple[ActionBatch, Ints]:
    """Return some episodes of a batch, in this order.

    Args:
        batch: Of any size.
        episodes: int ``[e]``; one may be there several times.
        group: int ``[e]``; the groups that they are in now.

    Returns:
        The batch of them, and which of the tokens these are, int ``[n]``.
    """
    tokens, token_offsets = _spans(batch.token_offsets, episodes)
    turns, turn_offsets = _spans(batch.turn_offsets, episodes)
    columns: dict[str, Any] = {}
    for name in ActionBatch.__dataclass_fields__:
        column = getattr(batch, name)
        chosen = tokens if name in _BY_TOKEN else turns if name in _BY_TURN else episodes
        columns[name] = None if column is None else column[chosen]
    columns |= {"token_offsets": token_offsets, "turn_offsets": turn_offsets, "group": group}
    return ActionBatch(**columns), tokens


def _spans(offsets: Ints, episodes: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the episodes' entries, and their new offsets."""
    lengths = np.diff(offsets)[episodes]
    new = np.concatenate([[0], np.cumsum(lengths)])
    return np.repeat(offsets[episodes] - new[:-1], lengths) + np.arange(new[-1]), new


def _joined(results: list[Advantages]) -> Advantages:
    advantages, masks = ([getattr(result, name) for result in results] for name in ("advantages", "policy_mask"))
    return Advantages(np.concatenate(advantages), np.concatenate(masks))


class Coefficients:
    """The weight of each token's score in the first update of its batch: the trainer's own code throughout.

    Args:
        stack: The batches.
        proximal: ``[N]``; log-probabilities of the policy whose gradient is wanted.
        behaviour: ``[N]``; of the policy that sampled.
    """

    def __init__(self, stack: Stack, proximal: Floats, behaviour: Floats) -> None:
        self._stack = stack
        self._policies = proximal, behaviour, stack.whole.token_offsets
        self._advantages: dict[Any, Advantages] = {}
        self._weights: dict[Any, Floats | None] = {}
        self._masks: dict[Any, Bools] = {}
        self._shares: dict[Any, Floats] = {}

    def of(self, way: Way, correction: Correction) -> Floats:
        """Return the coefficients, ``[N]``."""
        if (key := (way.estimator, tuple(way.options.items()), way.version)) not in self._advantages:
            self._advantages[key] = self._stack.advantages(way)
        bounds = correction.low, correction.high, correction.most
        if (cut := (correction.rejection, *bounds)) not in self._masks:
            self._masks[cut] = off_policy.acceptance_mask(correction.rejection, *self._policies, *bounds)
        result = restrict(self._advantages[key], self._masks[cut])
        if way.norm_adv:
            advantages, mask = result.advantages, result.policy_mask
            scaled = self._stack.by_batch(lambda a, b, _: normalize(Advantages(advantages[a:b], mask[a:b])).advantages)
            result = Advantages(scaled, mask)
        coefficients = self._share(way.aggregation, result.policy_mask) * result.advantages
        if correction.ratio:
            return coefficients * _ratio(result.advantages, *self._policies)
        weights = self._importance(correction)
        return coefficients if weights is None else coefficients * weights

    def _importance(self, correction: Correction) -> Floats | None:
        mode = correction.importance
        if (key := (mode, correction.cap, correction.normalized)) not in self._weights:
            weights = off_policy.importance_weights(mode, *self._policies, correction.cap)
            if weights is not None and correction.normalized:
                plain = weights
                weights = self._stack.by_batch(lambda a, b, at: off_policy.batch_normalized(plain[a:b], at, mode))
            self._weights[key] = weights
        return self._weights[key]

    def _share(self, aggregation: Aggregation, mask: Bools) -> Floats:
        if (key := (aggregation, mask.tobytes())) not in self._shares:
            self._shares[key] = self._stack.by_batch(lambda a, b, at: token_weights(aggregation, at, mask[a:b]))
        return self._shares[key]


def _ratio(advantages: Floats, logprobs: Floats, old: Floats, offsets: Ints) -> Floats:
    """Return the default loss's factor of the advantages, clipped around the sampling policy; 0 where they are 0."""
    at = torch.tensor(logprobs, requires_grad=True)
    columns = torch.from_numpy(old), torch.from_numpy(advantages), torch.zeros(len(old))  # PPO reads no episode
    loss = PPO(clip_ratio_high=0.2).token_loss(at, *columns).loss.sum()
    (slope,) = torch.autograd.grad(loss, at)
    zero = advantages == 0.0
    return np.where(zero, 0.0, -slope.numpy() / np.where(zero, 1.0, advantages))
