"""The collector's scheduler: which episode may start, which groups the trainer gets, and how old their tokens can be.

A pure state machine. The shell calls :meth:`GroupScheduler.start` until it answers ``None``,
:meth:`GroupScheduler.finish` when an episode has ended, :meth:`GroupScheduler.take` for a batch and
:meth:`GroupScheduler.update` when new weights are out.

Vocabulary. A *group* is ``rollout.n`` episodes (siblings) of one task, and their *forks*, which begin in a state of a
sibling that has ended (:meth:`GroupScheduler.finish`); it has a number, in the order of admission. A group is *in
flight* from its admission until it is taken or dropped. A *batch* is ``G = groups_per_batch`` groups. Its update is
*due* from the moment it is taken until the weights trained on it are out.

A group may begin in a state that an earlier episode reached (:mod:`trainers.rollout.curriculum`): what was sampled
before is context, not trained on, and has no version.

Invariants
    1. **Staleness.** The weights that a batch is trained on are at most ``staleness`` (η) versions newer than the
       oldest token in it. Checked on every batch.
    2. **Order.** Between two groups, the later one is delivered first only if their numbers differ by less than
       ``window`` (W); so a long episode is overtaken by at most W-1 groups, and W = 1 is strict order of admission.
       With a surplus (S > 0 groups, by ``oversampling_factor``) groups are delivered as they complete, and one is
       overtaken by at most (η+1)·G others.
    3. **Once.** Every group number is delivered once or dropped once with a counted reason, never both, never neither.
    4. **Progress.** When all episodes that may start have started and ended, and no update is due, there is a batch.
       With ``filter_variance_top_p`` it may have fewer groups, but never none: where no group of a batch has a
       difference in reward, :meth:`GroupScheduler.take` drops them all, and their replacements may start.

Why 1 holds. An update is published for each batch taken, one version each, so a batch with ``k`` batches before it that
are not taken yet will be trained on version ``version + due + k``. A group is admitted only while::

    in flight + (W - 1) < (staleness + 1 - due) * G                                                                (*)

The groups in flight are those that will be delivered before it, except that up to W-1 later ones may overtake it. So it
is in a batch with ``k <= (in flight + W - 1) // G <= staleness - due`` before it, and is trained on at most ``version
+ staleness``, where ``version`` is that of its admission; its tokens are sampled later, hence are no older. A group
dropped before it only moves it forward; a retried sibling samples later still, and so does a fork, which starts when
its sibling has ended; taking a batch lowers ``in flight`` by G and raises ``due`` by one, which leaves (*) as it was,
and an update lowers ``due``.

With a surplus, (*) admits S groups more, and the argument does not hold for them. So a group is *withdrawn* as soon as
it could not be in the next batch any more: whenever a batch is taken, those with an episode begun from weights more
than η versions older than the next one will be trained on are dropped, and what runs of them is to be cancelled
(:meth:`GroupScheduler.withdrawn`). The version that the next batch is trained on changes only when a batch is taken, so
what is left is young enough until then. While more than η updates are due nothing is admitted: it would be too old at
birth.

The plain rule "capacity (η+1)·batch, freed when the trainer takes a batch" is (*) without its two corrections, and
breaks the bound.

Why 4 holds. With no update due, (*) admits until ``in flight >= (staleness + 1) * G - (W - 1)``, which is at least G
because :class:`.RolloutSection` demands ``W - 1 <= staleness * G``; once all of them have ended, none is left to wait
for.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from math import inf
from typing import Any

from ..algorithms.estimators.base import Need
from ..config.rollout import RolloutSection
from ..config.sizes import episodes_per_group, groups_in_flight, surplus_groups
from ..trajectory import Status, Trajectory, solved, tied
from .variance_filter import most_varied

#: Ends of an attempt for which the episode itself is not the cause: the same reply is sampled again.
_NOT_ITS_OWN = frozenset({Status.ABORTED, Status.ERROR_ENGINE, Status.ERROR_REWARD})


class StalenessError(RuntimeError):
    """A batch has tokens older than the bound: the scheduler or the engine's version numbers are wrong."""


class CollectionError(RuntimeError):
    """Collecting cannot continue; the message says why and what to do."""


class ConsecutiveErrorsError(CollectionError):
    """Too many episodes in a row ended in a way that training cannot use."""


class FilterExhaustedError(CollectionError):
    """Too many groups in a row had no difference in reward."""


@dataclass(frozen=True, order=True)
class Ticket:
    """The right to play one episode: sibling ``sibling`` of group ``group``, for the ``attempt``-th time (from 0).

    ``draw`` counts the failures of its own among the attempts before, and decides the seed. An attempt that is repeated
    for another reason samples with the same seed, or replies would be selected by length. ``turn`` is -1, or it is the
    right to play fork ``sample`` of that sibling, which begins before its reply ``turn``.
    """

    group: int
    sibling: int
    attempt: int = 0
    draw: int = 0
    turn: int = -1
    sample: int = 0

    @property
    def fork(self) -> bool:
        return self.turn >= 0

    @property
    def place(self) -> tuple[int, int, int]:
        """Place in the group: sibling, turn and sample, whatever the attempt."""
        return self.sibling, self.turn, self.sample


@dataclass
class _Group:
    played: dict[int, Trajectory] = field(default_factory=dict)
    forks: dict[tuple[int, int, int], Trajectory] = field(default_factory=dict)
    forking: Counter[int] = field(default_factory=Counter)  # by sibling: forks neither played nor lost
    failures: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    lost: int = 0  # siblings whose retries are used up
    ready: bool = False
    born: int | None = None  # the version of the weights when its first episode began


class GroupScheduler:
    """The scheduler; the module's docstring has its invariants.

    Args:
        rollout: Sizes of groups and batches, and limits of what may be in flight; of its other keys nothing is read.
        needs: Needs of the estimator. ``greedy``: each group has one more episode, number ``rollout.n``, which the
            others are compared with and which is not trained on; a group whose greedy episode fails is dropped.
            ``terms``: a group has no difference in reward if every term has the same sum in all of its episodes.
        version: The version of the engine's weights.
    """

    def __init__(self, rollout: RolloutSection, needs: Collection[Need] = (), version: int = 0) -> None:
        self.rollout, self.version = rollout, version
        self.episodes_per_group, self._most = episodes_per_group(rollout, needs), groups_in_flight(rollout)
        self._greedy, self._by_term, self._surplus = "greedy" in needs, "terms" in needs, surplus_groups(rollout)
        #: Maximum episodes at a time, those of evaluation included; with ``auto`` the collector adjusts it.
        self.max_running = rollout.max_running if isinstance(rollout.max_running, int) else self.capacity
        self.evaluations = self.updates_due = self.batches = 0
        self.taken_groups: list[int] = []
        self.taken_greedy: list[Trajectory] = []
        self.taken_forks: list[list[Trajectory]] = []
        self.counters: Counter[str] = Counter()
        self._next = 0  # the next new group number
        self._again: deque[int] = deque()  # groups of an earlier run to admit first, ascending
        self._groups: dict[int, _Group] = {}  # in flight, in ascending order
        self._waiting: list[Ticket] = []  # a heap: the oldest group goes first
        self._running: set[Ticket] = set()
        self._withdrawn: list[Ticket] = []
        self._dropped: list[tuple[int, str, list[Trajectory]]] = []
        self._filtered_in_a_row = 0
        self._errors_in_a_row = 0

    # ------------------------------------------------------------------ what there is

    @property
    def capacity(self) -> int:
        """Episodes that may be in flight when no update is due."""
        return self._most * self.episodes_per_group

    def is_greedy(self, ticket: Ticket) -> bool:
        return ticket.sibling == self.rollout.n

    def forks_left(self, ticket: Ticket) -> bool:
        """Return whether a fork of this ticket's sibling is still to be played."""
        group = self._groups.get(ticket.group)
        return group is not None and group.forking[ticket.sibling] > 0

    @property
    def training_version(self) -> int:
        """The version of the weights that the next batch will be trained on, if each batch gives one update."""
        return self.version + self.updates_due

    @property
    def in_flight(self) -> list[int]:
        """The numbers of the groups in flight, ascending (those to admit again included)."""
        return [*self._groups, *self._again]

    def is_done(self, number: int) -> bool:
        """Return whether the group of this number was delivered or dropped."""
        return number < self._next and number not in self._groups and number not in self._again

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def queued(self) -> int:
        """Episodes of admitted groups that wait for ``max_running`` to let them start."""
        return len(self._waiting)

    @property
    def ready(self) -> int:
        """Groups that are complete and wait to be taken."""
        return sum(group.ready for group in self._groups.values())

    @property
    def collected(self) -> int:
        """Episodes that have ended of the groups that are first in line for the next batch."""
        return sum(len(group.played) for group in islice(self._groups.values(), self.rollout.groups_per_batch))

    # ------------------------------------------------------------------ episodes

    def start(self) -> Ticket | None:
        """Return the next episode to start now, or ``None`` when none may start before something else happens."""
        if len(self._running) + self.evaluations >= self.max_running:
            return None
        if len(self._running) >= self.capacity:  # forks are more than the siblings that they take the places of
            return None
        if not self._waiting and not self._admit():
            return None
        ticket = heapq.heappop(self._waiting)
        self._running.add(ticket)
        if (group := self._groups[ticket.group]).born is None:
            group.born = self.version
        return ticket

    def finish(
        self,
        ticket: Ticket,
        trajectory: Trajectory,
        *,
        excused: bool = False,
        own: bool = False,
        forks: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Record that the episode of ``ticket`` has ended as ``trajectory``: keep it, play it again, or give it up.

        Each ticket of :meth:`start` ends once, and one that was withdrawn not at all. An episode is usable when its
        status is trainable and it has a token to train on. If it is not: ``excused``, a weight update aborted it, which
        does not count against its retries; ``own``, it is itself the cause whatever its status, and is not sampled
        again as it was. If it is: ``forks`` are turn and number of each fork that is to be played; one that fails for
        good is left out and counted (``forks_lost``).

        Raises ConsecutiveErrorsError: this was one unusable episode too many in a row; FilterExhaustedError: it
        completed one group without difference in reward too many.
        """
        if ticket not in self._running:
            raise ValueError(f"{ticket} is not running: it was never started, has ended before, or was withdrawn")
        self._running.remove(ticket)
        rollout, group = self.rollout, self._groups[ticket.group]
        usable = trajectory.status.trainable and trajectory.oldest_version is not None
        if usable:
            if ticket.fork:
                group.forks[ticket.place] = trajectory
                group.forking[ticket.sibling] -= 1
            else:
                group.played[ticket.sibling] = trajectory
                for turn, sample in forks:
                    heapq.heappush(self._waiting, Ticket(ticket.group, ticket.sibling, turn=turn, sample=sample))
                    group.forking[ticket.sibling] += 1
            self._errors_in_a_row = 0
        else:
            group.failures[ticket.place] += not excused
            self._errors_in_a_row += not excused
            if group.failures[ticket.place] > rollout.retries:
                group.forking[ticket.sibling] -= ticket.fork
                group.lost += not ticket.fork
                self.counters["forks_lost" if ticket.fork else "siblings_lost"] += 1
            else:
                draw = ticket.draw + (own or trajectory.status not in _NOT_ITS_OWN)
                heapq.heappush(self._waiting, replace(ticket, attempt=ticket.attempt + 1, draw=draw))
                self.counters["retries_excused" if excused else "retries"] += 1
        whole = len(group.played) + group.lost == self.episodes_per_group and not group.forking.total()
        if whole:
            self._settle(ticket.group, group)
        if not usable and not excused and self._errors_in_a_row >= rollout.max_consecutive_errors:
            raise ConsecutiveErrorsError(
                f"{self._errors_in_a_row} episodes in a row could not be used for training; the last one, of task "
                f"{trajectory.task_key or '(unknown)'!r}, ended as {trajectory.status.value}: "
                f"{trajectory.error or trajectory.stop or 'no reason given'}"
            )

    # ------------------------------------------------------------------ the trainer's side

    def take(self) -> list[list[Trajectory]] | None:
        """Return the next batch: ``groups_per_batch`` groups by number, siblings in order; ``None`` if incomplete.

        With ``filter_variance_top_p`` below 1 it has those of them that the filter keeps, at least one. Where it would
        keep none, they are dropped, and others may start. FilterExhaustedError: that happened too often in a row.
        """
        while (numbers := self._complete()) is not None:
            if self.rollout.filter_variance_top_p < 1:
                numbers = self._most_varied(numbers)
            if numbers:
                return self._deliver(numbers)
        return None

    def _complete(self) -> list[int] | None:
        """Return the numbers of the ``groups_per_batch`` complete groups that are next; ``None`` if there are fewer."""
        rollout = self.rollout
        unready = next((number for number, group in self._groups.items() if not group.ready), None)
        limit = inf if self._surplus or unready is None else unready + rollout.window
        within = takewhile(lambda item: item[0] < limit, self._groups.items())
        numbers = list(islice((number for number, group in within if group.ready), rollout.groups_per_batch))
        return numbers if len(numbers) == rollout.groups_per_batch else None

    def _most_varied(self, numbers: list[int]) -> list[int]:
        """Return the groups that :func:`.most_varied` keeps; drop the others."""
        siblings = [list(self._groups[number].played.values()) for number in numbers]
        kept = [numbers[place] for place in most_varied(siblings, self.rollout.filter_variance_top_p)]
        if kept:
            self._filtered_in_a_row = 0
        else:
            self._count_filtered(siblings[-1], len(numbers))
        for number, played in zip(numbers, siblings, strict=True):
            if number not in kept:
                self._drop(number, "zero_variance" if tied(played) else "low_variance")
        return kept

    def _deliver(self, numbers: list[int]) -> list[list[Trajectory]]:
        groups = [self._groups.pop(number) for number in numbers]
        batch = [[group.played[s] for s in sorted(group.played)] for group in groups]
        self.taken_forks = [[group.forks[place] for place in sorted(group.forks)] for group in groups]
        for number, siblings, group_forks in zip(numbers, batch, self.taken_forks, strict=True):
            for trajectory in (*siblings, *group_forks):
                self._check_age(number, trajectory)
        # The greedy one has the greatest number, and a group without it was dropped.
        self.taken_groups, self.taken_greedy = numbers, [group.pop() for group in batch] if self._greedy else []
        self.counters["groups_delivered"] += len(numbers)
        if forks := sum(map(len, self.taken_forks)):
            self.counters["forks_delivered"] += forks
        self.batches += 1
        self.updates_due += 1
        if self._surplus:
            self._withdraw()
        return batch

    def withdrawn(self) -> list[Ticket]:
        """Return the running episodes of groups withdrawn since the last call: cancel them. They do not end."""
        tickets, self._withdrawn = self._withdrawn, []
        return tickets

    def dropped(self) -> list[tuple[int, str, list[Trajectory]]]:
        """Return the groups dropped since the last call: number, reason, and the siblings played, in order."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def check_update(self, version: int) -> None:
        """Raise ``ValueError`` if :meth:`update` with this version would break the staleness bound."""
        step = version - self.version
        if step < 1:
            raise ValueError(f"the version must grow: it is {self.version}, and the update says {version}")
        if step > self.updates_due and self._groups:
            raise ValueError(
                f"an update from version {self.version} to {version} with {self.updates_due} batch(es) taken since: "
                f"what is in flight would get older than staleness={self.rollout.staleness} allows. Publish one "
                "version a batch"
            )

    def update(self, version: int) -> None:
        """Record the update of the oldest batch that awaits one; ``ValueError`` where ``version`` does not fit."""
        self.check_update(version)
        self.updates_due = max(0, self.updates_due - (version - self.version))
        self.version = version

    # ------------------------------------------------------------------ resuming

    def frontier(self) -> dict[str, Any]:
        """Return the run's state, for JSON: all groups below ``next_group`` are done, except those ``in_flight``."""
        return {
            "next_group": self._next,
            "in_flight": self.in_flight,
            "batches": self.batches,
            "version": self.version,
            "counters": dict(self.counters),
        }

    def restore(self, frontier: Mapping[str, Any]) -> None:
        """Resume from a :meth:`frontier`: groups that were in flight are played again, first, then new ones.

        Tokens will be sampled from the current weights. ``ValueError``: in use, or the frontier is malformed.
        """
        if self._next or self._groups or self._again:
            raise ValueError("restore a frontier before the first episode starts")
        again = [int(number) for number in frontier["in_flight"]]
        following = int(frontier["next_group"])
        if again != sorted(set(again)) or (again and not 0 <= again[0] <= again[-1] < following):
            raise ValueError(f"frontier: in_flight must be ascending numbers below next_group={following}, not {again}")
        self._next, self._again = following, deque(again)
        self.batches = int(frontier["batches"])
        self.counters = Counter({str(name): int(count) for name, count in frontier["counters"].items()})

    # ------------------------------------------------------------------ inside

    def _withdraw(self) -> None:
        """Drop the groups that have become too old for the next batch, and so for any."""
        oldest = self.training_version - self.rollout.staleness
        late = {number for number, group in self._groups.items() if group.born is not None and group.born < oldest}
        for number in late:
            self._drop(number, "surplus")
        tickets = sorted(ticket for ticket in self._running if ticket.group in late)
        self._running.difference_update(tickets)
        self._withdrawn += tickets
        self.counters["episodes_withdrawn"] += len(tickets)
        self._waiting = [ticket for ticket in self._waiting if ticket.group not in late]
        heapq.heapify(self._waiting)

    def _admit(self) -> bool:
        room = self._most - self.updates_due * self.rollout.groups_per_batch  # (*)
        if self.updates_due > self.rollout.staleness or len(self._groups) >= room:
            return False
        if self._again:
            number = self._again.popleft()
        else:
            number, self._next = self._next, self._next + 1
            self.counters["groups_admitted"] += 1
        self._groups[number] = _Group()
        # It was empty, and what is sorted is a heap.
        self._waiting = [Ticket(number, sibling) for sibling in range(self.episodes_per_group)]
        return True

    def _settle(self, number: int, group: _Group) -> None:
        """Mark the group, whose siblings have all ended, as ready, or drop it."""
        rollout = self.rollout
        if self._greedy and rollout.n not in group.played:
            self._drop(number, "no_greedy")
        elif len(group.played) - self._greedy < min(2, rollout.n):
            self._drop(number, "too_few_siblings")
        elif rollout.filter_zero_variance and tied(group.played.values(), by_term=self._by_term):
            self._drop(number, "zero_variance")
            self._count_filtered(list(group.played.values()))
        else:
            if rollout.filter_variance_top_p == 1:
                self._filtered_in_a_row = 0
            group.ready = True

    def _count_filtered(self, last: list[Trajectory], groups: int = 1) -> None:
        """Count groups without a difference, of which the ``last`` is shown where they were too many in a row."""
        self._filtered_in_a_row += groups
        if self._filtered_in_a_row > self.rollout.max_consecutive_filtered:
            raise FilterExhaustedError(
                f"{self._filtered_in_a_row} groups in a row had no difference in reward (in the last one, task "
                f"{last[0].task_key!r}, all {len(last)} episodes got {last[0].total_reward:g}): "
                "the tasks are all too hard or all too easy for this policy, or the reward is constant. Change the "
                "difficulty, raise rollout.n or the temperature, or turn filter_zero_variance or "
                "filter_variance_top_p off"
            )

    def _drop(self, number: int, reason: str) -> None:
        played = self._groups.pop(number).played
        self._dropped.append((number, reason, [played[s] for s in sorted(played) if s < self.rollout.n]))
        self.counters[f"groups_dropped_{reason}"] += 1
        if reason == "zero_variance" and all(map(solved, played.values())):
            self.counters["groups_zero_variance_solved"] += 1

    def _check_age(self, number: int, trajectory: Trajectory) -> None:
        oldest, staleness = trajectory.oldest_version, self.rollout.staleness
        assert oldest is not None  # finish() keeps no trajectory without a sampled token
        if self.training_version - oldest > staleness:
            raise StalenessError(
                f"group {number}, episode {trajectory.episode_id!r}: its oldest token is from version {oldest}, and "
                f"version {self.training_version} would be trained on it, but staleness={staleness} was asked for"
            )
