"""What an episode adds to the best of some: pure functions of the returns of one group, ``[n]`` to ``[n]``.

``max@k`` is the expected best return of ``k`` episodes of a task; with returns 0 and 1 it is pass@k.
"""

from __future__ import annotations

from math import comb

import numpy as np

from trainers.algorithms.batch import Floats


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
