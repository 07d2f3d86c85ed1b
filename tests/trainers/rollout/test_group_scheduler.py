"""The collector's scheduler: invariants under any order of events, and each rule by itself."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trajectories import trajectory_of

from trainers.config.rollout import RolloutSection
from trainers.rollout.group_scheduler import (
    ConsecutiveErrorsError,
    FilterExhaustedError,
    GroupScheduler,
    StalenessError,
    Ticket,
)
from trainers.trajectory import Status, Trajectory


def played(version: int, reward: float = 0.0, status: Status = Status.COMPLETED, name: str = "") -> Trajectory:
    """An episode of one sampled token."""
    return trajectory_of([0], [reward], version=version, status=status, episode_id=name, task_key=name)


def start_all(scheduler: GroupScheduler) -> list[Ticket]:
    return list(iter(scheduler.start, None))


def play_all(scheduler: GroupScheduler, tickets: list[Ticket] | None = None) -> None:
    """Complete these tickets, or all that may start; episodes are named by their group."""
    for ticket in start_all(scheduler) if tickets is None else tickets:
        scheduler.finish(ticket, played(scheduler.version, name=str(ticket.group)))


def taken(scheduler: GroupScheduler) -> list[str] | None:
    """Take a batch; return the name of each group's first episode."""
    batch = scheduler.take()
    return None if batch is None else [group[0].episode_id for group in batch]


# ---------------------------------------------------------------- the invariants, under any order of events


class SchedulerMachine(RuleBasedStateMachine):
    """Random completions, failures, aborts, updates, restarts; the oracle keeps its own record of what happened.

    The oracle's clock: the weights out are version ``updates``; batch number b is trained on version b.
    """

    @initialize(
        n=st.integers(1, 3),
        groups=st.integers(1, 3),
        staleness=st.integers(0, 3),
        slack=st.floats(0, 1),
        surplus=st.sampled_from([0, 0, 1, 2, 4]),
        retries=st.integers(0, 1),
        max_running=st.one_of(st.none(), st.integers(1, 6)),
        filtering=st.booleans(),
        greedy=st.booleans(),
    )
    def begin(self, n, groups, staleness, slack, surplus, retries, max_running, filtering, greedy):
        self.options = {
            "n": n,
            "groups_per_batch": groups,
            "staleness": staleness,
            "window": 1 if surplus else 1 + int(slack * staleness * groups),
            "oversampling_factor": 1 + surplus / groups,
            "retries": retries,
            "max_running": max_running,
            "filter_zero_variance": filtering and n > 1,
            "max_consecutive_filtered": 10**6,
            "max_consecutive_errors": 10**6,
        }
        self.rollout, self.needs = RolloutSection(**self.options), ["greedy"] if greedy else []
        self.scheduler = GroupScheduler(self.rollout, self.needs)
        self.updates = self.batches_taken = 0
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
            if (ticket := self.scheduler.start()) is None:
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
            self.scheduler.finish(ticket, played(version, status=Status.ERROR_ENV))
        elif outcome == "aborted":
            self.scheduler.finish(ticket, played(version, status=Status.ABORTED), excused=True)
        elif ticket.fork:
            trajectory = played(version, reward=outcome, name=f"{number}/{ticket.place}")
            self.forks.setdefault(number, {})[ticket.place] = trajectory
            self.forking[number] -= 1
            self.scheduler.finish(ticket, trajectory)
        else:
            trajectory = played(version, reward=outcome, name=f"{number}/{ticket.sibling}")
            self.done[number][ticket.sibling] = trajectory
            self.forking[number] = self.forking.get(number, 0) + len(forks)
            self.scheduler.finish(ticket, trajectory, forks=forks)
            assert self.scheduler.forks_left(ticket) == bool(forks)
        size, greedy = self.options["n"], bool(self.needs)
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
        if (batch := self.scheduler.take()) is None:
            return
        assert len(batch) == self.options["groups_per_batch"]
        size = self.options["n"]
        taken_greedy = iter(self.scheduler.taken_greedy)
        for group, forks in zip(batch, self.scheduler.taken_forks, strict=True):
            number = int(group[0].episode_id.split("/")[0])
            played_forks = self.forks.get(number, {})
            assert forks == [played_forks[place] for place in sorted(played_forks)], "all that were played, in order"
            assert group == [self.done[number][s] for s in sorted(self.done[number]) if s < size], "complete, in order"
            if self.needs:
                assert next(taken_greedy) == self.done[number][size]
            assert number not in self.dropped
            assert number not in self.delivered
            # Invariant 1, on the oracle's own clock: this batch is number `taken`.
            assert self.batches_taken - min(t.oldest_version for t in (*group, *forks)) <= self.options["staleness"]
            self.delivered.append(number)
        # Invariant 2: a group that is left behind is older by less than the window.
        newest = max(self.delivered[-len(batch) :])
        behind = set(range(newest)) - self.dropped - set(self.delivered)
        if self.options["oversampling_factor"] == 1:
            assert all(newest - number < self.options["window"] for number in behind)
        for number in behind:
            self.overtaken[number] = self.overtaken.get(number, 0) + sum(
                number < other for other in self.delivered[-len(batch) :]
            )
            assert self.overtaken[number] <= max(
                self.options["window"] - 1, (self.options["staleness"] + 1) * len(batch)
            )
        self.batches_taken += 1
        # Only a surplus is withdrawn, and only what the next batch, number `taken`, could not have.
        late = {
            number for number, begun in self.begun.items() if self.batches_taken - begun > self.options["staleness"]
        }
        late -= self.dropped | set(self.delivered)
        assert set(self.scheduler.withdrawn()) == {ticket for ticket in self.running if ticket.group in late}
        if self.options["oversampling_factor"] == 1:
            assert not late
        self.dropped |= late
        self.running = {ticket: version for ticket, version in self.running.items() if ticket.group not in late}

    @precondition(lambda self: self.batches_taken > self.updates)
    @rule()
    def update(self):
        self.updates += 1
        self.scheduler.update(self.updates)

    @rule()
    def restart(self):
        """A checkpoint, then a new process: what ran is gone, what was in flight comes again."""
        frontier = json.loads(json.dumps(self.scheduler.frontier()))
        unfinished = set(range(frontier["next_group"])) - set(self.delivered) - self.dropped
        assert frontier["in_flight"] == sorted(unfinished), "neither skipped nor repeated"
        self.updates = self.batches_taken  # the trainer's state is that after its last update
        self.scheduler = GroupScheduler(self.rollout, self.needs, self.updates)
        self.scheduler.restore(frontier)
        assert self.scheduler.frontier() | {"version": 0} == frontier | {"version": 0}
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
        while self.updates < self.batches_taken:
            self.update()
        before = self.batches_taken
        for _ in range(1000):
            self.start(10**6)
            if not self.running:
                break
            ticket = min(self.running)
            self.end(ticket, float(ticket.sibling))
        else:
            raise AssertionError("episodes without end")
        self.take()
        assert self.batches_taken == before + 1

    @invariant()
    def bounded(self):
        if not hasattr(self, "scheduler"):
            return
        size, limit = self.options["n"], self.options["max_running"]
        assert self.scheduler.running == len(self.running) <= self.scheduler.capacity
        assert limit is None or len(self.running) <= limit
        in_flight = set(self.scheduler.in_flight)
        assert not in_flight & (self.dropped | set(self.delivered))
        assert len(in_flight) * size <= self.scheduler.capacity
        over = self.dropped | set(self.delivered)
        numbers = range(self.scheduler.frontier()["next_group"] + 2)
        assert {number for number in numbers if self.scheduler.is_done(number)} == over
        ended = {number: len(done) + self.lost.get(number, 0) for number, done in self.done.items()}
        size = self.scheduler.episodes_per_group
        whole = {number for number, count in ended.items() if count == size and not self.forking.get(number)}
        assert self.scheduler.ready == len(whole - over)


SchedulerMachine.TestCase.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestGroupScheduler = SchedulerMachine.TestCase


# ---------------------------------------------------------------- the bound is reached, and the plain rule breaks it


def steady_ages(scheduler: GroupScheduler, rounds: int) -> list[int]:
    """The oldest token's age in each batch of a trainer that lets everything run as early as it may."""
    ages = []
    for round_ in range(rounds):
        play_all(scheduler)
        version = scheduler.training_version
        batch = scheduler.take()
        assert batch is not None
        ages.append(version - min(t.oldest_version for group in batch for t in group))
        play_all(scheduler)  # while the trainer trains
        scheduler.update(round_ + 1)
    return ages


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_staleness_allowed_is_used(staleness: int) -> None:
    ages = steady_ages(GroupScheduler(RolloutSection(n=2, groups_per_batch=3, staleness=staleness)), 8)
    assert max(ages) == staleness


def test_stale_batch_is_not_delivered() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, staleness=1), version=5)
    ticket = scheduler.start()
    assert ticket is not None
    scheduler.finish(ticket, played(3, name="old"))
    with pytest.raises(StalenessError, match="'old'.*version 3.*version 5.*staleness=1"):
        scheduler.take()


def test_zero_staleness_starts_nothing_before_update() -> None:
    scheduler = GroupScheduler(RolloutSection(n=2, groups_per_batch=2))
    play_all(scheduler)
    assert taken(scheduler) == ["0", "1"]
    assert scheduler.start() is None
    scheduler.update(1)
    assert {ticket.group for ticket in start_all(scheduler)} == {2, 3}


def test_updates_beyond_staleness_are_refused() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, staleness=1), version=4)
    scheduler.update(7)  # nothing is in flight: any version will do
    start_all(scheduler)
    with pytest.raises(ValueError, match="from version 7 to 8 with 0 batch"):
        scheduler.update(8)
    with pytest.raises(ValueError, match="must grow"):
        scheduler.update(7)
    assert scheduler.version == 7


# ---------------------------------------------------------------- order


def test_only_window_overtakes_oldest_group() -> None:
    delivered = {}
    for window in (1, 2, 3):
        scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=2, staleness=2, window=window))
        _straggler, *rest = start_all(scheduler)
        play_all(scheduler, rest)
        delivered[window] = taken(scheduler)
    assert delivered == {1: None, 2: None, 3: ["1", "2"]}, "a batch of two needs two places to overtake in"


def test_straggler_is_overtaken_by_less_than_window() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, staleness=3, window=3))
    straggler = scheduler.start()
    assert straggler is not None
    overtaken = 0
    for version in range(1, 10):
        play_all(scheduler)
        if scheduler.take() is None:
            break
        overtaken += 1
        scheduler.update(version)
    assert overtaken == 2
    scheduler.finish(straggler, played(0, name="straggler"))
    assert taken(scheduler) == ["straggler"]


def test_surplus_is_taken_on_completion_without_loss() -> None:
    """Check that oversampling with a filter takes the first groups that are complete and differ."""
    scheduler = GroupScheduler(
        RolloutSection(n=2, groups_per_batch=2, staleness=2, window=4, filter_zero_variance=True)
    )

    def play(group: int, *rewards: float) -> None:
        for sibling, reward in enumerate(rewards):
            scheduler.finish(Ticket(group, sibling), played(scheduler.version, reward, name=str(group)))

    assert {ticket.group for ticket in start_all(scheduler)} == {0, 1, 2}, "one more than a batch needs"
    play(1, 0.5, 0.5)
    assert {ticket.group for ticket in start_all(scheduler)} == {3}, "the filtered one is replaced"
    play(2, 0.0, 1.0)
    assert taken(scheduler) is None
    play(3, 0.0, 1.0)
    assert taken(scheduler) == ["2", "3"], "the slow one is overtaken"
    scheduler.update(1)
    assert {ticket.group for ticket in start_all(scheduler)} == {4, 5}
    play(4, 0.0, 1.0)
    play(5, 0.0, 1.0)
    assert taken(scheduler) is None, "but by fewer than the window: it is never left behind for good"
    play(0, 0.0, 1.0)
    assert taken(scheduler) == ["0", "4"]
    assert scheduler.counters["groups_dropped_zero_variance"] == 1


def test_oversampling_takes_first_complete_and_withdraws_rest() -> None:
    scheduler = GroupScheduler(RolloutSection(n=2, groups_per_batch=2, oversampling_factor=1.5, max_running=5))
    assert len(start_all(scheduler)) == 5
    play_all(scheduler, [Ticket(1, 0), Ticket(1, 1)])
    assert start_all(scheduler) == [Ticket(2, 1)]
    play_all(scheduler, [Ticket(2, 0), Ticket(2, 1), Ticket(0, 0)])
    assert taken(scheduler) == ["1", "2"], "the slow one is overtaken"
    assert scheduler.withdrawn() == [Ticket(0, 1)], "and too old for the next batch"
    assert scheduler.withdrawn() == []
    assert scheduler.counters["groups_dropped_surplus"] == scheduler.counters["episodes_withdrawn"] == 1
    with pytest.raises(ValueError, match="withdrawn"):
        scheduler.finish(Ticket(0, 1), played(0))
    assert scheduler.start() is None, "what started now would be too old at birth"
    scheduler.update(1)
    assert {ticket.group for ticket in start_all(scheduler)} == {3, 4, 5}


def test_with_staleness_surplus_is_kept_for_next_batch() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, staleness=1, oversampling_factor=2.0))
    slow, *rest = start_all(scheduler)
    play_all(scheduler, rest)
    assert scheduler.take() is not None
    assert scheduler.withdrawn() == []
    scheduler.finish(slow, played(0, name="slow"))
    assert taken(scheduler) == ["slow"]
    assert scheduler.counters["groups_dropped_surplus"] == 1, "the third, too old for the batch after"


def test_running_slots_are_refilled_episode_at_time() -> None:
    scheduler = GroupScheduler(RolloutSection(n=3, groups_per_batch=2, max_running=2))
    assert start_all(scheduler) == [Ticket(0, 0), Ticket(0, 1)]
    scheduler.finish(Ticket(0, 0), played(0))
    assert start_all(scheduler) == [Ticket(0, 2)]
    scheduler.finish(Ticket(0, 1), played(0))
    assert start_all(scheduler) == [Ticket(1, 0)], "the next group starts while a sibling of the first still runs"
    scheduler.finish(Ticket(0, 2), played(0, status=Status.ERROR_ENV))
    assert start_all(scheduler) == [Ticket(0, 2, 1, 1)], "a retry of the oldest group goes first"


# ---------------------------------------------------------------- failures and filters


def test_group_continues_with_two_siblings_not_one() -> None:
    scheduler = GroupScheduler(RolloutSection(n=3, groups_per_batch=1, staleness=1, retries=1))

    def play(group: int, failing: set[int]) -> None:
        while ticket := next((t for t in tickets if t.group == group), None):
            tickets.remove(ticket)
            status = Status.TRUNCATED_TIME if ticket.sibling in failing else Status.COMPLETED
            scheduler.finish(ticket, played(0, status=status))
            tickets.extend(start_all(scheduler))

    tickets = start_all(scheduler)
    play(0, failing={1})
    batch = scheduler.take()
    assert batch is not None
    assert [len(group) for group in batch] == [2]
    play(1, failing={0, 2})
    assert scheduler.counters["groups_dropped_too_few_siblings"] == 1
    assert scheduler.counters["retries"] == scheduler.counters["siblings_lost"] == 3
    assert scheduler.in_flight == [2], "its replacement"


def test_each_group_has_separate_greedy_episode() -> None:
    rollout = RolloutSection(n=2, groups_per_batch=1, staleness=1, retries=0, filter_zero_variance=True)
    scheduler = GroupScheduler(rollout, {"greedy"})
    tickets = start_all(scheduler)
    assert len(tickets) == scheduler.capacity == 6
    assert [t.sibling for t in tickets if scheduler.is_greedy(t)] == [2, 2]

    def play(group: int, *rewards: float | None) -> None:
        for sibling, reward in enumerate(rewards):
            failed = {"status": Status.ERROR_ENV} if reward is None else {"reward": reward}
            scheduler.finish(Ticket(group, sibling), played(0, name=f"{group}/{sibling}", **failed))  # type: ignore[arg-type]
        start_all(scheduler)

    play(0, 1.0, 1.0, 0.0)  # equal among each other, but not to greedy decoding: they teach something
    batch = scheduler.take()
    assert batch is not None
    assert [t.episode_id for t in batch[0]] == ["0/0", "0/1"]
    assert [t.episode_id for t in scheduler.taken_greedy] == ["0/2"]
    play(1, 1.0, 0.0, None)
    scheduler.update(1)
    start_all(scheduler)
    assert scheduler.counters["groups_dropped_no_greedy"] == 1
    play(2, 0.5, 0.5, 0.5)
    assert scheduler.counters["groups_dropped_zero_variance"] == 1


def test_dropped_group_is_replaced_within_same_batch() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=2, retries=0))
    first, second = start_all(scheduler)
    scheduler.finish(first, played(0, status=Status.ERROR_ENGINE))
    replacement = scheduler.start()
    assert replacement == Ticket(2, 0)
    play_all(scheduler, [second, replacement])
    assert taken(scheduler) == ["1", "2"]


def test_trajectory_without_sampled_token_is_failure() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, retries=0))
    ticket = scheduler.start()
    assert ticket is not None
    scheduler.finish(ticket, trajectory_of([]))
    assert scheduler.counters["groups_dropped_too_few_siblings"] == 1


def test_tied_groups_are_replaced_up_to_limit() -> None:
    scheduler = GroupScheduler(
        RolloutSection(n=2, groups_per_batch=1, filter_zero_variance=True, max_consecutive_filtered=2)
    )

    def play(rewards: tuple[float, float]) -> None:
        for ticket in start_all(scheduler):
            scheduler.finish(ticket, played(0, rewards[ticket.sibling], name="sum-17"))

    play((1.0, 1.0))
    play((0.0, 0.0))
    play((0.0, 1.0))  # kept: the count starts again
    assert scheduler.take() is not None
    scheduler.update(1)
    play((0.5, 0.5))
    play((0.5, 0.5))
    assert scheduler.counters["groups_dropped_zero_variance"] == 4
    with pytest.raises(FilterExhaustedError, match=r"3 groups in a row.*'sum-17'.*2 episodes got 0.5.*temperature"):
        play((0.5, 0.5))


def test_only_consecutive_errors_stop_run() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=4, retries=9, max_consecutive_errors=2))

    def end(status: Status, **kwargs: bool) -> None:
        ticket = scheduler.start()
        assert ticket is not None
        scheduler.finish(ticket, played(0, status=status, name="sum-3"), **kwargs)

    end(Status.ERROR_ENV)
    end(Status.COMPLETED)
    end(Status.ERROR_ENV)
    end(Status.ABORTED, excused=True)
    with pytest.raises(ConsecutiveErrorsError, match="2 episodes in a row.*'sum-3'.*truncated_time"):
        end(Status.TRUNCATED_TIME)


def test_excused_abort_costs_no_retry() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1, retries=0))
    for attempt in range(5):
        ticket = scheduler.start()
        assert ticket == Ticket(0, 0, attempt)
        scheduler.finish(ticket, played(0, status=Status.ABORTED), excused=True)
    assert scheduler.counters["retries_excused"] == 5
    assert scheduler.in_flight == [0]


def test_episode_ends_once() -> None:
    scheduler = GroupScheduler(RolloutSection(n=1, groups_per_batch=1))
    ticket = scheduler.start()
    assert ticket is not None
    scheduler.finish(ticket, played(0))
    with pytest.raises(ValueError, match="not running"):
        scheduler.finish(ticket, played(0))


@pytest.mark.parametrize(("window", "staleness", "most"), [(2, 0, 1), (6, 2, 5)])
def test_window_that_never_completes_batch_is_refused(window: int, staleness: int, most: int) -> None:
    RolloutSection(groups_per_batch=2, window=most, staleness=staleness)
    with pytest.raises(ValueError, match=f"window: is {window}; .* it is at most {most}"):
        RolloutSection(groups_per_batch=2, window=window, staleness=staleness)


def test_malformed_frontier_is_refused() -> None:
    good = GroupScheduler(RolloutSection(n=1, groups_per_batch=1)).frontier()
    with pytest.raises(ValueError, match="ascending numbers below next_group=2"):
        GroupScheduler(RolloutSection(n=1, groups_per_batch=1)).restore(good | {"next_group": 2, "in_flight": [2]})
    used = GroupScheduler(RolloutSection(n=1, groups_per_batch=1))
    used.start()
    with pytest.raises(ValueError, match="before the first episode"):
        used.restore(good)
