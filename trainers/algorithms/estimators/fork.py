"""Credit by forks: a turn's effect, estimated from other samples of the very state that it began in.

A *root* is an episode from the opening on. A *fork* begins in a state that its root met, before the root's reply at
turn ``t``, and is played to its end. With ``K`` forks there are ``1 + K`` samples of the reply at that state: a *branch
point*. Every other turn has one sample. A root and its forks are a *tree*; forks are not forked again.

**Weights.** A tree has the mass 1. At a branch point with the mass ``m``, each of the ``1 + K`` replies weighs
``m / (1 + K)``. After it the root has the mass ``m c``, and each fork ``m (1 - c) / K``, where
``c`` is :func:`continuing_share`. All ``1 + K`` samples are drawn alike from one state. So, whatever ``c`` is, as long
as it is known before the replies, ``sum_i w_i A_i grad log pi_i`` over a tree is an unbiased estimate of the policy
gradient. This needs ``K`` to depend on nothing that was sampled at or after the branch point, or in other episodes of
the batch.

**Advantages.** ``Q`` of a root's turn is ``r_t + gamma V(s_{t+1})``, with ``V`` the mean ``Q`` of the samples at
``s_{t+1}``, and 0 where the episode ended. ``Q`` of a fork's turn is its reward-to-go. The baseline of a sample is made
of what others were worth at the same turn, the closer their history the more. All trees of a group begin in one state,
so first comes the weighted mean of the samples that parted from it there; with ``mixed``, half of that and half of the
mean over the whole batch. Then, for each later state on its way at which others parted from it, their mean, in which
the baseline so far counts as one value more. None of them depends on the sample's own action.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field

from trainers.algorithms.batch import (
    ActionBatch,
    Advantages,
    Bools,
    Floats,
    Ints,
    MadeOf,
    Truncated,
    discounted_sums,
    kept_episodes,
)
from trainers.algorithms.estimators.base import CriticFreeEstimator, Need, UnscaledEstimator
from trainers.section import Fraction


class Fork(CriticFreeEstimator, UnscaledEstimator):
    """Return each turn's value against other replies in the same state; see the module. Unbiased at ``gamma = 1``.

    Where nothing is forked, this is ``turn_grpo`` with that baseline. Where there is nothing to compare with, it is 0.

    ``batch``: With ``forked_from`` and ``forked_turn``; a fork has the turns from its fork point on alone.
    ``gamma``: Discount a turn.
    ``baseline``: Of what parted at the opening: ``group``, or ``mixed`` with the batch (alone: the batch's).
    ``truncated``: ``drop`` leaves out forks whose context ran out, as if they had not been made, and roots with all
    their forks. A budget of the environment's own is part of the state: such episodes count as they are.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"forks"})
    unit: ClassVar = "turn"

    adv_estimator: Literal["fork"] = "fork"
    gamma: Fraction = Field(1.0, description="Discount per turn.")
    baseline: Literal["group", "mixed"] = "mixed"
    """Baseline of episodes that parted at the opening. `group`: the group's other episodes. `mixed`: half those, half
    the batch's."""

    def advantages(self, batch: ActionBatch) -> Advantages:
        counted = _kept_trees(batch, self.truncated)
        trees = _trees(batch, counted)
        q, weight = _values(batch, trees, self.gamma)
        advantages = _against_others(batch, trees, q, weight, self.baseline)
        mask = counted[batch.episode_of_token]
        weights = np.where(mask, weight[batch.turn_of_token], 0.0)
        return Advantages(advantages[batch.turn_of_token], mask, weights=weights)

    def made_of(self, batch: ActionBatch, result: Advantages) -> MadeOf:
        q, by_fork = fork_values(batch, gamma=self.gamma, truncated=self.truncated)
        returns = q[batch.turn_of_token]
        baseline = np.where(result.policy_mask, returns - result.advantages, np.nan)
        return MadeOf(returns, baseline, result.advantages, by_fork)


def fork_values(batch: ActionBatch, *, gamma: float = 1.0, truncated: Truncated = "count") -> tuple[Floats, Floats]:
    """Return every turn's ``Q`` ``[K]``, and ``V`` of the state that it began in ``[K]``, NaN where not forked."""
    trees = _trees(batch, _kept_trees(batch, truncated))
    q, _ = _values(batch, trees, gamma)
    values = np.full(len(q), np.nan)
    for root, branches in trees:
        for at, forks in zip(root, branches, strict=True):
            if forks:
                samples = [at, *(fork[0] for fork in forks)]
                values[samples] = q[samples].mean()
    return q, values


def continuing_share(forks: int, following: float) -> float:
    """Return the share of a branch point's mass that its root keeps: ``(1 + K') / (1 + K' + K)``.

    Any share is unbiased. With ``K'`` forks at the root's next turn, this one weighs all samples there alike. ``K'`` is
    what the other roots of the batch have on average; it must not depend on this root.
    """
    return (1 + following) / (1 + following + forks)


def _kept_trees(batch: ActionBatch, truncated: Truncated) -> Bools:
    counted = kept_episodes(batch, "count")
    if truncated == "drop":
        cut = batch.truncated & ~batch.terminated
        counted = counted & (~cut if batch.budgeted is None else ~cut | batch.budgeted)
    return counted & counted[batch.tree]


#: A root's turns by their places in the batch, and the forks that begin in each of its states, likewise.
_Tree: TypeAlias = tuple[range, list[list[range]]]


def _trees(batch: ActionBatch, counted: Bools) -> list[_Tree]:
    turns = [range(start, end) for start, end in itertools.pairwise(batch.turn_offsets.tolist())]
    branches: dict[int, list[list[range]]]
    branches = {
        root: [[] for _ in turns[root]] for root in np.flatnonzero(counted).tolist() if batch.tree[root] == root
    }
    for episode in np.flatnonzero(counted & (batch.tree != np.arange(batch.num_episodes))).tolist():
        branches[int(batch.tree[episode])][int(batch.first_turn[episode])].append(turns[episode])
    return [(turns[root], forks) for root, forks in branches.items()]


def _values(batch: ActionBatch, trees: list[_Tree], gamma: float) -> tuple[Floats, Floats]:
    """Return the estimated ``Q`` and the weight of every turn."""
    q = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, gamma)
    weight = np.zeros(len(q))
    longest = max((len(root) for root, _ in trees), default=0)
    reached, made = np.zeros(longest + 1), np.zeros(longest + 1)  # by turn: roots, and forks of them
    for root, branches in trees:
        reached[: len(root)] += 1
        made[: len(root)] += [len(forks) for forks in branches]
    for root, branches in trees:
        value, mass = 0.0, 1.0
        for at, forks in zip(reversed(root), reversed(branches), strict=True):
            q[at] = batch.net_turn_rewards[at] + gamma * value
            samples = [at, *(fork[0] for fork in forks)]
            value = q[at] + float(np.mean(q[samples] - q[at]))  # of equal values, that value to the last bit
        for turn, (at, forks) in enumerate(zip(root, branches, strict=True)):
            continues = turn + 1 < len(root)
            other_roots = reached[turn + 1] - continues
            other_forks = made[turn + 1] - (len(branches[turn + 1]) if continues else 0)
            share = continuing_share(len(forks), other_forks / other_roots if other_roots else len(forks))
            for fork in forks:
                weight[fork.start : fork.stop] = mass * (1.0 - share) / len(forks)
            weight[[at, *(fork[0] for fork in forks)]] = mass / (1 + len(forks))
            mass *= share
    return q, weight


def _against_others(
    batch: ActionBatch, trees: list[_Tree], q: Floats, weight: Floats, kind: Literal["group", "mixed"]
) -> Floats:
    """Return ``Q`` of every turn minus its baseline, in time proportional to the turns of roots and forks."""
    episode = batch.episode_of_turn
    turn = np.arange(len(q)) - batch.turn_offsets[episode] + batch.first_turn[episode]
    of_group = _Means(q, weight, batch.group[episode] * (turn.max(initial=0) + 1) + turn)
    of_batch = _Means(q, weight, turn)
    apart = (of_batch.base - of_group.base).tolist()

    def parted_at_opening(these: Sequence[int]) -> float | None:
        """Return the mean of all at this turn but these, of the tree: of the group, and of the batch."""
        siblings, everyone = of_group.without(these), None if kind == "group" else of_batch.without(these)
        if everyone is None:
            return siblings
        return everyone + apart[these[0]] if siblings is None else (siblings + everyone + apart[these[0]]) / 2.0

    advantages = np.zeros_like(q)
    for tree in trees:
        for at, baseline in _baselines(tree, of_group.moved, parted_at_opening):
            # The baseline is 0 where there is nothing to compare with.
            advantages[at] = q[at] if baseline is None else of_group.moved[at] - baseline
    return advantages


_Baselines: TypeAlias = Iterator[tuple[int, float | None]]  #: a turn's place in the batch, and its baseline


def _baselines(tree: _Tree, moved: list[float], at_opening: Callable[[Sequence[int]], float | None]) -> _Baselines:
    """Yield the samples of a tree; ``at_opening`` is the mean of those of other trees, at the turn of these."""
    root, branches = tree
    ends = [first + len(fork) for first, starting in enumerate(branches) for fork in starting]
    for number in range(max(len(root), *ends, 0)):
        # Those that reach this turn: in the root's state, and by the state at which they left the root.
        cell = [root[number], *(fork[0] for fork in branches[number])] if number < len(root) else []
        departed = [
            [fork[number - first] for fork in starting if number - first < len(fork)]
            for first, starting in enumerate(branches[:number])
        ]
        for at in departed[0] if number else cell:
            yield at, at_opening([at])
        if number and (later := [*itertools.chain.from_iterable(departed[1:]), *cell]):
            yield from _later_baselines(cell, departed[1:], moved, at_opening(later))


def _later_baselines(
    cell: list[int], departed: list[list[int]], moved: list[float], baseline: float | None
) -> _Baselines:
    """Yield the samples of one turn that left the root after its opening, or not at all (``cell``)."""
    # Of those that left later, and of the root's state, whose mean is one value: their sum and number.
    behind = [(sum(moved[at] for at in cell) / len(cell), 1) if cell else (0.0, 0)]
    for these in reversed(departed[1:]):
        behind.append((behind[-1][0] + sum(moved[at] for at in these), behind[-1][1] + len(these)))
    for these, (after, count) in zip(departed, reversed(behind), strict=False):
        departed_sum = sum(moved[at] for at in these)
        for at in these:
            yield at, _mean(baseline, departed_sum - moved[at] + after, len(these) - 1 + count)
        baseline = _mean(baseline, departed_sum, len(these))
    cell_sum = sum(moved[at] for at in cell)
    for at in cell:
        yield at, _mean(baseline, cell_sum - moved[at], len(cell) - 1)


class _Means:
    """Weighted means of the turns with the same key, without some of them.

    They are of differences from one value of the key, so that equal values have an advantage of 0 to the last bit.
    """

    def __init__(self, q: Floats, weight: Floats, key: Ints) -> None:
        base = np.zeros(int(key.max(initial=0)) + 1)
        base[key[weight > 0]] = q[weight > 0]
        self._total, self._mass = np.zeros_like(base), np.zeros_like(base)
        np.add.at(self._total, key, weight * (q - base[key]))
        np.add.at(self._mass, key, weight)
        self._key, self._weight = key.tolist(), weight.tolist()
        self.base = base[key]  #: float ``[K]``
        self.moved: list[float] = (q - self.base).tolist()  #: of each turn, its difference

    def without(self, these: Sequence[int]) -> float | None:
        """Return the mean of all turns with the key of these but these; ``None`` without any."""
        key = self._key[these[0]]
        rest = float(self._mass[key]) - sum(self._weight[at] for at in these)
        # A weight of almost nothing beside the rest is indistinguishable from rounding.
        if rest <= 1e-9 * self._mass[key]:
            return None
        return (float(self._total[key]) - sum(self._weight[at] * self.moved[at] for at in these)) / rest


def _mean(before: float | None, total: float, count: int) -> float | None:
    """Return the mean of ``count`` values and of the one before, if there is any."""
    count += before is not None
    return (total + (before or 0.0)) / count if count else None
