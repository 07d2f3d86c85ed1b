"""The collector: episodes run side by side, and the trainer gets batches of complete groups.

An asyncio shell around the books (:mod:`trainers.rollout.slots`): one task an episode (:mod:`trainers.rollout.play`),
started as soon as the books allow it, and no barrier between episodes, turns or batches anywhere. The trainer's loop::

    async with Backend(EnvSpec("textenv/gsm8k-interact")) as backend:
        async with Collector(engine, renderer, backend, tasks=1000, group_size=8, groups_per_batch=16) as collector:
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
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from ..engines.base import Engine, PartialUpdateError, Sampling, UpdateMode
from ..trajectory import Status, Trajectory
from .concurrency import Concurrency
from .environments import Backend
from .play import Episode, Player
from .renderer import Renderer
from .slots import CollectionError, Slots, Ticket
from .tasks import TaskOrder, derive_seed

log = logging.getLogger("trainers")

_LOOK_EVERY = 1.0  # seconds between two looks at the engine's load


@dataclass(frozen=True)
class Batch:
    """What the trainer gets.

    Args:
        number: Of this batch in the run, from 0.
        version: The weights it is to be trained on: no token is more than ``staleness`` versions older.
        groups: Groups in order of admission, each of them siblings of one task (fewer where some failed for good).
        stats: Numbers worth reporting, see :meth:`Collector.stats`; those that count do so since the batch before.
    """

    number: int
    version: int
    groups: list[list[Trajectory]]
    stats: dict[str, float]

    @property
    def trajectories(self) -> list[Trajectory]:
        """All episodes, group by group."""
        return [trajectory for group in self.groups for trajectory in group]


class Collector:
    """Collects episodes for training, and plays others for evaluation.

    The engine and the backend stay the caller's: closing the collector closes neither.

    Args:
        engine: What replies. Its weights are updated through :meth:`update_weights` alone.
        renderer: The renderer of the engine's model.
        backend: The environments.
        tasks: How many tasks there are (played in a new order every epoch), ``None`` for an endless set, or a function
            from group number to task index.
        group_size: Episodes of one task that are compared with each other; see :class:`Slots` for this and for
            ``groups_per_batch``, ``staleness``, ``window``, ``retries``, ``max_running``, ``filter_zero_variance``,
            ``max_consecutive_filtered`` and ``max_consecutive_errors``.
        groups_per_batch: Groups a batch.
        staleness: How many versions older than the trained weights a token may be.
        window: How far out of order groups may be delivered.
        sampling: How to sample a reply; its ``seed`` is not used.
        max_context: See :class:`Player` for this and for ``max_response_tokens``, ``generation_timeout`` and
            ``episode_timeout``; the timeouts of reset and step are the backend's.
        max_response_tokens: Tokens an episode after its opening.
        generation_timeout: Seconds a reply.
        episode_timeout: Seconds an episode.
        retries: How often one sibling is played again.
        max_running: Episodes at a time; ``"auto"`` looks for as many as the engine serves without a queue, see
            :mod:`trainers.rollout.concurrency`.
        filter_zero_variance: Replace groups without difference in reward.
        max_consecutive_filtered: So many in a row are too many.
        max_consecutive_errors: So many unusable episodes in a row stop the run.
        seed: The run's seed: tasks, environments and sampling follow from it.
        on_trajectory: Called with every episode that ended, the failed ones included. What it raises stops the run.

    Raises:
        ValueError: A value outside its range.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        backend: Backend,
        *,
        tasks: int | None | Callable[[int], int],
        group_size: int,
        groups_per_batch: int,
        staleness: int = 0,
        window: int = 1,
        sampling: Sampling | None = None,
        max_context: int | None = None,
        max_response_tokens: int | None = None,
        generation_timeout: float | None = None,
        episode_timeout: float | None = None,
        retries: int = 1,
        max_running: int | Literal["auto"] | None = None,
        filter_zero_variance: bool = False,
        max_consecutive_filtered: int = 64,
        max_consecutive_errors: int = 32,
        seed: int = 0,
        on_trajectory: Callable[[Trajectory], None] | None = None,
    ) -> None:
        if isinstance(max_running, str) and max_running != "auto":
            raise ValueError(f"max_running must be a number, None or 'auto', not {max_running!r}")
        self._engine = engine
        self._backend = backend
        self._player = Player(
            engine,
            renderer,
            max_context=max_context,
            max_response_tokens=max_response_tokens,
            generation_timeout=generation_timeout,
            episode_timeout=episode_timeout,
        )
        self._slots = Slots(
            group_size=group_size,
            groups_per_batch=groups_per_batch,
            staleness=staleness,
            window=window,
            retries=retries,
            max_running=None if max_running == "auto" else max_running,
            filter_zero_variance=filter_zero_variance,
            max_consecutive_filtered=max_consecutive_filtered,
            max_consecutive_errors=max_consecutive_errors,
            version=engine.version,
        )
        self._concurrency = Concurrency(self._slots.capacity) if max_running == "auto" else None
        if self._concurrency is not None:
            self._slots.max_running = self._concurrency.limit
        self._steering: asyncio.Task[None] | None = None
        self._identity = {"seed": seed, "tasks": "custom" if callable(tasks) else tasks}
        self._task_of = tasks if callable(tasks) else TaskOrder(tasks, seed=seed)
        self._sampling = sampling or Sampling()
        self._seed = seed
        self._on_trajectory = on_trajectory
        self._episodes: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._closed = False
        self._interruptions = 0  # updates that aborted what was running
        self._evaluations = 0
        self._tally = _Tally()

    # ------------------------------------------------------------------ the trainer's side

    async def next_batch(self) -> Batch:
        """The next batch; waits until it is complete. The first call starts collecting.

        May be called ahead of the update that the batch before is owed, while the trainer trains.

        Raises:
            CollectionError: Too many unusable episodes, or too many filtered groups, in a row; or the collector is
                closed.
            EngineDeadError: The engine is gone.
            StalenessError: The bound does not hold.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if self._concurrency is not None and self._steering is None:
            self._steering = asyncio.ensure_future(self._steer(self._concurrency))
        self._pump()
        while True:
            self._check()
            self._changed.clear()
            version = self._slots.training_version
            if (groups := self._slots.take()) is not None:
                break
            await self._changed.wait()
        stats = self.stats() | self._tally.deliver(groups, version) | {"wait_s": clock() - began}
        return Batch(self._slots.batches - 1, version, groups, stats)

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """Give the engine new weights: the update that the oldest batch taken is owed.

        Args:
            weights: As the engine takes them.
            version: One more than before.
            mode: What becomes of replies in progress, see :class:`~trainers.engines.base.Engine`. Episodes that it
                aborts are played again, at no charge to their retries.

        Raises:
            ValueError: The version does not fit (see :meth:`Slots.update`), or the engine refuses the weights.
            EngineDeadError: The engine is gone. (One that lost a part and goes on without it is a warning.)
        """
        self._check()
        self._slots.check_update(version)
        self._interruptions += mode == "abort"
        try:
            await self._engine.update_weights(weights, version, mode)
        except PartialUpdateError as error:  # what is left of the engine has them
            log.warning("%s", error)
        self._slots.update(version)
        if self._concurrency is not None:
            self._concurrency.updated()
        self._pump()

    async def evaluate(
        self,
        tasks: Iterable[int | Mapping[str, Any]],
        *,
        samples: int = 1,
        sampling: Sampling | None = None,
        seed: int = 0,
        backend: Backend | None = None,
        max_running: int | None = None,
    ) -> list[Trajectory]:
        """Play tasks beside what is being collected. It takes no slot, and fails and retries nothing.

        Args:
            tasks: Task indices, or the environment's reset options.
            samples: Episodes a task; they differ in sampling.
            sampling: How to sample; as in training when left out.
            seed: Decides the environments' and the sampling's randomness.
            backend: Other environments than those of training, for example with held-out tasks.
            max_running: At most this many episodes at a time; ``None`` for all at once.

        Returns:
            ``samples`` trajectories a task, in the order of ``tasks``; failures are among them, by status.

        Raises:
            EngineDeadError: The engine is gone.
        """
        self._evaluations += 1
        name = f"eval{self._evaluations - 1}"
        places = asyncio.Semaphore(max_running or 2**31)

        async def play(task: int | Mapping[str, Any], place: int, sample: int) -> Trajectory:
            key = task if isinstance(task, int) else f"at {place}"
            episode = Episode(
                episode_id=f"{name}-t{place}-s{sample}",
                group_id=f"{name}-t{place}",
                options={"task_index": task} if isinstance(task, int) else task,
                env_seed=derive_seed(seed, "evaluate environment", key, bits=32),
                sampling=sampling or self._sampling,
                sampling_seed=derive_seed(seed, "evaluate sampling", key, sample),
            )
            async with places:
                return await self._player.play(backend or self._backend, episode)

        running = [
            asyncio.ensure_future(play(task, place, sample))
            for place, task in enumerate(tasks)
            for sample in range(samples)
        ]
        try:
            return list(await asyncio.gather(*running))
        finally:
            await _cancel(running, timeout=5.0)

    def frontier(self) -> dict[str, Any]:
        """Where collecting stands, for a checkpoint (JSON). Take it together with the trainer's own state.

        Batches taken so far count as done; groups in flight will be played again by whoever restores it.
        """
        return {"identity": dict(self._identity), "slots": self._slots.frontier()}

    def restore(self, frontier: Mapping[str, Any]) -> None:
        """Go on from a :meth:`frontier`: no task is skipped, and none of those delivered is played again.

        Raises:
            ValueError: The frontier is of another run (seed or tasks differ), or collecting has begun.
        """
        if dict(frontier["identity"]) != self._identity:
            raise ValueError(
                f"this frontier is of a run with {frontier['identity']}, but this one has {self._identity}: "
                "the groups' numbers would mean other tasks"
            )
        self._slots.restore(frontier["slots"])

    def stats(self) -> dict[str, float]:
        """How collecting goes: ``running`` episodes, groups ``ready`` and ``in_flight``, totals of the books
        (``groups_*``, ``retries*``, ``siblings_lost``) and the environments' (``env_*``); with ``max_running="auto"``
        also ``max_running``, the limit in force, and ``max_running_cuts``.

        A batch's stats have these too: ``wait_s`` (seconds :meth:`next_batch` waited), ``episodes_<status>``,
        ``staleness_mean``, ``staleness_max`` and ``staleness_<k>`` (share of the batch's episodes whose oldest token is
        ``k`` versions old), and ``length_bias``: the mean length of delivered episodes over that of all usable ones
        that ended so far (sampled tokens); below 1, short episodes come first.
        """  # noqa: D205
        slots = self._slots
        now = {"running": slots.running, "ready": slots.ready, "in_flight": len(slots.in_flight)}
        if self._concurrency is not None:
            now |= {"max_running": self._concurrency.limit, "max_running_cuts": self._concurrency.cuts}
        stats = {name: float(value) for name, value in (now | slots.counters).items()}
        return stats | {f"env_{name}": value for name, value in self._backend.stats().items()}

    async def close(self, timeout: float = 5.0) -> None:
        """Cancel what runs and wait for it, ``timeout`` seconds at most; safe to call twice."""
        self._closed = True
        self._changed.set()
        if self._steering is not None:
            self._steering.cancel()
        await _cancel(self._episodes, timeout)

    async def __aenter__(self) -> Self:
        """The collector itself."""
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close it."""
        await self.close()

    # ------------------------------------------------------------------ episodes

    def _pump(self) -> None:
        """Start every episode that may start."""
        while self._failure is None and not self._closed and (ticket := self._slots.start()) is not None:
            task = asyncio.ensure_future(self._play(ticket))
            self._episodes.add(task)
            task.add_done_callback(self._ended)

    async def _steer(self, concurrency: Concurrency) -> None:
        """Let the limit follow the engine's load. A failure of this is a failure of the run."""
        try:
            while self._failure is None and not self._closed:
                await asyncio.sleep(_LOOK_EVERY)
                self._slots.max_running = concurrency.observe(self._engine.stats(), self._slots.running)
                self._pump()
        except Exception as error:
            self._failure = self._failure or error
            self._changed.set()

    async def _play(self, ticket: Ticket) -> None:
        interruptions = self._interruptions
        trajectory = await self._player.play(self._backend, self._episode(ticket))
        self._tally.end(trajectory)
        if self._on_trajectory is not None:
            self._on_trajectory(trajectory)
        excused = trajectory.status is Status.ABORTED and interruptions != self._interruptions
        self._slots.finish(ticket, trajectory, excused=excused)

    def _episode(self, ticket: Ticket) -> Episode:
        return Episode(
            episode_id=f"g{ticket.group}-s{ticket.sibling}-a{ticket.attempt}",
            group_id=f"g{ticket.group}",
            options={"task_index": self._task_of(ticket.group)},
            env_seed=derive_seed(self._seed, "environment", ticket.group, bits=32),
            sampling=self._sampling,
            sampling_seed=derive_seed(self._seed, "sampling", ticket.group, ticket.sibling, ticket.attempt),
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._episodes.discard(task)
        problem: BaseException | None
        if task.cancelled():
            problem = CollectionError("an episode was cancelled, and not by the collector")
        else:
            problem = task.exception()
        if problem is not None and self._failure is None and not self._closed:
            self._failure = problem
            for other in self._episodes:
                other.cancel()
        self._pump()
        self._changed.set()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise CollectionError("this collector is closed")


class _Tally:
    """Counts over trajectories, for a batch's stats."""

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()  # since the last batch
        self._ended = [0, 0]  # usable episodes, their sampled tokens
        self._delivered = [0, 0]

    def end(self, trajectory: Trajectory) -> None:
        self._statuses[f"episodes_{trajectory.status.value}"] += 1
        if trajectory.status.trainable and trajectory.oldest_version is not None:
            _add(self._ended, trajectory)

    def deliver(self, groups: list[list[Trajectory]], version: int) -> dict[str, float]:
        ages: Counter[int] = Counter()
        for trajectory in (trajectory for group in groups for trajectory in group):
            _add(self._delivered, trajectory)
            ages[version - (trajectory.oldest_version or 0)] += 1
        total = ages.total()
        stats = {name: float(count) for name, count in self._statuses.items()}
        self._statuses.clear()
        return stats | {
            **{f"staleness_{age}": count / total for age, count in sorted(ages.items())},
            "staleness_mean": sum(age * count for age, count in ages.items()) / total,
            "staleness_max": float(max(ages)),
            "length_bias": (self._delivered[1] / self._delivered[0]) / (self._ended[1] / self._ended[0]),
        }


def _add(sums: list[int], trajectory: Trajectory) -> None:
    sums[0] += 1
    sums[1] += int(trajectory.action_mask.sum())


async def _cancel(tasks: Iterable[asyncio.Task[Any]], timeout: float) -> None:
    """Cancel tasks and wait for them, but not for ever."""
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=timeout)
