"""The filter of groups by the variance of their rewards: an oracle of the selection, and the scheduler."""

from __future__ import annotations

from itertools import combinations, cycle
from statistics import stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import trajectory_of

from trainers.config.rollout import RolloutSection
from trainers.rollout.group_scheduler import FilterExhaustedError, GroupScheduler
from trainers.rollout.variance_filter import most_varied
from trainers.trajectory import Trajectory

#: Returns of the episodes of each group.
GROUPS = st.lists(st.lists(st.integers(-3, 3).map(float), min_size=2, max_size=4), min_size=1, max_size=6)


def groups_of(returns: list[list[float]]) -> list[list[Trajectory]]:
    return [[trajectory_of([0], [reward]) for reward in group] for group in returns]


@settings(max_examples=200, deadline=None)
@given(returns=GROUPS, top_p=st.floats(0.01, 1.0))
def test_no_smaller_set_has_share(returns: list[list[float]], top_p: float) -> None:
    """Among all subsets, enumerated: none with fewer groups reaches the share, and none as large has a greater sum."""
    kept, deviations = most_varied(groups_of(returns), top_p), [stdev(group) for group in returns]
    total, mass = sum(deviations), sum(deviations[place] for place in kept)
    assert kept == sorted(kept)
    assert all(deviations[place] > 0 for place in kept)
    assert bool(kept) == (total > 0)
    assert mass >= top_p * total - 1e-9
    for smaller in combinations(deviations, max(0, len(kept) - 1)):
        assert sum(smaller) < top_p * total + 1e-9 or not kept
    assert all(sum(same) <= mass + 1e-9 for same in combinations(deviations, len(kept)))


def test_earlier_of_equal_groups_is_kept() -> None:
    assert most_varied(groups_of([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.1, 0.1], [0.0, 1.0]]), 0.6) == [1, 2]


def test_equal_rewards_have_no_deviation_by_rounding() -> None:
    assert most_varied(groups_of([[0.1] * 3, [0.7] * 7]), 0.9) == []


def play(scheduler: GroupScheduler, returns: list[list[float]]) -> None:
    """Play all groups that may start, in order."""
    rewards = iter(returns)
    while (ticket := scheduler.start()) is not None:
        tickets = [ticket, *(scheduler.start() for _ in range(scheduler.rollout.n - 1))]
        for ticket, reward in zip(tickets, next(rewards), strict=True):
            assert ticket is not None
            name = str(ticket.group)
            scheduler.finish(ticket, trajectory_of([0], [reward], version=scheduler.version, episode_id=name))


def test_batch_has_groups_of_most_variance() -> None:
    scheduler = GroupScheduler(RolloutSection(n=2, groups_per_batch=4, filter_variance_top_p=0.8))
    play(scheduler, [[0.0, 0.1], [0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    batch = scheduler.take()
    assert batch is not None
    assert [group[0].episode_id for group in batch] == ["1", "3"]
    assert [dropped[:2] for dropped in scheduler.dropped()] == [(0, "low_variance"), (2, "zero_variance")]
    assert scheduler.counters["groups_dropped_low_variance"] == scheduler.counters["groups_dropped_zero_variance"] == 1
    assert scheduler.counters["groups_delivered"] == 2
    assert scheduler.updates_due == 1
    assert scheduler.start() is None, "what is dropped is not replaced"


def test_batch_without_difference_is_replaced_up_to_limit() -> None:
    options = {"n": 2, "groups_per_batch": 2, "filter_variance_top_p": 0.9, "max_consecutive_filtered": 4}
    scheduler = GroupScheduler(RolloutSection(**options))
    for _ in range(2):
        play(scheduler, [[1.0, 1.0], [0.0, 0.0]])
        assert scheduler.take() is None
        assert not scheduler.updates_due, "no update is due for a batch that there was not"
    play(scheduler, [[1.0, 1.0], [0.0, 1.0]])
    batch = scheduler.take()
    assert batch is not None
    assert [group[0].episode_id for group in batch] == ["5"]
    scheduler.update(1)
    for _ in range(2):
        play(scheduler, [[1.0, 1.0], [0.0, 0.0]])
        assert scheduler.take() is None, "the count began again"
    play(scheduler, [[1.0, 1.0], [0.5, 0.5]])
    with pytest.raises(FilterExhaustedError, match=r"6 groups in a row.*episodes got 0.5.*filter_variance_top_p"):
        scheduler.take()


@settings(max_examples=40, deadline=None)
@given(returns=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1), staleness=st.integers(0, 2))
def test_batches_have_signal_groups_end_once(returns: list[tuple[bool, bool]], staleness: int) -> None:
    """Any order of rewards, with one group in six that differs: no batch is empty, and none never comes."""
    options = {"n": 2, "groups_per_batch": 3, "filter_variance_top_p": 0.9, "max_consecutive_filtered": 10**6}
    scheduler = GroupScheduler(RolloutSection(**options, staleness=staleness))
    rewards, delivered, dropped = cycle([*returns, *[(True, True)] * 4, (False, True)]), [], []
    for version in range(1, 6):
        for _ in range(50):
            while (first := scheduler.start()) is not None:
                second = scheduler.start()
                assert second is not None
                for ticket, reward in zip((first, second), next(rewards), strict=True):
                    name = str(ticket.group)
                    scheduler.finish(ticket, trajectory_of([0], [reward], version=version - 1, episode_id=name))
            if (batch := scheduler.take()) is not None:
                break
        else:
            raise AssertionError("no batch")
        assert batch
        assert all(len({t.total_reward for t in group}) == 2 for group in batch)
        delivered += [int(group[0].episode_id) for group in batch]
        dropped += [number for number, _, _ in scheduler.dropped()]
        scheduler.update(version)
    over = [number for number in range(scheduler.frontier()["next_group"]) if scheduler.is_done(number)]
    assert sorted(delivered + dropped) == over
