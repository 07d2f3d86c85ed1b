"""Credit by forks: what a turn changed, estimated from other samples of the very state that it began in.

A *root* is an episode from the opening on. A *fork* begins in a state that its root met, before the root's reply at
turn ``t``, and is played to its end. With ``K`` forks there are ``1 + K`` samples of the reply at that state: a *branch
point*. Every other turn has one sample. A root and its forks are a *tree*; forks are not forked again.

**Weights.** A tree has the mass 1. At a branch point with the mass ``m``, each of the ``1 + K`` replies weighs
``m / (1 + K)``. Behind it the root goes on with the mass ``m c``, and each fork with ``m (1 - c) / K``, where
``c = (1 + K) / (1 + 2 K)`` (:func:`continuing_share`). All ``1 + K`` samples are drawn alike from one state. So,
whatever ``c`` is, ``sum_i w_i A_i grad log pi_i`` over a tree is an unbiased estimate of the policy gradient. This
needs ``K`` to depend on nothing that was sampled at or after the branch point, or in other episodes of the batch.

**Advantages.** ``Q`` of a root's turn is ``r_t + gamma V(s_{t+1})``, with ``V`` the mean ``Q`` of the samples at
``s_{t+1}``, and 0 where the episode ended. ``Q`` of a fork's turn is its reward-to-go. The baseline of a sample is the
mean of the other samples at its state and of one value more: the weighted mean ``Q`` of all other states of its group
at the same turn (of its own tree and of others). Nothing of it depends on the sample's own action.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trainers.algorithms.batch import ActionBatch, Bools, Floats, Ints
from trainers.algorithms.returns import Advantages, Truncated, check_factors, discounted_sums, kept_episodes


def fork(batch: ActionBatch, *, gamma: float = 1.0, truncated: Truncated = "count") -> Advantages:
    """Each turn's value against other replies in the same state; see the module. Unbiased at ``gamma = 1``.

    A turn without a fork is compared with the other states of its group at that turn alone, as in ``turn_grpo``. Where
    there is nothing to compare with, the baseline is 0.

    Options of its own:
        batch: With ``forked_from`` and ``forked_turn`` where there are forks; a fork has the turns from its fork point
            on alone.
        gamma: Discount a turn.
        truncated: ``drop`` leaves out forks whose context ran out, as if they had not been made, and roots with all
            their forks. A budget of the environment's own is part of the state: such episodes count as they are.
    """
    check_factors(gamma=gamma)
    kept = _kept_trees(batch, truncated)
    q, weight, state = _tree_values(batch, kept, gamma)
    turns = np.flatnonzero(kept[batch.episode_of_turn])
    episode = batch.episode_of_turn[turns]
    turn = turns - batch.turn_offsets[episode] + batch.first_turn[episode]
    advantages = np.zeros(len(q))
    advantages[turns] = _against_others(q[turns], weight[turns], state[turns], batch.group[episode], turn)
    mask = kept[batch.episode_of_token]
    weights = np.where(mask, weight[batch.turn_of_token], 0.0)
    return Advantages(advantages[batch.turn_of_token], mask, weights=weights)


def continuing_share(forks: int) -> float:
    """How much of a branch point's mass its root goes on with: ``(1 + K) / (1 + 2 K)``.

    Any share is unbiased. With ``K`` forks at the next turn too, this one weighs the ``1 + K`` samples there and the
    ``K`` forks that go on alike, so that no token of the tree dominates.
    """
    return (1 + forks) / (1 + 2 * forks)


def _kept_trees(batch: ActionBatch, truncated: Truncated) -> Bools:
    """The episodes that count; a fork counts only with its root."""
    kept = kept_episodes(batch, "count")
    if truncated == "drop":
        cut = batch.truncated & ~batch.terminated
        kept = kept & (~cut if batch.budgeted is None else ~cut | batch.budgeted)
    elif truncated != "count":
        raise ValueError(f'truncated must be "count" or "drop", not {truncated!r}')
    return kept & kept[batch.tree]


def _tree_values(batch: ActionBatch, kept: Bools, gamma: float) -> tuple[Floats, Floats, Ints]:
    """Of every turn: its estimated ``Q``, its weight, and the number of the state that it began in."""
    q = discounted_sums(batch.net_turn_rewards, batch.turn_offsets, gamma)
    weight, state = np.zeros(len(q)), np.arange(len(q))
    forks: defaultdict[int, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in np.flatnonzero(kept & (batch.tree != np.arange(batch.num_episodes))).tolist():
        forks[int(batch.tree[each])][int(batch.first_turn[each])].append(each)
    starts, ends = batch.turn_offsets[:-1], batch.turn_offsets[1:]
    for root in np.flatnonzero(kept & (batch.tree == np.arange(batch.num_episodes))).tolist():
        branches = forks[root]
        value = 0.0
        for at in range(int(ends[root]) - 1, int(starts[root]) - 1, -1):
            q[at] = batch.net_turn_rewards[at] + gamma * value
            samples = [at, *(int(starts[each]) for each in branches[at - int(starts[root])])]
            value = q[at] + float(np.mean(q[samples] - q[at]))  # of equal values, that value to the last bit
        mass = 1.0
        for at in range(int(starts[root]), int(ends[root])):
            here = branches[at - int(starts[root])]
            first = [int(starts[each]) for each in here]
            share = continuing_share(len(here))
            for each in here:
                weight[starts[each] : ends[each]] = mass * (1.0 - share) / len(here)
            weight[[at, *first]] = mass / (1 + len(here))
            state[first] = at
            mass *= share
    return q, weight, state


def _against_others(q: Floats, weight: Floats, state: Ints, group: Ints, turn: Ints) -> Floats:
    """Each sample's ``Q`` minus the mean of the other samples of its state and of the prior, all others' weighted mean.

    Args:
        q: ``[n]``.
        weight: ``[n]``, above 0.
        state: ``[n]``; samples of one state have one number.
        group: ``[n]``.
        turn: ``[n]``, counted from the opening.
    """
    _, cell = np.unique(state, return_inverse=True)
    key = group * (turn.max(initial=0) + 1) + turn
    base = np.zeros(int(key.max(initial=0)) + 1)
    base[key] = q
    moved = q - base[key]  # so that equal values have an advantage of 0 to the last bit

    def sums(x: Floats, of: Ints) -> Floats:
        return np.asarray(np.bincount(of, x), np.float64)[of]

    ones = np.ones(len(q))
    siblings = sums(ones, cell) - 1.0
    elsewhere = sums(weight, key) - sums(weight, cell)
    # What weighs next to nothing beside this state cannot be told from rounding.
    known = (sums(ones, key) - siblings > 1.0) & (elsewhere > 1e-9 * sums(weight, key))
    others = sums(weight * moved, key) - sums(weight * moved, cell)
    prior = np.where(known, others / np.where(known, elsewhere, 1.0), 0.0)
    count = siblings + known
    total = sums(moved, cell) - moved + prior
    # Without anything to compare with the baseline is 0.
    return np.where(count > 0, moved - total / np.maximum(count, 1.0), q)
