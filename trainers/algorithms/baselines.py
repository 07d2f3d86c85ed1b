"""What other episodes say an episode, a turn or a token is worth: the ``baseline`` of ``rloo`` and ``turn_grpo``.

Each leaves the episode itself out, so each is independent of its actions and keeps the gradient unbiased.
"""

from __future__ import annotations

from math import comb
from typing import Literal

import numpy as np

from trainers.algorithms.batch import ActionBatch, Bools, Floats, Ints

Baseline = Literal["group", "mixed", "shrunk", "optimal_token"]

#: Added to the energy of every token: siblings that were sure of all their tokens have a mean, too.
ENERGY_FLOOR = 1e-6


def score_norms(logprobs: Floats) -> Floats:
    """The squared norm of each token's score in the logits, ``|e_a - pi|^2``, from its own probability alone.

    ``(1 - pi_a)^2`` is a lower bound, and the norm is at most twice as large: ``|e_a - pi|^2 = (1 - pi_a)^2 +
    sum_{v != a} pi_v^2``. The proxy of arXiv 2602.07078 is that norm exactly, but needs the whole distribution.
    ``logprobs`` ``[N]`` are what the tokens were sampled with; the result, ``[N]``, is for
    :attr:`.ActionBatch.score_norms`.
    """
    return np.asarray(np.square(np.expm1(np.minimum(logprobs, 0.0))), np.float64)


def optimal_token(batch: ActionBatch, x: Floats, kept: Bools, by_turn: bool) -> Floats:
    """The optimal token baseline (arXiv 2602.07078), leaving the episode itself out.

    ``B_i(k) = sum_j W_j(k) x_j(k) / sum_j W_j(k)`` over the siblings ``j != i`` that have a token at the same place
    ``k``; ``W_j(k)``, the energy, is the sum of ``score_norms`` of episode ``j`` up to there. Where no sibling has that
    token, those that have the turn count with their last token of it; without any, the baseline is 0.

    The paper's sums hold the episode itself, whose energy depends on its own actions, which is biased; here both the
    place and the siblings are independent of the token. Its norms come from the whole distribution (see
    :func:`score_norms`). Its released code counts places through all turns.

    ``x`` ``[N]`` is what each token is credited with: the same number for all tokens of a turn (``by_turn``: a place is
    a token's number in its turn) or of an episode; ``kept``, bool ``[E]``, are the episodes that count. Returns
    ``[N]``, 0 in others; ``ValueError``: ``score_norms`` is missing.
    """
    if batch.score_norms is None:
        raise ValueError("baseline optimal_token needs score_norms [N], see trainers.algorithms.baselines.score_norms")
    tokens = np.flatnonzero(kept[batch.episode_of_token])
    found = np.zeros(batch.num_tokens)
    if not tokens.size:
        return found
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
    mine = np.searchsorted(last, np.arange(len(tokens)))
    found[tokens] = np.where(reached, base + mean, np.where(ended[mine], base + end[mine], 0.0))
    return found


def _dense(first: Ints, second: Ints) -> Ints:
    """A number from 0 for each pair that there is."""
    _, number = np.unique(first * (int(second.max(initial=0)) + 1) + second, return_inverse=True)
    return np.asarray(number, np.int64)


def _weighed_others(x: Floats, weight: Floats, key: Ints) -> tuple[Floats, Bools]:
    """The weighed mean of the other entries with each entry's key, 0 where there is none; and whether there is one."""
    others = np.bincount(key)[key] > 1
    left = np.where(others, sums(weight, key) - weight, 1.0)
    return np.where(others, (sums(weight * x, key) - weight * x) / left, 0.0), others


def mean_baseline(x: Floats, group: Ints, turn: Ints, side: Ints, kind: Baseline, zero_pad: bool = False) -> Floats:
    """What the other entries at the same turn say of each: those of the group, or these and all of its side."""
    if kind not in ("group", "mixed", "shrunk"):
        raise ValueError(f'baseline must be "group", "mixed", "shrunk" or "optimal_token", not {kind!r}')
    size = len(x)
    if zero_pad:
        x, group, turn, side = _padded(x, group, turn, side)
    siblings, has_sibling = _mean_of_others(x, group, turn)
    if kind == "mixed":
        others, _ = _mean_of_others(x, side, turn)
        siblings = np.where(has_sibling, (siblings + others) / 2.0, others)
    elif kind == "shrunk":
        others, distance = _other_groups(x, group, turn + side * (turn.max(initial=0) + 1))
        siblings = np.where(has_sibling, siblings + distance * (others - siblings), others)
    return siblings[:size]


def _padded(x: Floats, group: Ints, turn: Ints, side: Ints) -> tuple[Floats, Ints, Ints, Ints]:
    """With a 0 behind, for each turn of the longest episode that another one lacks."""
    starts = np.flatnonzero(turn == 0)
    lengths = np.diff(np.append(starts, len(turn)))
    missing = turn.max(initial=-1) + 1 - lengths
    more = np.arange(missing.sum()) - np.repeat(np.cumsum(missing) - missing, missing) + np.repeat(lengths, missing)
    padded = np.concatenate([x, np.zeros(len(more))])
    groups, sides = (np.concatenate([each, np.repeat(each[starts], missing)]) for each in (group, side))
    return padded, groups, np.concatenate([turn, more]), sides


def _mean_of_others(x: Floats, group: Ints, turn: Ints) -> tuple[Floats, Bools]:
    """Leave-one-out means, 0 where there is no other, and whether there is one.

    The mean of equal entries is that entry, to the last bit: AdamW makes steps of what rounding leaves, too.
    """
    key = group * (turn.max(initial=0) + 1) + turn
    others = np.bincount(key)[key] - 1
    base = any_of(x, key)
    total = sums(x - base, key) - (x - base)
    return np.where(others > 0, base + total / np.maximum(others, 1), 0.0), others > 0


def _other_groups(x: Floats, group: Ints, turn: Ints) -> tuple[Floats, Floats]:
    """For each entry, the mean of the other groups' means at its turn, and how far to go there from its siblings'.

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

    def others(values: Floats) -> Floats:
        return sums(values, at) - values

    groups, freedom = others(np.ones(len(at))), others(count - 1)
    many = np.maximum(groups, 1.0)
    mean = others(centre) / many
    noise = others(inside) / np.maximum(freedom, 1.0)
    spread = np.maximum(others(centre**2) - groups * mean**2, 0.0) / np.maximum(groups - 1.0, 1.0)
    true = np.maximum(spread - noise * others(1.0 / count) / many, 0.0)
    chance = noise / np.maximum(count - 1, 1)
    known = (groups > 1) & (freedom > 0) & (chance + true > 0)
    distance = np.where(known, chance / np.where(known, chance + true, 1.0), 0.0)
    return np.where(groups > 0, base[first] + mean, 0.0)[cell], distance[cell]


def any_of(x: Floats, key: Ints) -> Floats:
    """For each entry one of the entries with its key, the same for all of them."""
    chosen = np.zeros(int(key.max(initial=0)) + 1)
    chosen[key] = x
    return chosen[key]


def sums(x: Floats, key: Ints) -> Floats:
    """Each entry's sum over the entries with its key."""
    return np.asarray(np.bincount(key, x), np.float64)[key]


def best_over_second(returns: Floats) -> Floats:
    """The best episode's lead over the second best, 0 for others: leave-one-out of ``max@n`` (arXiv 2503.19595)."""
    gains = np.zeros(len(returns))
    if len(returns) > 1:
        ordered = np.sort(returns)
        gains[np.argmax(returns)] = ordered[-1] - ordered[-2]
    return gains


def best_of_k(returns: Floats, k: int) -> tuple[Floats, float]:
    """Over all sets of ``k`` of the ``n`` episodes: what is gained where an episode is in the set, and the deviation.

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
