"""Baselines from other episodes, for an episode, a turn or a token.

The ``baseline`` of ``rloo`` and ``turn_grpo``, and the running means of ``rae``. Each leaves the episode itself out, so
each is independent of its actions and keeps the gradient unbiased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb
from typing import Literal

import numpy as np

from trainers.algorithms.batch import ActionBatch, Bools, Floats, Ints, gather
from trainers.trajectory import Trajectory

Baseline = Literal["group", "mixed", "shrunk", "optimal_token"]

#: Added to the energy of every token: siblings that were sure of all their tokens have a mean, too.
ENERGY_FLOOR = 1e-6


class RoleBaselines:
    """A running mean of the returns of each role of each environment (arXiv 2506.24119), over all batches of a run.

    ``b <- decay * b + (1 - decay) * R`` after each episode, from 0. It is part of the checkpoint.
    """

    def __init__(self) -> None:
        self.means: dict[str, float] = {}

    def observe(self, roles: Sequence[str], returns: Floats, counted: Bools, decay: float) -> Floats:
        """Return each episode's baseline, the mean of its role before it, and add the episodes to the means.

        ``roles`` names each episode's environment and role, ``returns`` ``[E]`` is what the episodes earned, in the
        order in which they enter; those that are not ``counted``, bool ``[E]``, do not.
        """
        baseline = np.zeros(len(returns))
        for number, (role, value) in enumerate(zip(roles, returns, strict=True)):
            baseline[number] = mean = self.means.get(role, 0.0)
            if counted[number]:
                self.means[role] = decay * mean + (1.0 - decay) * float(value)
        return baseline

    def state_dict(self) -> dict[str, float]:
        return dict(self.means)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.means = {role: float(mean) for role, mean in state.items()}


def score_norms(logprobs: Floats) -> Floats:
    """Return the squared norm of each token's score in the logits, ``|e_a - pi|^2``, from its own probability alone.

    ``(1 - pi_a)^2`` is a lower bound, and the norm is at most twice as large: ``|e_a - pi|^2 = (1 - pi_a)^2 +
    sum_{v != a} pi_v^2``. The proxy of arXiv 2602.07078 is that norm exactly, but needs the whole distribution.
    ``logprobs`` ``[N]`` are what the tokens were sampled with; the result, ``[N]``, is for
    :attr:`.ActionBatch.score_norms`.
    """
    return np.asarray(np.square(np.expm1(np.minimum(logprobs, 0.0))), np.float64)


def with_score_norms(batch: ActionBatch, episodes: Sequence[Trajectory]) -> ActionBatch:
    """Add the score norms of the tokens, from the log-probabilities that the engine sampled with."""
    sampled = gather(episodes, [episode.logprobs for episode in episodes]).astype(np.float64)
    return replace(batch, score_norms=score_norms(sampled))


def optimal_token(batch: ActionBatch, x: Floats, counted: Bools, by_turn: bool) -> Floats:
    """Return the optimal token baseline (arXiv 2602.07078), leaving the episode itself out.

    ``B_i(k) = sum_j W_j(k) x_j(k) / sum_j W_j(k)`` over the siblings ``j != i`` that have a token at the same place
    ``k``; ``W_j(k)``, the energy, is the sum of ``score_norms`` of episode ``j`` up to there. Where no sibling has that
    token, those that have the turn count with their last token of it; without any, the baseline is 0.

    The paper's sums hold the episode itself, whose energy depends on its own actions, which is biased; here both the
    place and the siblings are independent of the token. Its norms come from the whole distribution (see
    :func:`score_norms`). Its released code counts places through all turns.

    ``x`` ``[N]`` is what each token is credited with: the same number for all tokens of a turn (``by_turn``: a place is
    a token's number in its turn) or of an episode; ``counted``, bool ``[E]``, are the episodes that count. Returns
    ``[N]``, 0 in others; ``ValueError``: ``score_norms`` is missing.
    """
    if batch.score_norms is None:
        raise ValueError("baseline optimal_token needs score_norms [N], see trainers.algorithms.baselines.score_norms")
    tokens = np.flatnonzero(counted[batch.episode_of_token])
    baseline = np.zeros(batch.num_tokens)
    if not tokens.size:
        return baseline
    episode = batch.episode_of_token[tokens]
    unit = batch.turn_of_token[tokens] if by_turn else episode  # of which all tokens have one x
    turn = batch.turn_index[tokens] if by_turn else np.zeros(len(tokens), np.int64)
    first = (batch.turn_starts[unit] if by_turn else batch.token_offsets[episode]).astype(np.int64)
    total = np.cumsum(batch.score_norms)
    start = batch.token_offsets[episode]
    energy = total[tokens] - total[start] + batch.score_norms[start] + ENERGY_FLOOR
    credited = x[tokens]
    cell = _dense(batch.group[episode], turn)
    base = any_of(credited, cell)  # of all that is compared, so that equal entries stay equal to the last bit
    moved = credited - base
    mean, reached = _weighed_others(moved, energy, _dense(cell, tokens - first))
    last = np.flatnonzero(np.diff(unit, append=-1))
    end, ended = _weighed_others(moved[last], energy[last], cell[last])
    last_of_turn = np.searchsorted(last, np.arange(len(tokens)))
    baseline[tokens] = np.where(reached, base + mean, np.where(ended[last_of_turn], base + end[last_of_turn], 0.0))
    return baseline


def _dense(first: Ints, second: Ints) -> Ints:
    """Assign a number from 0 to each distinct pair; return each entry's."""
    _, number = np.unique(first * (int(second.max(initial=0)) + 1) + second, return_inverse=True)
    return np.asarray(number, np.int64)


def _weighed_others(x: Floats, weight: Floats, key: Ints) -> tuple[Floats, Bools]:
    """Return the weighed mean of the other entries with each entry's key, 0 without any; and whether there is one."""
    has_others = np.bincount(key)[key] > 1
    remaining = np.where(has_others, sums(weight, key) - weight, 1.0)
    return np.where(has_others, (sums(weight * x, key) - weight * x) / remaining, 0.0), has_others


def mean_baseline(x: Floats, group: Ints, turn: Ints, side: Ints, kind: Baseline, zero_pad: bool = False) -> Floats:
    """Return the mean of the other entries at each entry's turn: those of its group, or these and all of its side."""
    size = len(x)
    if zero_pad:
        x, group, turn, side = _padded(x, group, turn, side)
    siblings, has_sibling = _mean_of_others(x, group, turn)
    if kind == "mixed":
        side_mean, _ = _mean_of_others(x, side, turn)
        siblings = np.where(has_sibling, (siblings + side_mean) / 2.0, side_mean)
    elif kind == "shrunk":
        other_groups, distance = _other_groups(x, group, turn + side * (turn.max(initial=0) + 1))
        siblings = np.where(has_sibling, siblings + distance * (other_groups - siblings), other_groups)
    return siblings[:size]


def _padded(x: Floats, group: Ints, turn: Ints, side: Ints) -> tuple[Floats, Ints, Ints, Ints]:
    """Append a 0 for each turn of the longest episode that another one lacks."""
    starts = np.flatnonzero(turn == 0)
    lengths = np.diff(np.append(starts, len(turn)))
    missing = turn.max(initial=-1) + 1 - lengths
    padding_turns = (
        np.arange(missing.sum()) - np.repeat(np.cumsum(missing) - missing, missing) + np.repeat(lengths, missing)
    )
    padded = np.concatenate([x, np.zeros(len(padding_turns))])
    groups, sides = (np.concatenate([numbers, np.repeat(numbers[starts], missing)]) for numbers in (group, side))
    return padded, groups, np.concatenate([turn, padding_turns]), sides


def _mean_of_others(x: Floats, group: Ints, turn: Ints) -> tuple[Floats, Bools]:
    """Leave-one-out means, 0 where there is no other, and whether there is one.

    The mean of equal entries is that entry, to the last bit: AdamW makes steps of what rounding leaves, too.
    """
    key = group * (turn.max(initial=0) + 1) + turn
    count_others = np.bincount(key)[key] - 1
    base = any_of(x, key)
    total = sums(x - base, key) - (x - base)
    return np.where(count_others > 0, base + total / np.maximum(count_others, 1), 0.0), count_others > 0


def _other_groups(x: Floats, group: Ints, turn: Ints) -> tuple[Floats, Floats]:
    """Return, for each entry, the mean of the other groups' means at its turn, and the weight of that mean.

    ``s / (s + t)``: the variance ``s`` that the mean of its siblings has by chance, and ``t`` of what groups are truly
    worth, both as the other groups have them. 0 where fewer than two others are there, or none has two entries.
    """
    key = group * (turn.max(initial=0) + 1) + turn
    _, first, cell = np.unique(key, return_index=True, return_inverse=True)
    count = np.asarray(np.bincount(cell), np.float64)
    base = any_of(x, turn)  # of all that is compared, so that equal entries stay equal to the last bit
    centre = np.asarray(np.bincount(cell, x - base) / count, np.float64)
    inside = np.asarray(np.bincount(cell, (x - base - centre[cell]) ** 2), np.float64)
    at = turn[first]

    def sum_others(values: Floats) -> Floats:
        return sums(values, at) - values

    groups, freedom = sum_others(np.ones(len(at))), sum_others(count - 1)
    many = np.maximum(groups, 1.0)
    mean = sum_others(centre) / many
    noise = sum_others(inside) / np.maximum(freedom, 1.0)
    spread = np.maximum(sum_others(centre**2) - groups * mean**2, 0.0) / np.maximum(groups - 1.0, 1.0)
    true = np.maximum(spread - noise * sum_others(1.0 / count) / many, 0.0)
    chance = noise / np.maximum(count - 1, 1)
    estimable = (groups > 1) & (freedom > 0) & (chance + true > 0)
    distance = np.where(estimable, chance / np.where(estimable, chance + true, 1.0), 0.0)
    return np.where(groups > 0, base[first] + mean, 0.0)[cell], distance[cell]


def any_of(x: Floats, key: Ints) -> Floats:
    """Return one of the entries with its key for each entry, the same for all of them."""
    chosen = np.zeros(int(key.max(initial=0)) + 1)
    chosen[key] = x
    return chosen[key]


def sums(x: Floats, key: Ints) -> Floats:
    """Return each entry's sum over the entries with its key."""
    return np.asarray(np.bincount(key, x), np.float64)[key]


def best_over_second(returns: Floats) -> Floats:
    """Credit the best episode with its lead over the second best: leave-one-out of ``max@n`` (arXiv 2503.19595)."""
    gains = np.zeros(len(returns))
    if len(returns) > 1:
        ordered = np.sort(returns)
        gains[np.argmax(returns)] = ordered[-1] - ordered[-2]
    return gains


def best_of_k(returns: Floats, k: int) -> tuple[Floats, float]:
    """Return, over all sets of ``k`` of ``n`` episodes, each episode's gain where it is in the set, and the deviation.

    With ``M(S) = max over S of R``: ``E[M(S) | i in S] - E[M(S)]`` for each episode ``i``, and the standard deviation
    of ``M(S)``, exactly, by counting: the ``j``-th smallest return is the best of ``C(j - 1, k - 1)`` sets, and of
    ``C(j - 2, k - 2)`` of those that hold a smaller ``i``. With returns 0 and 1 this is the closed form of Pass@k
    Training (arXiv 2508.10751): with ``c`` of ``n`` right and ``p = 1 - C(n - c, k) / C(n, k)``, ``1 - p`` for a right
    one, ``1 - p - C(n - c - 1, k - 1) / C(n - 1, k - 1)`` for a wrong one, and ``sqrt(p (1 - p))``.

    With ``n <= k`` there is nothing to compare, and all is 0.
    """
    n = len(returns)
    if n <= k:
        return np.zeros(n), 0.0
    order = np.argsort(returns, kind="stable")
    ordered = returns[order] - returns[order[0]]  # so that equal returns gain 0 to the last bit
    best = np.array([comb(j, k - 1) for j in range(n)], np.float64) / comb(n, k)
    mean = float(best @ ordered)
    deviation = float(np.sqrt(best @ (ordered - mean) ** 2))
    itself = np.array([comb(j, k - 1) for j in range(n)], np.float64) / comb(n - 1, k - 1)
    if k == 1:
        later = np.zeros(n)
    else:
        above = np.array([comb(j - 1, k - 2) if j else 0 for j in range(n)], np.float64) / comb(n - 1, k - 1)
        later = np.append(np.cumsum((above * ordered)[::-1])[::-1][1:], 0.0)
    gains = np.empty(n)
    gains[order] = itself * ordered + later - mean
    return gains, deviation
