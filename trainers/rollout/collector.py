"""The collector: episodes run side by side, and the trainer gets batches of complete groups.

An asyncio shell around the scheduler (:mod:`trainers.rollout.group_scheduler`): one task an episode
(:mod:`trainers.rollout.play`), started as soon as the scheduler allows it, and no barrier between episodes, turns or
batches anywhere. The trainer's loop::

    async with Backend(EnvSpec("textenv/gsm8k-interact")) as backend:
        rollout = RolloutSection(n=8, groups_per_batch=16)
        async with Collector(engine, renderer, backend, tasks=1000, rollout=rollout) as collector:
            for step in range(steps):
                batch = await collector.next_batch()
                ...                                               # train on batch.groups
                await collector.update_weights(weights, version=batch.version + 1)

Every batch needs its update, even one that changes nothing: that is what lets newer episodes start. With
``staleness=0`` this loop is the synchronous one: no episode of a batch starts before the update of the batch before.
With more, episodes of later batches run while the trainer trains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from textenvs.privileged import Privilege

from ..algorithms.estimators import Estimator, TurnGRPO
from ..config.learning import ForkSection
from ..config.rollout import RolloutSection
from ..engines.base import Engine, EngineError, PartialUpdateError, Sampling, UpdateMode
from ..trajectory import Status, Trajectory
from .batch import Batch, BatchEpisode, Role
from .concurrency import Concurrency
from .curriculum import Choice, Curriculum, TaskOrder
from .environments import Backend
from .eval_gate import EvalGate
from .forks import ForkPlan, ForkPoint
from .group_scheduler import CollectionError, GroupScheduler, Ticket
from .length_bias import LengthBias
from .loop_lag import LoopLag
from .play import Episode, Player, sampling_of
from .renderer import Renderer
from .rewards import Score
from .seeds import derive_seed, environment_seed
from .stats import Load, Stats, Timeline, ages, loop_time
from .trace import TraceFile
from .weight_lock import WeightLock

log = logging.getLogger("trainers")

_STARTS_AT_ONCE = 64  # episodes that start before the event loop turns to something else
_LOOK_EVERY = 1.0  # seconds between two looks at the engine's load


class Collector(contextlib.AbstractAsyncContextManager["Collector"]):
    """Collects episodes for training, and plays episodes of evaluation.

    The engine and the backend stay the caller's: closing the collector closes neither.

    Args:
        engine: The engine that samples replies. Its weights are updated through :meth:`update_weights` alone.
        renderer: The renderer of the engine's model.
        backend: The environments; of a mixture, by the name of the component.
        tasks: How many tasks there are (played in a new order every epoch), ``None`` for an endless set, a function
            from group number to task index, or a curriculum, with a backend for each of its components.
        rollout: Sizes of groups and batches, limits of an episode and of what may be in flight, and how to sample.
            ``step_timeout_s`` is not read (the backend has its own), nor ``update_mode`` (:meth:`update_weights`).
        algorithm: The estimator, which decides what groups must have: a greedy episode, forks.
        fork: Where and how often episodes are forked, for an estimator that needs forks. They are played when their
            sibling has ended well, sampled from the seeds of group, sibling, turn and number.
        rewards: Rewards that come later, by name; see :mod:`trainers.rollout.rewards`.
        reward_timeout: Seconds from a turn until such a reward must be there; ``None`` for no limit.
        credit: From an episode to its :attr:`.BatchEpisode.credited`, for the estimator alone; called in a thread. One
            that it raises for ends as ``Status.ERROR_REWARD``.
        group_credit: From the credited episodes of a batch's groups, without forks and greedy ones, to what the
            estimator is to see instead, in the same order.
        engine_slots: Requests that the engine computes at a time, for :meth:`stats`; ``None`` takes ``max_running``.
        privileged: What of the environment a teacher sees, in episodes for training; see
            :class:`~trainers.rollout.play.Player`.
        lag_interval: Seconds between probes of the event loop's lag; ``None`` does not measure it.
        trace: Where to draw episodes and weight updates; stays the caller's.
        seed: The run's seed: tasks, environments and sampling follow from it.
        on_trajectory: Called with every episode that ended, the failed ones included. What it raises stops the run.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        backend: Backend | Mapping[str, Backend],
        *,
        tasks: int | None | Callable[[int], int] | Curriculum,
        rollout: RolloutSection,
        algorithm: Estimator = TurnGRPO(),  # noqa: B008 (it is frozen)
        fork: ForkSection = ForkSection(),  # noqa: B008
        rewards: Mapping[str, Score] | None = None,
        reward_timeout: float | None = 600.0,
        credit: Callable[[Trajectory], Trajectory] | None = None,
        group_credit: Callable[[Sequence[Trajectory]], list[Trajectory]] | None = None,
        engine_slots: int | None = None,
        privileged: Privilege | None = None,
        lag_interval: float | None = None,
        trace: TraceFile | None = None,
        seed: int = 0,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> None:
        self._engine, self._sampling, self._seed = engine, sampling_of(rollout), seed
        self._backends = dict(backend) if isinstance(backend, Mapping) else {"": backend}
        self._on_trajectory, self._credit, self._trace = on_trajectory, credit, trace
        self._group_credit = group_credit
        self._player = Player(engine, renderer, rollout, rewards, reward_timeout, privileged)
        self._scheduler = GroupScheduler(rollout, algorithm.needs, engine.version)
        self._concurrency = Concurrency(self._scheduler.capacity) if rollout.max_running == "auto" else None
        if self._concurrency is not None:
            self._scheduler.max_running = self._concurrency.limit
        self._eval_gate, self._weight_lock = EvalGate(self._scheduler, self._pump), WeightLock()
        self._curriculum = tasks if isinstance(tasks, Curriculum) else None
        if isinstance(tasks, Curriculum):
            self._choose, what = tasks.choose, tasks.identity
            components = list(tasks.components)
        else:
            order = tasks if callable(tasks) else TaskOrder(tasks, seed=seed)
            self._choose, components = (lambda group: Choice("", order(group))), [""]
            what = getattr(tasks, "identity", "custom") if callable(tasks) else tasks
        if sorted(self._backends) != sorted(components):
            raise ValueError(f"there are backends for {sorted(self._backends)}, and components {sorted(components)}")
        self._identity = {"seed": seed, "tasks": what}
        self._load = Load(engine_slots or self._scheduler.max_running)
        self._lag = None if lag_interval is None else LoopLag(lag_interval)
        self._stats, self._length_bias = Stats(), LengthBias()
        # By group, until it is delivered or dropped: credited episodes and names of roles by episode, and partners.
        self._credited: defaultdict[int, dict[str, Trajectory]] = defaultdict(dict)
        self._agents: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self._partners: defaultdict[int, list[Trajectory]] = defaultdict(list)
        plan = ForkPlan(fork, rollout.n * rollout.groups_per_batch, seed, getattr(algorithm, "gamma", 1.0))
        self._forks = plan if "forks" in algorithm.needs else None
        self._points: dict[tuple[int, int], list[ForkPoint]] = {}  # by group and sibling, while forks are to be played
        self._episodes: dict[asyncio.Task[None], Ticket] = {}
        self._dismissed: set[asyncio.Task[None]] = set()
        self._steering: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._evaluations = 0
        self._delivered_at: float | None = None  # when collecting began, or the last batch went out

    # ------------------------------------------------------------------ the trainer's side

    async def next_batch(self) -> Batch:
        """Return the next batch; wait until it is complete. The first call starts collecting.

        May be called ahead of the update that the batch before requires, while the trainer trains. CollectionError: too
        many unusable episodes or filtered groups in a row, or the collector is closed. StalenessError: the bound does
        not hold. EngineDeadError.
        """
        began = loop_time()
        if self._delivered_at is None:  # what was measured before was evaluation alone
            self._delivered_at = began
            self._load.take()
        if self._lag is not None:
            self._lag.start()
        self._begin_steering()
        self._pump()
        await self._forget_points([key for key in self._points if self._scheduler.is_done(key[0])])  # withdrawn
        while True:
            self._check()
            self._changed.clear()
            version = self._scheduler.training_version
            if (groups := self._scheduler.take()) is not None:
                break
            if self._note_dropped():  # those without a difference, where no group of a batch had one
                self._pump()
            await self._changed.wait()
        withdrawn = set(self._scheduler.withdrawn())
        for task, ticket in self._episodes.items():
            if ticket in withdrawn:
                self._dismissed.add(task)
                task.cancel()
        episodes = self._compared(list(self._batch_episodes(groups)))
        if self._forks is not None:
            self._forks.observe(groups, [episode.trajectory for episode in episodes if episode.role == "fork"])
        self._note_dropped()  # those that were withdrawn or filtered now
        if self._curriculum is not None:
            self._curriculum.observe(dict(zip(self._scheduler.taken_groups, groups, strict=True)))
        stats, problems = self._measured(groups, version, began), self._stats.problems
        self._stats = Stats()
        return Batch(self._scheduler.batches - 1, version, episodes, stats, problems)

    def _batch_episodes(self, groups: list[list[Trajectory]]) -> Iterator[BatchEpisode]:
        """Yield the episodes of the batch just taken; forget what was kept of its groups, and of dropped ones."""
        scheduler, numbers = self._scheduler, self._scheduler.taken_groups
        choices = [self._choose(number) for number in numbers]
        of_roles: dict[Role, list[list[Trajectory]]] = {
            "root": groups,
            "fork": scheduler.taken_forks,
            "partner": [self._partners[number] for number in numbers],
            "greedy": [[trajectory] for trajectory in scheduler.taken_greedy] or [[] for _ in numbers],
        }
        for role, of_groups in of_roles.items():
            for number, choice, trajectories in zip(numbers, choices, of_groups, strict=True):
                for trajectory in trajectories:
                    credited = self._credited[number].get(trajectory.episode_id, trajectory)
                    agent = self._agents[number].get(trajectory.episode_id, "")
                    yield BatchEpisode(trajectory, credited, role, number, choice, agent)
        for records in (self._partners, self._agents, self._credited):
            for number in [number for number in records if scheduler.is_done(number)]:
                del records[number]

    def _compared(self, episodes: list[BatchEpisode]) -> list[BatchEpisode]:
        """Credit the members of groups in comparison with each other."""
        if self._group_credit is None:
            return episodes
        members = [episode for episode in episodes if episode.role in ("root", "partner")]
        credited = iter(self._group_credit([member.credited for member in members]))
        return [replace(one, credited=next(credited)) if one.role in ("root", "partner") else one for one in episodes]

    @property
    def collected(self) -> int:
        """Episodes of the next batch that have ended, of about ``groups_per_batch * n``."""
        return self._scheduler.collected

    def _note_dropped(self) -> bool:
        """Tell the parts that count groups which were dropped since; return whether there were any."""
        dropped = list(self._scheduler.dropped())
        for number, reason, siblings in dropped:
            if reason in ("zero_variance", "low_variance"):
                self._length_bias.forget(number)
            if self._curriculum is not None:
                self._curriculum.drop(number, siblings, unplayed=reason == "surplus")
        return bool(dropped)

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """Give the engine new weights: the update for the oldest batch taken. Waits for evaluations that run.

        ``version`` is one more than before; replies that ``mode`` aborts continue (``partial``), or their episodes are
        played again with the same seeds, which does not count against their retries. Raises ``ValueError``: the version
        does not fit (see :meth:`GroupScheduler.update`), or the engine refuses the weights; nothing has changed then,
        and the update may be tried again. EngineError: the engine failed half-way; collecting stops. (One that lost a
        part is a warning.)
        """
        self._check()
        self._scheduler.check_update(version)
        async with self._weight_lock.exclusive():
            self._check()
            self._scheduler.check_update(version)  # another update may have come first
            await self._update_engine(weights, version, mode)
            self._scheduler.update(version)
        if self._concurrency is not None:
            self._concurrency.updated()
        if self._trace is not None:
            self._trace.instant(f"weights {version}", {"version": version, "mode": mode})
        self._pump()

    async def _update_engine(self, weights: Any, version: int, mode: UpdateMode) -> None:
        cutting = self._player.interrupting(version) if mode == "abort" else contextlib.nullcontext()
        try:
            with cutting:
                await self._engine.update_weights(weights, version, mode)
        except PartialUpdateError as error:  # the remaining parts of the engine have them
            log.warning("%s", error)
        except Exception as error:
            if self._engine.version != self._scheduler.version:
                self._failure = EngineError(
                    f"an update to version {version} failed half-way, with the engine at version "
                    f"{self._engine.version}: its weights are unknown; start again from a checkpoint"
                )
                raise self._failure from error
            raise

    async def evaluate(
        self,
        tasks: Iterable[int | Mapping[str, Any]],
        *,
        samples: int = 1,
        sampling: Sampling | None = None,
        seed: int = 0,
        backend: Backend | None = None,
        on_end: Callable[[], object] = lambda: None,
    ) -> list[Trajectory]:
        """Play tasks beside what is being collected, all with the weights that are out when it begins.

        ``tasks`` are task indices, or the environment's reset options. Returns ``samples`` trajectories a task, which
        differ in sampling, in the order of ``tasks``; failures are among them, by status. ``seed`` decides all
        randomness. ``sampling`` and ``backend`` are those of training when left out (of a mixture: of its first
        component).

        An update that comes meanwhile waits until the last episode has ended. The episodes are in no group and no
        batch. They count towards the collector's ``max_running``, and start before those of training; one that fails
        is not played again. ``on_end`` is called as each one ends.
        """
        self._evaluations += 1
        name, environments = f"eval{self._evaluations - 1}", backend or next(iter(self._backends.values()))

        async def play(task: int | Mapping[str, Any], place: int, sample: int) -> Trajectory:
            key = task if isinstance(task, int) else f"at {place}"
            episode = Episode(
                episode_id=f"{name}-t{place}-s{sample}",
                group_id=f"{name}-t{place}",
                options={"task_index": task} if isinstance(task, int) else task,
                env_seed=derive_seed(seed, "evaluate environment", key, bits=32),
                sampling=sampling or self._sampling,
                sampling_seed=derive_seed(seed, "evaluate sampling", key, sample),
                training=False,
            )
            async with self._eval_gate.place():
                played = await self._player.play(environments, episode, self._timeline("evaluation", episode))
            on_end()
            return played

        self._begin_steering()
        async with self._weight_lock.shared():
            running = [
                asyncio.ensure_future(play(task, place, sample))
                for place, task in enumerate(tasks)
                for sample in range(samples)
            ]
            try:
                return await asyncio.gather(*running)
            finally:
                await _cancel(running, timeout=5.0)

    def frontier(self) -> dict[str, Any]:
        """Return the state of collecting (JSON): batches taken count as done; groups in flight will be played again."""
        frontier = {"identity": dict(self._identity), "slots": self._scheduler.frontier()}
        if self._curriculum is not None:
            frontier["curriculum"] = self._curriculum.state(self._scheduler.in_flight)
        return frontier if self._forks is None else frontier | {"forks": self._forks.state()}

    def restore(self, frontier: Mapping[str, Any]) -> None:
        """Resume from a :meth:`frontier`; ``ValueError`` where it is of another run, or collecting has begun."""
        if dict(frontier["identity"]) != self._identity:
            raise ValueError(
                f"this frontier is of a run with {frontier['identity']}, but this one has {self._identity}: "
                "the groups' numbers would mean other tasks"
            )
        self._scheduler.restore(frontier["slots"])
        if self._curriculum is not None:
            self._curriculum.restore(frontier["curriculum"], self._scheduler.in_flight)
        if self._forks is not None:
            self._forks.restore(frontier.get("forks", ()))

    def stats(self) -> dict[str, float]:
        """Return the statistics of collecting. docs/collector.md defines every name exactly.

        Now: episodes ``running`` (of training) and ``evaluating``, groups ``ready`` and ``in_flight``; what waits, as
        ``queue_*``; totals of the scheduler (``groups_*``, ``retries*``, ``siblings_lost``) and the environments'
        (``env_*``). A batch's stats have more, over the time since the batch before.
        """
        slots, phases = self._scheduler, self._load.phases
        now = {"running": slots.running, "evaluating": self._eval_gate.inside}
        now |= {"ready": slots.ready, "in_flight": len(slots.in_flight)}
        now |= {"queue_episodes": slots.queued, "queue_environments": phases["queue"]}
        now |= {"queue_rewards": phases["rewards"]}
        if self._concurrency is not None:
            now |= {"max_running": self._concurrency.limit, "max_running_cuts": self._concurrency.cuts}
        stats = {name: float(value) for name, value in (now | slots.counters).items()}
        if (waiting := self._engine.stats().get("waiting")) is not None:
            stats["queue_engine"] = float(waiting)
        if self._curriculum is not None:
            stats |= {f"curriculum/{name}": value for name, value in self._curriculum.stats().items()}
        for backend in self._backends.values():
            for name, value in backend.stats().items():
                stats[f"env_{name}"] = stats.get(f"env_{name}", 0.0) + value
        return stats

    def generating_s(self) -> float:
        """Return the seconds in which at least one episode waited for a reply of the engine, evaluation included."""
        return self._load.generating_s()

    async def close(self, timeout: float = 5.0) -> None:
        """Cancel what runs and wait for it, ``timeout`` seconds at most; safe to call twice."""
        self._closed = True
        self._changed.set()
        if self._steering is not None:
            self._steering.cancel()
        if self._lag is not None:
            self._lag.stop()
        await _cancel(self._episodes, timeout)

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # ------------------------------------------------------------------ episodes

    def _pump(self) -> None:
        """Start every episode that may start, a few at a time: each opening blocks the event loop for a moment."""
        self._eval_gate.admit()
        if self._delivered_at is None:
            return
        for _ in range(_STARTS_AT_ONCE):
            if self._failure is not None or self._closed or (ticket := self._scheduler.start()) is None:
                return
            self._choose(ticket.group)  # now: the order of admission is that of the curriculum's choices
            task = asyncio.ensure_future(self._play(ticket))
            self._episodes[task] = ticket
            task.add_done_callback(self._ended)
        asyncio.get_running_loop().call_soon(self._pump)

    def _begin_steering(self) -> None:
        if self._concurrency is not None and self._steering is None:
            self._steering = asyncio.ensure_future(self._steer(self._concurrency))

    async def _steer(self, concurrency: Concurrency) -> None:
        """Let the limit follow the engine's load. A failure of this is a failure of the run."""
        try:
            while self._failure is None and not self._closed:
                await asyncio.sleep(_LOOK_EVERY)
                running = self._scheduler.running + self._eval_gate.inside
                self._scheduler.max_running = concurrency.observe(self._engine.stats(), running)
                self._pump()
        except Exception as error:
            self._failure = self._failure or error
            self._changed.set()

    async def _play(self, ticket: Ticket) -> None:
        moment, episode = self._player.moment(), self._episode(ticket)
        timeline, points, roles = self._timeline("episodes", episode), list[ForkPoint](), dict[str, Trajectory]()
        try:
            backend = self._backends[self._choose(ticket.group).component]
            trajectory = await self._player.play(backend, episode, timeline, points, roles)
        except asyncio.CancelledError:
            self._measure_length(ticket, None, timeline)
            raise
        if self._credit is not None and trajectory.status.trainable:
            trajectory = await self._with_credit(self._credit, ticket, trajectory, timeline)
        self._agents[ticket.group].update({one.episode_id: agent for agent, one in roles.items()})
        for partner in list(roles.values())[1:]:
            if self._credit is not None and partner.status.trainable:
                partner = await self._with_credit(self._credit, ticket, partner, timeline)  # noqa: PLW2901
            if partner.status.trainable:
                self._partners[ticket.group].append(partner)
        self._stats.end(trajectory, timeline)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)
        excused = trajectory.status is Status.ABORTED and self._player.interrupted_since(moment)
        self._measure_length(ticket, trajectory, timeline)
        own = timeline.cause == "credit"  # what cannot be credited, by a function of the trajectory alone, never can
        if points:
            self._points[ticket.group, ticket.sibling] = points
        forks = [(point.turn, sample) for point in points for sample in range(point.samples)]
        self._scheduler.finish(ticket, trajectory, excused=excused, own=own, forks=forks)
        self._note_dropped()
        if not self._scheduler.forks_left(ticket):
            await self._forget_points([(ticket.group, ticket.sibling)])

    async def _forget_points(self, keys: Iterable[tuple[int, int]]) -> None:
        """Release these siblings' fork points: no fork of them is to be played any more."""
        for key in keys:
            if points := self._points.pop(key, None):
                await self._player.release(points[0].episode_id)

    def _measure_length(self, ticket: Ticket, trajectory: Trajectory | None, timeline: Timeline) -> None:
        if not ticket.fork and not self._scheduler.is_greedy(ticket):  # that one is not trained on
            self._length_bias.attempt(ticket.group, ticket.sibling, trajectory, timeline)

    async def _with_credit(
        self, credit: Callable[[Trajectory], Trajectory], ticket: Ticket, trajectory: Trajectory, timeline: Timeline
    ) -> Trajectory:
        """Store the episode's credited copy and return the episode; failed, where its rewards cannot be moved."""
        try:
            credited = await asyncio.to_thread(credit, trajectory)
        except Exception as error:  # a function of the user's: it costs this episode, as any other reward would
            timeline.cause = "credit"
            return replace(trajectory, status=Status.ERROR_REWARD, error=f"{type(error).__name__}: {error}")
        self._credited[ticket.group][trajectory.episode_id] = credited
        return trajectory

    def _episode(self, ticket: Ticket) -> Episode:
        group, sibling, greedy = ticket.group, ticket.sibling, self._scheduler.is_greedy(ticket)
        name, begin, numbers = "greedy" if greedy else f"s{sibling}", None, [group, sibling, ticket.draw]
        if ticket.fork:
            begin = next(point for point in self._points[group, sibling] if point.turn == ticket.turn)
            name += f"-t{ticket.turn}-f{ticket.sample}"
            numbers += [ticket.turn, ticket.sample]
        plan = self._forks if not ticket.fork and not greedy else None
        choice = self._choose(group)
        start = choice.start
        return Episode(
            episode_id=f"g{group}-{name}-a{ticket.attempt}",
            group_id=f"g{group}",
            options={"task_index": choice.task},
            env_seed=environment_seed(self._seed, group) if start is None else start.env_seed,
            sampling=replace(self._sampling, temperature=0.0) if greedy else self._sampling,
            sampling_seed=derive_seed(self._seed, "sampling", *numbers),
            begin=begin,
            start=start,
            forks=None if plan is None else partial(plan.samples, group, sibling),
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._episodes[task]
        dismissed = task in self._dismissed
        self._dismissed.discard(task)
        if task.cancelled():
            problem = None if dismissed else CollectionError("an episode was cancelled, and not by the collector")
        else:
            problem = task.exception()  # type: ignore[assignment]
        if problem is not None and self._failure is None and not self._closed:
            self._failure = problem
            for other in self._episodes:
                other.cancel()
        self._pump()
        self._changed.set()

    def _timeline(self, track: str, episode: Episode) -> Timeline:
        return Timeline(self._load, self._trace, track, episode.episode_id)

    def _measured(self, groups: list[list[Trajectory]], version: int, began: float) -> dict[str, float]:
        """Return the stats of the batch to deliver, which :meth:`next_batch` has waited for since ``began``."""
        assert self._delivered_at is not None  # collecting has begun
        now = loop_time()
        passed, self._delivered_at = now - self._delivered_at, now
        stats = self.stats() | self._load.take() | ages([*groups, *self._scheduler.taken_forks], version)
        stats["wait_s"] = now - began
        if passed > 0:  # the wait may have begun before the batch before went out
            stats["bubble_trainer"] = min(1.0, stats["wait_s"] / passed)
        if self._lag is not None:
            stats |= self._lag.take()
        bias = self._length_bias.deliver(
            dict(zip(self._scheduler.taken_groups, groups, strict=True)), self._scheduler.is_done
        )
        if bias is not None:
            stats["length_bias"] = bias
        stats |= self._stats.stats()
        if self._trace is not None:
            self._trace.counter("collector", {name: stats[name] for name in ("running", "ready", "in_flight")})
        return stats

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise CollectionError("this collector is closed")


async def _cancel(tasks: Iterable[asyncio.Task[Any]], timeout: float) -> None:
    """Cancel tasks and wait for them, for ``timeout`` seconds at most."""
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=timeout)
