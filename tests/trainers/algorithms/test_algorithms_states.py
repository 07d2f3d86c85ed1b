"""Estimators that compare turns by the states that they begin in and lead to: invariances, and worked examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithm_oracles import Episode, batches, forall, trajectory
from estimating import estimate
from hypothesis import strategies as st
from trajectories import action_batch, trajectory_of, turns_of

from trainers.algorithms.batch import ActionBatch, anchor_states, group_states, visited_states
from trainers.algorithms.estimators import ESTIMATORS, GraphGPO
from trainers.trajectory import Trajectory, solved

NAMES = ("gagpo", "graphgpo", "maxrl")


def complete(name: str, episodes: list[Trajectory], **options: Any) -> ActionBatch:
    return ESTIMATORS[name](**options).complete(ActionBatch.from_trajectories(episodes), episodes)


def by_episode(name: str, episodes: list[Trajectory], **options: Any) -> list[np.ndarray]:
    """Return each episode's advantages, by token."""
    batch = complete(name, episodes)
    return np.split(estimate(name, batch, eps=1e-3, **options).advantages, batch.token_offsets[1:-1])


@forall(batches(min_turns=1), st.randoms(use_true_random=False))
def test_order_and_other_groups_do_not_matter(episodes: list[Episode], random: Any) -> None:
    """A role's episodes have a group of their own, so another role's do not matter either."""
    rows = [trajectory(e) for e in episodes]
    order = random.sample(range(len(rows)), len(rows))
    first = [row for row in rows if row.group_id == rows[0].group_id]
    for name in NAMES:
        together = by_episode(name, rows)
        shuffled = by_episode(name, [rows[at] for at in order])
        alone = by_episode(name, first)
        for at, advantages in zip(order, shuffled, strict=True):
            np.testing.assert_allclose(advantages, together[at], atol=1e-9)
        same = [a for row, a in zip(rows, together, strict=True) if row.group_id == rows[0].group_id]
        np.testing.assert_allclose(np.concatenate(alone), np.concatenate(same), atol=1e-9)


@forall(batches(min_turns=1), st.sampled_from([0.5, 4.0]))
def test_scale_of_rewards(episodes: list[Episode], factor: float) -> None:
    """MaxRL and the turns of GraphGPO do not depend on it; GAGPO does not where it divides by the deviation."""
    rows = [trajectory(e) for e in episodes]
    larger = [replace(row, turn_rewards=factor * row.turn_rewards) for row in rows]
    ways: list[tuple[str, dict[str, Any], int]] = [("maxrl", {}, 0), ("gagpo", {"norm_by_std": False}, 1)]
    for name, options, power in ways:
        plain, scaled = (np.concatenate(by_episode(name, paid, **options)) for paid in (rows, larger))
        np.testing.assert_allclose(scaled, factor**power * plain, atol=1e-9)
    before, after = (
        np.concatenate(by_episode("graphgpo", paid)) - np.concatenate(by_episode("graphgpo", paid, step_weight=0.0))
        for paid in (rows, larger)
    )
    np.testing.assert_allclose(after, before, atol=1e-9)


@forall(batches(min_turns=1))
def test_gagpo_without_lambda_compares_returns_in_a_state(episodes: list[Episode]) -> None:
    """At ``lam=1`` the recursion telescopes to the part of GiGPO that compares turns."""
    rows = [trajectory(e) for e in episodes]
    batch = complete("gigpo", rows)
    options: dict[str, Any] = {"gamma": 0.9, "norm_by_std": False}
    turns = estimate("gigpo", batch, **options).advantages - estimate("grpo", batch, norm_by_std=False).advantages
    np.testing.assert_allclose(estimate("gagpo", batch, lam=1.0, **options).advantages, turns, atol=1e-9)


@forall(batches(min_turns=1))
def test_endings_are_numbered_as_beginnings(episodes: list[Episode]) -> None:
    rows = [trajectory(e) for e in episodes]
    for kind in ("observation", "history"):
        begun, ended = visited_states(rows, kind)
        np.testing.assert_array_equal(begun, anchor_states(rows, kind))
        np.testing.assert_array_equal(ended >= 0, [e.goes_on for e in episodes])


def test_states_of_groups_are_apart() -> None:
    batch = action_batch(
        [[1, 1], [1], [1]], np.zeros(4), [0, 0, 3], anchor=np.array([0, 7, 7, 7]), ending=np.array([-1, 0, 7])
    )
    begun, ended = group_states(batch)
    assert begun[1] == begun[2] != begun[3] == ended[2]
    assert ended.tolist() == [-1, begun[0], begun[3]]
    assert {*begun.tolist(), *ended.tolist()} == {-1, 0, 1, 2}, "without gaps"


# ------------------ a graph


def walk(*states: int, success: bool = False, cut: bool = False) -> Trajectory:
    """Build an episode of one group, whose turns begin in these states; a cut one ends in the last of them."""
    begun = states[:-1] if cut else states
    ids = [token for state in begun for token in (state, 99)] + [states[-1]] * cut
    return trajectory_of(
        turns_of(*[(1, 1)] * len(begun), tail=int(cut)),
        np.append(np.zeros(len(begun) - 1), float(success)),
        token_ids=ids,
        group_id="g",
        stop="solved" if success else "max_turns" if cut else "gave_up",
    )


def progress(*episodes: Trajectory) -> list[list[float]]:
    """Return what GraphGPO adds to GRPO, by turn, with a distance discount of 1/2."""
    rows = list(episodes)
    batch, options = complete("graphgpo", rows), {"norm_by_std": False, "distance_discount": 0.5}
    sums = estimate("graphgpo", batch, **options).advantages - estimate("grpo", batch, norm_by_std=False).advantages
    return [part.tolist() for part in np.split(sums, batch.token_offsets[1:-1])]


def test_graph_rewards_progress_of_failures() -> None:
    """From 1, the goal is 2 turns away over 2, and not over 3. The failure's first turn is as good as the success's."""
    success, failure, lost = walk(1, 2, success=True), walk(1, 2, 3), walk(1, 3)
    assert solved(success)
    first = 0.5**2  # to 2, which is 1 turn from the goal
    astray = 0.5**4  # to 3: no path, so 1 more than the farthest, 2
    mean = (2 * first + astray) / 3
    at_two = (0.5 - astray) / 2  # the goal against 3
    expected = [[first - mean, at_two], [first - mean, -at_two, 0.0], [astray - mean, 0.0]]
    for row, numbers in zip(progress(success, failure, lost), expected, strict=True):
        assert row == pytest.approx(numbers)


def test_detour_of_success_is_not_rewarded() -> None:
    """Waiting in 1 leads back to 1, 1 turn from the goal: less than the turn that leads to the goal."""
    (wait, finish), (other,) = progress(walk(1, 1, success=True), walk(1, success=True))
    assert wait < 0 < finish == pytest.approx(other)


def test_cut_episode_leads_to_its_last_observation() -> None:
    """It ended where the goal is 1 turn away; the other failure did not."""
    _, (near,), (gave_up,) = progress(walk(1, 2, success=True), walk(1, 2, cut=True), walk(1))
    assert near == pytest.approx((0.5**2 - 0.5**4) / 3)
    assert gave_up < 0


def test_without_success_the_graph_says_nothing() -> None:
    assert progress(walk(1, 2), walk(1, 3), walk(1, 2, cut=True)) == [[0.0, 0.0], [0.0, 0.0], [0.0]]
    batch = complete("graphgpo", [walk(1, 2), walk(1, 3)])
    assert GraphGPO().metrics(batch, []) == {"ranked": 0.0}


@pytest.mark.parametrize("turns_left", [1, 5, 20])
def test_progress_counts_however_far_the_goal_is(turns_left: int) -> None:
    """Two turns in one state, of which one leads two turns farther: they are one deviation from their mean."""
    way = [*range(100, 100 + turns_left)]
    episodes = [walk(1, *way, success=True), walk(1, 2, 3, *way, success=True)]
    batch = complete("graphgpo", episodes)
    by_turn = estimate("graphgpo", batch).advantages - estimate("grpo", batch).advantages
    direct, detour = by_turn[0], by_turn[len(way) + 1]
    assert direct == pytest.approx(1.0, abs=1e-4)
    assert detour == pytest.approx(-1.0, abs=1e-4)


@forall(st.lists(st.tuples(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(0, 2)), max_size=6))
def test_nearer_to_the_goal_is_never_worse(paths: list[tuple[list[int], int]]) -> None:
    """Compare all turns that began in one state: advantages are in the order of distances."""
    rows = [walk(*states, success=end == 1, cut=end == 2) for states, end in paths]
    batch = complete("graphgpo", rows)
    if not rows:
        return
    turns, begun, after = GraphGPO()._progress(batch)
    by_turn = estimate("graphgpo", batch).advantages - estimate("grpo", batch).advantages
    assert len(turns) == len(by_turn), "a token each"
    for one in turns:
        for other in turns:
            if begun[one] == begun[other] and after[one] < after[other]:
                assert by_turn[one] > by_turn[other]


# ------------------ rare success


def test_maxrl_weighs_rare_success_more() -> None:
    """One success of four: 3 and three times -1. Three of four: a third, and -1. None, or a loss: 0."""
    rewards = np.array([1, 0, 0, 0, 1, 1, 1, 0, 0, 0, -1, -2])
    batch = action_batch([[1]] * 12, rewards, np.repeat([0, 1, 2], 4))
    expected = [3, -1, -1, -1, *[1 / 3] * 3, -1, 0, 0, 0, 0]
    np.testing.assert_allclose(estimate("maxrl", batch).advantages, expected)


def test_maxrl_counts_a_penalised_failure_as_a_failure() -> None:
    plain, penalised = (action_batch([[1]] * 3, rewards) for rewards in ([1.0, 0, 0], [1.0, 0, -0.9]))
    np.testing.assert_array_equal(estimate("maxrl", plain).advantages, estimate("maxrl", penalised).advantages)
