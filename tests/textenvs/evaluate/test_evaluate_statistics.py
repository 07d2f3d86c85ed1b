"""Estimates against counting by hand, and intervals against what they promise."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.evaluate.statistics import mean_interval, pass_at_k, pass_hat_k, rate_interval, wilson

counts = st.integers(1, 7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n), st.integers(1, n)))


@given(counts)
def test_pass_k_equals_share_of_subsets(case):
    successes, episodes, k = case
    outcomes = [True] * successes + [False] * (episodes - successes)
    choices = list(itertools.combinations(outcomes, k))
    assert pass_hat_k(successes, episodes, k) == pytest.approx(sum(map(all, choices)) / len(choices))
    assert pass_at_k(successes, episodes, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_wilson_solves_its_equation():
    """The ends are the rates that lie exactly z standard errors (of their own) from what was seen."""
    z = 1.959963984540054
    for successes, trials in ((3, 20), (1, 5), (30.5, 77.25)):
        for end in wilson(successes, trials):
            assert abs(successes / trials - end) == pytest.approx(z * math.sqrt(end * (1 - end) / trials))


def test_wilson_at_the_ends():
    low, high = wilson(0, 10)
    assert low == 0.0
    assert high == pytest.approx(0.2775, abs=1e-4)
    assert wilson(10, 10) == (pytest.approx(1 - high), 1.0)


def test_identical_episodes_count_as_one_trial():
    alike = [[True] * 8, [False] * 8, [True] * 8, [False] * 8]
    assert rate_interval(alike) == pytest.approx(wilson(2, 4))
    unlike = [[True, False] * 4] * 4
    assert rate_interval(unlike) == pytest.approx(wilson(16, 32))
    assert rate_interval(unlike, worth=8) == pytest.approx(wilson(4, 8))
    assert rate_interval([[True] * 8] * 4) == pytest.approx(wilson(4, 4))  # nothing says how unlike they are
    assert rate_interval([[True], [False], [True]]) == pytest.approx(wilson(2, 3))


def test_rate_interval_has_nominal_coverage():
    """Tasks of different difficulty, four episodes each; a naive interval over all episodes would cover 70%."""
    rng = np.random.default_rng(0)
    covered = naive = 0
    for _ in range(400):
        difficulty = rng.beta(0.3, 0.3, size=40)
        outcomes = rng.random((40, 4)) < difficulty[:, None]
        low, high = rate_interval(outcomes.tolist())
        covered += low <= 0.5 <= high
        low, high = wilson(int(outcomes.sum()), 160)
        naive += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.985
    assert naive / 400 < 0.85


def test_mean_interval_has_nominal_coverage():
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(200):
        level = rng.normal(size=(50, 1))
        low, high = mean_interval((level + rng.normal(size=(50, 3))).tolist(), seed=seed)
        covered += low <= 0 <= high
    assert 0.88 <= covered / 200 <= 0.99


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=3), min_size=2, max_size=6))
def test_mean_interval_is_deterministic_within_range(groups):
    low, high = mean_interval(groups)
    assert (low, high) == mean_interval(groups)
    values = [sum(group) / len(group) for group in groups]
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_one_task_has_no_mean_interval():
    assert mean_interval([[1.0, 2.0]]) is None


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], []]])
def test_no_interval_of_nothing(groups):
    for interval in (mean_interval, rate_interval):
        with pytest.raises(ValueError, match="at least one task"):
            interval(groups)
