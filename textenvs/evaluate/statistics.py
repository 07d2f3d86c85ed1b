"""Estimates and their intervals, as pure functions on numbers.

Episodes of one task resemble each other, so they are never counted as independent: a *group* has the
values of one task's episodes, and the variance is that between groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
#: ``value``, ``low`` and ``high``.
Estimate = dict[str, Any]

#: The level of every interval in a report.
CONFIDENCE = 0.95
_DRAWS = 2000  # resamples of a bootstrap
_SLICE = 1_000_000  # numbers that are drawn at a time, so that memory does not grow with the number of tasks


def pass_hat_k(successes: int, episodes: int, k: int) -> float:
    """Return the chance that ``k`` episodes of a task all succeed: ``C(c, k) / C(n, k)``, unbiased.

    Source: tau-bench, arXiv 2406.12045, where it is written pass^k.
    """
    return math.comb(successes, k) / math.comb(episodes, k)


def pass_at_k(successes: int, episodes: int, k: int) -> float:
    """Return the chance that any of ``k`` episodes of a task succeeds: ``1 - C(n - c, k) / C(n, k)``, unbiased.

    Source: arXiv 2107.03374, section 2.1.
    """
    return 1.0 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def wilson(successes: float, trials: float) -> Interval:
    """Return Wilson's score interval of a rate; it stays inside [0, 1] and is valid at 0 and at 1.

    Neither number need be an integer (see :func:`rate_interval`).
    """
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # The ends at 0 and 1 are exact; rounding would put them a hair beyond.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def rate_interval(groups: Sequence[Sequence[float]], worth: float | None = None) -> Interval:
    """Return Wilson's interval of a mean of values in [0, 1], with as many trials as the values are worth.

    The effective number of trials is ``p (1 - p) / v``, where ``v`` is the variance of the mean between tasks (the
    ratio estimator's, clustered by task). It is at least the number of tasks (all values of a task alike), at most
    ``worth`` (none alike), and the number of tasks where ``p`` is 0 or 1 and nothing can be estimated.
    ``worth`` is how many independent trials the values are at most; by default, as many as there are.
    """
    sums, counts = _sums(groups)
    tasks, total = len(groups), float(counts.sum())
    rate = float(sums.sum() / total)
    worth = max(tasks, total if worth is None else worth)
    effective = float(tasks)
    if tasks > 1 and 0 < rate < 1:
        spread = float(((sums - rate * counts) ** 2).sum())
        variance = tasks / (tasks - 1) * spread / total**2
        effective = worth if variance == 0 else min(worth, max(tasks, rate * (1 - rate) / variance))
    return wilson(rate * effective, effective)


def mean_interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval | None:
    """Return the interval of the mean over episodes: a percentile bootstrap that resamples tasks with their episodes.

    The same numbers give the same interval: the resamples depend on ``seed`` alone. One task says nothing about how
    tasks differ, so it has no interval (``None``).
    """
    sums, counts = _sums(groups)
    tasks = len(groups)
    if tasks == 1:
        return None
    rng = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    step = max(1, _SLICE // tasks)
    for start in range(0, _DRAWS, step):
        chosen = rng.integers(tasks, size=(min(step, _DRAWS - start), tasks))
        means.append(sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def estimate(groups: Sequence[Sequence[float]], *, rate: bool = False, worth: float | None = None) -> Estimate:
    """Return the mean over all episodes with its interval, if there is one; ``worth`` as in :func:`rate_interval`."""
    low, high = rate_interval(groups, worth) if rate else mean_interval(groups) or (None, None)
    return {"value": fmean(value for group in groups for value in group), "low": low, "high": high}


def _sums(groups: Sequence[Sequence[float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not groups or not all(len(group) for group in groups):
        raise ValueError("an interval needs at least one task, and at least one episode of each")
    return np.array([math.fsum(group) for group in groups]), np.array([float(len(group)) for group in groups])
