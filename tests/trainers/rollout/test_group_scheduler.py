"""The books of the collector: invariants under any order of events, and each rule by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainers.rollout.group_scheduler import (
    ConsecutiveErrorsError,
    FilterExhaustedError,
    GroupRules,
    GroupScheduler,
    StalenessError,
    Ticket,
)
from trainers.trajectory import Status, Trajectory


def played(version: int, reward: float = 0.0, status: Status = Status.COMPLETED, name: str = "") -> Trajectory:
    """An episode of one sampled token."""
    return Trajectory(
        token_ids=np.zeros(1, np.int32),
        action_mask=np.ones(1, np.bool_),
        logprobs=np.zeros(1, np.float32),
        weight_version=np.full(1, version, np.int32),
        turn_id=np.zeros(1, np.int32),
        turn_rewards=np.array([reward]),
        status=status,
        episode_id=name,
        task_key=name,
    )


def start_all(slots: GroupScheduler) -> list[Ticket]:
    return list(iter(slots.start, None))


# ---------------------------------------------------------------- the invariants, under any order of events


class Books(RuleBasedStateMachine):
    """Random completions, failures, aborts, updates, restarts; the oracle keeps its own record of what happened.

    The oracle's clock: the weights out are version ``updates``; batch number b is trained on version b.
    """

    @initialize(
        group_size=st.integers(1, 3),
        groups=st.integers(1, 3),
        staleness=st.integers(0, 3),
        slack=st.floats(0, 1),
        surplus=st.sampled_from([0, 0, 1, 2, 4]),
        retries=st.integers(0, 1),
        max_running=st.one_of(st.none(), st.integers(1, 6)),
        filtering=st.booleans(),
        greedy=st.booleans(),
    )
    def begin(self, group_size, groups, staleness, slack, surplus, retries, max_running, filtering, greedy):
        self.options = {
            "group_size": group_size,
            "greedy": greedy,
            "groups_per_batch": groups,
            "staleness": staleness,
            "window": 1 if surplus else 1 + int(slack * staleness * groups),
            "surplus": surplus,
            "retries": retries,
            "max_running": max_running,
            "filter_zero_variance": filtering and group_size > 1,
            "max_consecutive_filtered": 10**6,
            "max_consecutive_errors": 10**6,
        }
        self.slots = GroupScheduler(GroupRules(**self.options))
        self.updates = self.taken = 0
        self.running: dict[Ticket, int] = {}  # with the version when it started
        self.started: set[Ticket] = set()
        self.done: dict[int, dict[int, Trajectory]] = {}
        self.lost: dict[int, int] = {}
        self.failures: dict[tuple[int, tuple[int, int, int]], int] = {}
        self.forks: dict[int, dict[tuple[int, int, int], Trajectory]] = {}
        self.forking: dict[int, int] = {}  # forks that neither were played nor lost
        self.delivered: list[int] = []
        self.dropped: set[int] = set()
        self.overtaken: dict[int, int] = {}
        self.begun: dict[int, int] = {}  # the version at which a group's first episode began

    @rule(count=st.integers(1, 8))
    def start(self, count):
        for _ in range(count):
            if (ticket := self.slots.start()) is None:
                break
            assert ticket not in self.started, "an episode never starts twice"
            assert ticket.group not in self.delivered
            assert ticket.group not in self.dropped
            self.started.add(ticket)
            self.running[ticket] = self.updates
            self.begun.setdefault(ticket.group, self.updates)

    def end(self, ticket, outcome, forks=()):
        version = self.running.pop(ticket)
        number = ticket.group
        self.done.setdefault(number, {})
        if outcome == "failed":
            key = (number, ticket.place)
            self.failures[key] = self.failures.get(key, 0) + 1
            if self.failures[key] > self.options["retries"]:
                if ticket.fork:
                    self.forking[number] -= 1
                else:
                    self.lost[number] = self.lost.get(number, 0) + 1
            self.slots.finish(ticket, played(version, status=Status.ERROR_ENV))
        elif outcome == "aborted":
            self.slots.finish(ticket, played(version, status=Status.ABORTED), excused=True)
        elif ticket.fork:
            trajectory = played(version, reward=outcome, name=f"{number}/{ticket.place}")
            self.forks.setdefault(number, {})[ticket.place] = trajectory
            self.forking[number] -= 1
            self.slots.finish(ticket, trajectory)
        else:
            trajectory = played(version, reward=outcome, name=f"{number}/{ticket.sibling}")
            self.done[number][ticket.sibling] = trajectory
            self.forking[number] = self.forking.get(number, 0) + len(forks)
            self.slots.finish(ticket, trajectory, forks=forks)
            assert self.slots.forks_left(ticket) == bool(forks)
        size, greedy = self.options["group_size"], self.options["greedy"]
        rewards = [t.total_reward for t in self.done[number].values()]
        if len(rewards) + self.lost.get(number, 0) == size + greedy and not self.forking.get(number):
            flat = self.options["filter_zero_variance"] and len(set(rewards)) == 1
            siblings = [s for s in self.done[number] if s < size]
            incomparable = greedy and size not in self.done[number]
            if len(siblings) < min(2, size) or incomparable or flat:
                self.dropped.add(number)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from([0.0, 0.0, 1.0, 1.0, "failed", "aborted"]))
    def finish(self, data, outcome):
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        places = st.tuples(st.integers(0, 2), st.integers(0, 1))
        forks = [] if ticket.fork else data.draw(st.lists(places, unique=True, max_size=3))
        self.end(ticket, outcome, forks)

    @rule()
    def take(self):
        if (batch := self.slots.take()) is None:
            return
        assert len(batch) == self.options["groups_per_batch"]
        size = self.options["group_size"]
        taken_greedy = iter(self.slots.taken_greedy)
        for group, forks in zip(batch, self.slots.taken_forks, strict=True):
            number = int(group[0].episode_id.split("/")[0])
            there = self.forks.get(number, {})
            assert forks == [there[place] for place in sorted(there)], "all that were played, in order"
            assert group == [self.done[number][s] for s in sorted(self.done[number]) if s < size], "complete, in order"
            if self.options["greedy"]:
                assert next(taken_greedy) == self.done[number][size]
            assert number not in self.dropped
            assert number not in self.delivered
            # Invariant 1, on the oracle's own clock: this batch is number `taken`.
            assert self.taken - min(t.oldest_version for t in (*group, *forks)) <= self.options["staleness"]
            self.delivered.append(number)
        # Invariant 2: whoever is left behind is older by less than the window.
        newest = max(self.delivered[-len(batch) :])
        behind = set(range(newest)) - self.dropped - set(self.delivered)
        if not self.options["surplus"]:
            assert all(newest - number < self.options["window"] for number in behind)
        for number in behind:
            self.overtaken[number] = self.overtaken.get(number, 0) + sum(
                number < other for other in self.delivered[-len(batch) :]
            )
            assert self.overtaken[number] <= max(
                self.options["window"] - 1, (self.options["staleness"] + 1) * len(batch)
            )
        self.taken += 1
        # Only a surplus is withdrawn, and only what the next batch, number `taken`, could not have.
        late = {number for number, begun in self.begun.items() if self.taken - begun > self.options["staleness"]}
        late -= self.dropped | set(self.delivered)
        assert set(self.slots.withdrawn()) == {ticket for ticket in self.running if ticket.group in late}
        if not self.options["surplus"]:
            assert not late
        self.dropped |= late
        self.running = {ticket: version for ticket, version in self.running.items() if ticket.group not in late}

    @precondition(lambda self: self.taken > self.updates)
    @rule()
    def update(self):
        self.updates += 1
        self.slots.update(self.updates)

    @rule()
    def restart(self):
        """A checkpoint, then a new process: what ran is gone, what was in flight comes again."""
        frontier = json.loads(json.dumps(self.slots.frontier()))
        unfinished = set(range(frontier["next_group"])) - set(self.delivered) - self.dropped
        assert frontier["in_flight"] == sorted(unfinished), "neither skipped nor repeated"
        self.updates = self.taken  # the trainer's state is that after its last update
        self.slots = GroupScheduler(GroupRules(**self.options), self.updates)
        self.slots.restore(frontier)
        assert self.slots.frontier() | {"version": 0} == frontier | {"version": 0}
        self.running.clear()
        for number in unfinished:
            self.started = {ticket for ticket in self.started if ticket.group != number}
            self.done.pop(number, None)
            self.lost.pop(number, None)
            self.begun.pop(number, None)
            self.forks.pop(number, None)
            self.forking.pop(number, None)
            self.failures = {key: n for key, n in self.failures.items() if key[0] != number}

    @rule()
    def progress(self):
        """Invariant 4: play everything out, and there is a batch, once no update is owed."""
        while self.updates < self.taken:
            self.update()
        before = self.taken
        for _ in range(1000):
            self.start(10**6)
            if not self.running:
                break
            ticket = min(self.running)
            self.end(ticket, float(ticket.sibling))
        else:
            raise AssertionError("episodes without end")
        self.take()
        assert self.taken == before + 1

    @invariant()
    def bounded(self):
        if not hasattr(self, "slots"):
            return
        size, limit = self.options["group_size"], self.options["max_running"]
        assert self.slots.running == len(self.running) <= self.slots.capacity
        assert limit is None or len(self.running) <= limit
        in_flight = set(self.slots.in_flight)
        assert not in_flight & (self.dropped | set(self.delivered))
        assert len(in_flight) * size <= self.slots.capacity
        over = self.dropped | set(self.delivered)
        numbers = range(self.slots.frontier()["next_group"] + 2)
        assert {number for number in numbers if self.slots.gone(number)} == over
        ended = {number: len(done) + self.lost.get(number, 0) for number, done in self.done.items()}
        size = self.slots.rules.episodes_per_group
        whole = {number for number, count in ended.items() if count == size and not self.forking.get(number)}
        assert self.slots.ready == len(whole - over)


Books.TestCase.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestBooks = Books.TestCase


# ---------------------------------------------------------------- the bound is reached, and the plain rule breaks it


def steady_ages(slots: GroupScheduler, rounds: int) -> list[int]:
    """The oldest token's age in each batch of a trainer that lets everything run as early as it may."""
    ages = []
    for round_ in range(rounds):
        for ticket in start_all(slots):
            slots.finish(ticket, played(slots.version))
        version = slots.training_version
        batch = slots.take()
        assert batch is not None
        ages.append(version - min(t.oldest_version for group in batch for t in group))
        for ticket in start_all(slots):  # while the trainer trains
            slots.finish(ticket, played(slots.version))
        slots.update(round_ + 1)
    return ages


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_staleness_allowed_is_used(staleness: int) -> None:
    ages = steady_ages(GroupScheduler(GroupRules(group_size=2, groups_per_batch=3, staleness=staleness)), 8)
    assert max(ages) == staleness


def test_a_batch_that_is_too_old_is_not_handed_out() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, staleness=1), 5)
    ticket = slots.start()
    assert ticket is not None
    slots.finish(ticket, played(3, name="old"))
    with pytest.raises(StalenessError, match="'old'.*version 3.*version 5.*staleness=1"):
        slots.take()


def test_nothing_starts_between_a_batch_and_its_update_without_staleness() -> None:
    slots = GroupScheduler(GroupRules(group_size=2, groups_per_batch=2))
    for ticket in start_all(slots):
        slots.finish(ticket, played(0))
    assert slots.take() is not None
    assert slots.start() is None
    slots.update(1)
    assert {ticket.group for ticket in start_all(slots)} == {2, 3}


def test_updates_that_would_age_what_is_in_flight_are_refused() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, staleness=1), 4)
    slots.update(7)  # nothing is in flight: any version will do
    start_all(slots)
    with pytest.raises(ValueError, match="from version 7 to 8 with 0 batch"):
        slots.update(8)
    with pytest.raises(ValueError, match="must grow"):
        slots.update(7)
    assert slots.version == 7


# ---------------------------------------------------------------- order


def test_strict_order_waits_for_the_oldest_and_a_window_does_not() -> None:
    delivered = {}
    for window in (1, 2, 3):
        slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=2, staleness=2, window=window))
        _straggler, *others = start_all(slots)
        for ticket in others:
            slots.finish(ticket, played(0, name=str(ticket.group)))
        batch = slots.take()
        delivered[window] = None if batch is None else [group[0].episode_id for group in batch]
    assert delivered == {1: None, 2: None, 3: ["1", "2"]}, "a batch of two needs two places to overtake in"


def test_a_straggler_is_overtaken_by_less_than_the_window() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, staleness=3, window=3))
    straggler = slots.start()
    assert straggler is not None
    overtaken = 0
    for version in range(1, 10):
        for ticket in start_all(slots):
            slots.finish(ticket, played(slots.version, name=str(ticket.group)))
        if slots.take() is None:
            break
        overtaken += 1
        slots.update(version)
    assert overtaken == 2
    slots.finish(straggler, played(0, name="straggler"))
    batch = slots.take()
    assert batch is not None
    assert batch[0][0].episode_id == "straggler"


def test_a_surplus_is_taken_as_it_completes_and_nothing_of_it_is_lost() -> None:
    """What sampling more groups than needed is for, with a filter: the first that are complete and differ are taken."""
    slots = GroupScheduler(
        GroupRules(group_size=2, groups_per_batch=2, staleness=2, window=4, filter_zero_variance=True)
    )

    def play(group: int, *rewards: float) -> None:
        for sibling, reward in enumerate(rewards):
            slots.finish(Ticket(group, sibling), played(slots.version, reward, name=str(group)))

    def taken() -> list[str] | None:
        batch = slots.take()
        return None if batch is None else [group[0].episode_id for group in batch]

    assert {ticket.group for ticket in start_all(slots)} == {0, 1, 2}, "one more than a batch needs"
    play(1, 0.5, 0.5)
    assert {ticket.group for ticket in start_all(slots)} == {3}, "the filtered one is replaced"
    play(2, 0.0, 1.0)
    assert taken() is None
    play(3, 0.0, 1.0)
    assert taken() == ["2", "3"], "the slow one is overtaken"
    slots.update(1)
    assert {ticket.group for ticket in start_all(slots)} == {4, 5}
    play(4, 0.0, 1.0)
    play(5, 0.0, 1.0)
    assert taken() is None, "but by fewer than the window: it is never left behind for good"
    play(0, 0.0, 1.0)
    assert taken() == ["0", "4"]
    assert slots.counters["groups_dropped_zero_variance"] == 1


def test_oversampling_takes_the_first_that_are_complete_and_withdraws_the_rest() -> None:
    slots = GroupScheduler(GroupRules(group_size=2, groups_per_batch=2, surplus=1, max_running=5))
    assert len(start_all(slots)) == 5
    for ticket in [Ticket(1, 0), Ticket(1, 1)]:
        slots.finish(ticket, played(0, name=str(ticket.group)))
    assert start_all(slots) == [Ticket(2, 1)]
    for ticket in [Ticket(2, 0), Ticket(2, 1), Ticket(0, 0)]:
        slots.finish(ticket, played(0, name=str(ticket.group)))
    batch = slots.take()
    assert batch is not None
    assert [group[0].episode_id for group in batch] == ["1", "2"], "the slow one is overtaken"
    assert slots.withdrawn() == [Ticket(0, 1)], "and too old for the next batch"
    assert slots.withdrawn() == []
    assert slots.counters["groups_dropped_surplus"] == slots.counters["episodes_withdrawn"] == 1
    with pytest.raises(ValueError, match="withdrawn"):
        slots.finish(Ticket(0, 1), played(0))
    assert slots.start() is None, "what started now would be too old at birth"
    slots.update(1)
    assert {ticket.group for ticket in start_all(slots)} == {3, 4, 5}


def test_with_staleness_a_surplus_is_kept_for_the_next_batch() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, staleness=1, surplus=1))
    slow, *others = start_all(slots)
    for ticket in others:
        slots.finish(ticket, played(0, name=str(ticket.group)))
    assert slots.take() is not None
    assert slots.withdrawn() == []
    slots.finish(slow, played(0, name="slow"))
    batch = slots.take()
    assert batch is not None
    assert batch[0][0].episode_id == "slow"
    assert slots.counters["groups_dropped_surplus"] == 1, "the third, too old for the batch after"


def test_running_slots_are_refilled_an_episode_at_a_time() -> None:
    slots = GroupScheduler(GroupRules(group_size=3, groups_per_batch=2, max_running=2))
    assert start_all(slots) == [Ticket(0, 0), Ticket(0, 1)]
    slots.finish(Ticket(0, 0), played(0))
    assert start_all(slots) == [Ticket(0, 2)]
    slots.finish(Ticket(0, 1), played(0))
    assert start_all(slots) == [Ticket(1, 0)], "the next group starts while a sibling of the first still runs"
    slots.finish(Ticket(0, 2), played(0, status=Status.ERROR_ENV))
    assert start_all(slots) == [Ticket(0, 2, 1, 1)], "a retry of the oldest group goes first"


# ---------------------------------------------------------------- failures and filters


def test_a_group_goes_on_with_two_siblings_and_is_dropped_with_one() -> None:
    slots = GroupScheduler(GroupRules(group_size=3, groups_per_batch=1, staleness=1, retries=1))

    def play(group: int, failing: set[int]) -> None:
        while ticket := next((t for t in tickets if t.group == group), None):
            tickets.remove(ticket)
            status = Status.TRUNCATED_TIME if ticket.sibling in failing else Status.COMPLETED
            slots.finish(ticket, played(0, status=status))
            tickets.extend(start_all(slots))

    tickets = start_all(slots)
    play(0, failing={1})
    batch = slots.take()
    assert batch is not None
    assert [len(group) for group in batch] == [2]
    play(1, failing={0, 2})
    assert slots.counters["groups_dropped_too_few_siblings"] == 1
    assert slots.counters["retries"] == slots.counters["siblings_lost"] == 3
    assert slots.in_flight == [2], "its replacement"


def test_a_greedy_episode_is_played_with_each_group_and_kept_apart() -> None:
    rules = GroupRules(group_size=2, groups_per_batch=1, staleness=1, retries=0, greedy=True, filter_zero_variance=True)
    slots = GroupScheduler(rules)
    tickets = start_all(slots)
    assert len(tickets) == slots.capacity == 6
    assert [t.sibling for t in tickets if slots.is_greedy(t)] == [2, 2]

    def play(group: int, *rewards: float | None) -> None:
        for sibling, reward in enumerate(rewards):
            failed = {"status": Status.ERROR_ENV} if reward is None else {"reward": reward}
            slots.finish(Ticket(group, sibling), played(0, name=f"{group}/{sibling}", **failed))  # type: ignore[arg-type]
        start_all(slots)

    play(0, 1.0, 1.0, 0.0)  # equal among each other, but not to greedy decoding: they teach something
    batch = slots.take()
    assert batch is not None
    assert [t.episode_id for t in batch[0]] == ["0/0", "0/1"]
    assert [t.episode_id for t in slots.taken_greedy] == ["0/2"]
    play(1, 1.0, 0.0, None)
    slots.update(1)
    start_all(slots)
    assert slots.counters["groups_dropped_no_greedy"] == 1
    play(2, 0.5, 0.5, 0.5)
    assert slots.counters["groups_dropped_zero_variance"] == 1


def test_a_dropped_group_is_replaced_within_the_same_batch() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=2, retries=0))
    first, second = start_all(slots)
    slots.finish(first, played(0, status=Status.ERROR_ENGINE))
    replacement = slots.start()
    assert replacement == Ticket(2, 0)
    slots.finish(second, played(0, name="1"))
    slots.finish(replacement, played(0, name="2"))
    batch = slots.take()
    assert batch is not None
    assert [group[0].episode_id for group in batch] == ["1", "2"]


def test_a_trajectory_without_a_sampled_token_is_a_failure() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, retries=0))
    ticket = slots.start()
    empty = Trajectory(*(np.zeros(0, t) for t in (np.int32, bool, np.float32, np.int32, np.int32, np.float64)))
    assert ticket is not None
    slots.finish(ticket, empty)
    assert slots.counters["groups_dropped_too_few_siblings"] == 1


def test_groups_without_difference_are_replaced_until_it_is_too_much() -> None:
    slots = GroupScheduler(
        GroupRules(group_size=2, groups_per_batch=1, filter_zero_variance=True, max_consecutive_filtered=2)
    )

    def play(rewards: tuple[float, float]) -> None:
        for ticket in start_all(slots):
            slots.finish(ticket, played(0, rewards[ticket.sibling], name="sum-17"))

    play((1.0, 1.0))
    play((0.0, 0.0))
    play((0.0, 1.0))  # kept: the count starts again
    assert slots.take() is not None
    slots.update(1)
    play((0.5, 0.5))
    play((0.5, 0.5))
    assert slots.counters["groups_dropped_zero_variance"] == 4
    with pytest.raises(FilterExhaustedError, match=r"3 groups in a row.*'sum-17'.*2 episodes got 0.5.*temperature"):
        play((0.5, 0.5))


def test_errors_in_a_row_stop_the_run_and_a_success_or_an_excuse_does_not_count() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=4, retries=9, max_consecutive_errors=2))

    def end(status: Status, **kwargs: bool) -> None:
        ticket = slots.start()
        assert ticket is not None
        slots.finish(ticket, played(0, status=status, name="sum-3"), **kwargs)

    end(Status.ERROR_ENV)
    end(Status.COMPLETED)
    end(Status.ERROR_ENV)
    end(Status.ABORTED, excused=True)
    with pytest.raises(ConsecutiveErrorsError, match="2 episodes in a row.*'sum-3'.*truncated_time"):
        end(Status.TRUNCATED_TIME)


def test_an_excused_abort_costs_no_retry() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1, retries=0))
    for attempt in range(5):
        ticket = slots.start()
        assert ticket == Ticket(0, 0, attempt)
        slots.finish(ticket, played(0, status=Status.ABORTED), excused=True)
    assert slots.counters["retries_excused"] == 5
    assert slots.in_flight == [0]


def test_an_episode_ends_once() -> None:
    slots = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1))
    ticket = slots.start()
    assert ticket is not None
    slots.finish(ticket, played(0))
    with pytest.raises(ValueError, match="not running"):
        slots.finish(ticket, played(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"groups_per_batch": 0}, "groups_per_batch must be at least 1"),
        ({"staleness": -1}, "staleness must be at least 0"),
        ({"max_running": 0}, "max_running must be at least 1"),
        ({"window": 2}, "use window <= 1 or more staleness"),
        ({"window": 6, "staleness": 2}, "use window <= 5 or more staleness"),
        ({"group_size": 1, "filter_zero_variance": True}, "group_size >= 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupRules(**({"group_size": 2, "groups_per_batch": 2} | options))


def test_a_malformed_frontier_is_refused() -> None:
    good = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1)).frontier()
    with pytest.raises(ValueError, match="ascending numbers below next_group=2"):
        GroupScheduler(GroupRules(group_size=1, groups_per_batch=1)).restore(good | {"next_group": 2, "in_flight": [2]})
    used = GroupScheduler(GroupRules(group_size=1, groups_per_batch=1))
    used.start()
    with pytest.raises(ValueError, match="before the first episode"):
        used.restore(good)
