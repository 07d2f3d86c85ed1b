"""Lengths of a group's successes: the formula, its bounds, and what it does to a gradient."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from estimating import estimate
from hypothesis import given
from hypothesis import strategies as st
from trajectories import action_batch, trajectory_of, turns_of

from trainers.command_line import resolve
from trainers.replay.again import moved_again
from trainers.rewards.relative_length import TERM, length_gains, relative_length
from trainers.trajectory import Trajectory

lengths = st.tuples(st.integers(1, 500), st.integers(1, 9))
members = st.lists(st.tuples(st.floats(-2, 2).map(lambda x: round(x, 2)), st.booleans(), lengths), max_size=8)
weight_pairs = st.tuples(st.sampled_from([0.0, 0.1, 1.0, 5.0]), st.sampled_from([0.0, 0.3, 2.0]))
Member = tuple[float, bool, tuple[int, int]]


def gains_of(group: list[Member], weights: tuple[float, float]) -> list[float]:
    returns = np.array([earned for earned, *_ in group])
    success = np.array([won for _, won, _ in group], np.bool_)
    counts = np.array([of for *_, of in group], np.float64).reshape(len(group), 2)
    return length_gains(returns, success, counts, np.array(weights)).tolist()


def by_formula(group: list[Member], weights: tuple[float, float]) -> list[float]:
    won = [member for member in group if member[1]]
    lost = [member[0] for member in group if not member[1]]
    if len(won) < 2 or not sum(weights):
        return [0.0] * len(group)
    scale = 1.0
    if lost:
        scale = min(max((min(earned for earned, *_ in won) - max(lost)) / sum(weights), 0.0), 1.0)
    out = [0.0] * len(group)
    for kind, weight in enumerate(weights):
        numbers = [of[kind] for *_, of in won]
        mean = sum(numbers) / len(numbers)
        deviation = math.sqrt(sum((n - mean) ** 2 for n in numbers) / len(numbers)) or 1.0
        costs = [1 / (1 + math.exp(-(n - mean) / deviation)) for n in numbers]
        at = iter(costs)
        for place, member in enumerate(group):
            if member[1]:
                out[place] += scale * weight * (sum(costs) / len(costs) - next(at))
    return out


@given(members, weight_pairs)
def test_formula_and_bounds(group: list[Member], weights: tuple[float, float]) -> None:
    gains = gains_of(group, weights)
    np.testing.assert_allclose(gains, by_formula(group, weights), atol=1e-9)
    assert sum(gains) == pytest.approx(0.0, abs=1e-9)
    assert all(abs(gain) <= sum(weights) for gain in gains)
    assert not any(gain for gain, (_, won, _) in zip(gains, group, strict=True) if not won)


@given(members, weight_pairs)
def test_no_failure_overtakes_a_success(group: list[Member], weights: tuple[float, float]) -> None:
    gains = gains_of(group, weights)
    after = [earned + gain for (earned, *_), gain in zip(group, gains, strict=True)]
    for (one, won, _), own in zip(group, after, strict=True):
        for (other, also, _), its in zip(group, after, strict=True):
            if won and not also and one > other:
                assert own > its - 1e-12


@given(members, weight_pairs)
def test_longer_success_never_gains_more(group: list[Member], weights: tuple[float, float]) -> None:
    gains = gains_of(group, weights)
    for (_, won, one), own in zip(group, gains, strict=True):
        for (_, also, other), its in zip(group, gains, strict=True):
            if won and also and one[0] >= other[0] and one[1] >= other[1]:
                assert own <= its + 1e-12


def test_gradient_between_success_and_failure_is_unchanged() -> None:
    """Three replies: a short success, a long one and a failure; all groups of three.

    The gains of a group sum to 0 and a failure has none, so the failure's logit has the same expected gradient.
    """
    chances = np.array([0.3, 0.5, 0.2])
    paid = np.array([1.0, 1.0, 0.0])
    counts = np.array([[3.0, 1.0], [30.0, 2.0], [1.0, 1.0]])
    gradients = {False: np.zeros(3), True: np.zeros(3)}
    for drawn in itertools.product(range(3), repeat=3):
        chosen = np.array(drawn)
        gains = length_gains(paid[chosen], chosen < 2, counts[chosen], np.array([0.2, 0.1]))
        scores = np.eye(3)[chosen] - chances
        for with_gains in gradients:
            batch = action_batch([[1]] * 3, paid[chosen] + with_gains * gains)
            gradients[with_gains] += chances[chosen].prod() * estimate("dr_grpo", batch).advantages @ scores / 3
    change = gradients[True] - gradients[False]
    assert change[2] == pytest.approx(0.0, abs=1e-12)
    assert change[0] > 0.001, "to the shorter success"
    assert change[0] == pytest.approx(-change[1])


def episode(group: str, tokens: int, turns: int, success: bool) -> Trajectory:
    """Build an episode whose first turn has the tokens that the others leave, over two contexts."""
    turn_id = turns_of((1, tokens - turns + 1), *[(2, 1)] * (turns - 1))
    starts = np.array([0, len(turn_id) - 3] if turns > 1 else [0], np.int32)
    rewards = np.append(np.zeros(turns - 1), float(success))
    stop = "solved" if success else "gave_up"
    return trajectory_of(turn_id, rewards, group_id=group, stop=stop, segment_starts=starts)


def test_groups_are_apart_and_all_contexts_count() -> None:
    """The last turn has the term; failures, and a success alone in its group, are returned as they are."""
    rows = [episode("a", 4, 1, True), episode("b", 9, 2, True), episode("a", 20, 3, True), episode("a", 2, 1, False)]
    short, alone, long, failure = relative_length(0.2, 0.0)(rows)
    assert alone is rows[1]
    assert failure is rows[3]
    gain = 0.2 * (1 / (1 + math.exp(-1)) - 0.5)
    assert short.total_reward == pytest.approx(1 + gain)
    assert long.turn_rewards.tolist() == pytest.approx([0.0, 0.0, 1 - gain])
    assert long.turn_terms[-1][TERM] == pytest.approx(-gain)
    same_turns = [replace(rows[0], group_id="c"), replace(episode("c", 90, 1, True), group_id="c")]
    assert relative_length(0.0, 0.5)(same_turns) == same_turns


def test_replay_compares_lengths_again() -> None:
    config, _ = resolve(["relative_length.tokens=0.2"])
    rows = [episode("a", 4, 1, True), episode("a", 20, 3, True), episode("a", 2, 1, False)]
    credited = relative_length(0.2, 0.0)(rows)
    moved = [None if one is row else one.turn_rewards for one, row in zip(credited, rows, strict=True)]
    records: list[Any] = [SimpleNamespace(credit_moved=rewards, greedy_reward=None) for rewards in moved]
    batch, difference = moved_again(config, rows, records)
    assert difference is None
    assert [one.credited.total_reward for one in batch] == [one.total_reward for one in credited]
    records[1].credit_moved = rows[1].turn_rewards
    _, difference = moved_again(config, rows, records)
    assert difference is not None
    assert (difference.stage, difference.turn) == ("credit", 2)
