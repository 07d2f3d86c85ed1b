"""Whole episodes, played side by side and each at its own pace: no batch, no barrier.

::

    async for episode in play_episodes(env, policy, range(1000), concurrency=256):
        print(episode.task_key, episode.reward, episode.stop)

* Episode ``k`` has seed ``seed + k`` and the ``k``-th task, whatever the concurrency and whichever ends first. So it
can be played again: ``env.reset(seed=episode.seed, options=...)``.
* Back-pressure: when ``buffer`` finished episodes wait to be taken, no new one is started.
* Errors are data: what a policy, a hook or a task raises ends its own episode, as ``episode.error``.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from .env import TextEnv, check_env
from .options import NonNegativeInt, Policy, PositiveInt, Seconds, checked, resolve
from .play import Episode, play
from .task import Task

#: Which tasks to play: indices, tasks or rows, in order; ``None`` in their place draws one by the episode's seed. A
#: number is how many to draw, and ``None`` draws without end.
Tasks: TypeAlias = "Iterable[int | Task | Mapping[str, Any] | None] | int | None"

_PER_EPISODE = 20  # objects that an episode makes for a turn, and some more
_MANY = 1000  # fewer episodes make no difference

_lock = threading.Lock()
_requests: list[int] = []
_original, _applied = 0, -1  # the threshold that was there, and the one that was set here

# Hooks and policies that never wait must not keep the event loop to themselves: after so many episodes, others get it.
_YIELD_EVERY = 16


@checked
def play_episodes(
    env: TextEnv[Any],
    policy: Policy | str,
    tasks: Tasks = None,
    *,
    concurrency: PositiveInt = 64,
    seed: NonNegativeInt | None = None,
    buffer: PositiveInt | None = None,
    timeout_s: Seconds | None = None,
) -> AsyncGenerator[Episode, None]:
    """Play episodes in forks of ``env``, and give out each when it is over.

    The environment itself is not played. To stop early, close the iterator, or use ``contextlib.aclosing``: the
    episodes that are running are then cancelled.

    Args:
        env: What is forked; the forks share its tasks.
        policy: See :data:`~textenvs.options.Policy`.
        tasks: See :data:`Tasks`. It is read as episodes start, so it may be endless.
        concurrency: How many episodes are running at a time.
        seed: Of the first episode; ``None`` draws one.
        buffer: How many finished episodes may wait to be taken; ``None`` for as many as are running.
        timeout_s: An episode that takes longer ends with a ``TimeoutError``; ``None`` for no limit.
    """
    check_env("play_episodes", env)
    if isinstance(tasks, (str, Mapping)) or (isinstance(tasks, (int, np.integer)) and tasks < 0):
        raise ValueError(f"tasks must be indices, tasks or rows, a number of episodes or None, not {tasks!r}")
    if isinstance(tasks, (int, np.integer)):
        tasks = itertools.repeat(None, int(tasks))
    run = _Run(
        env,
        resolve("policy", policy),
        enumerate(itertools.repeat(None) if tasks is None else tasks),
        int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed,
        timeout_s,
        asyncio.Semaphore(concurrency if buffer is None else buffer),
    )
    return run.stream(concurrency)


@dataclass
class _Run:
    env: TextEnv[Any]
    policy: Policy
    jobs: Iterator[tuple[int, Any]]
    seed: int
    timeout_s: float | None
    room: asyncio.Semaphore  # for finished episodes
    finished: deque[Episode] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, concurrency: int) -> AsyncGenerator[Episode, None]:
        workers: set[asyncio.Task[None]] = set()
        crashed: list[BaseException] = []

        def ended(worker: asyncio.Task[None]) -> None:
            workers.discard(worker)
            if not worker.cancelled() and (error := worker.exception()) is not None:
                crashed.append(error)
            self.news.set()

        try:
            for _, job in zip(range(concurrency), self.jobs, strict=False):  # no job is taken without a place for it
                worker = asyncio.ensure_future(self._work(*job))
                worker.add_done_callback(ended)
                workers.add(worker)
            with rarely_collected(len(workers)):
                while True:
                    while self.finished:
                        episode = self.finished.popleft()
                        self.room.release()
                        yield episode
                    if crashed:
                        raise crashed[0]
                    if not workers:
                        return
                    self.news.clear()
                    await self.news.wait()
        finally:
            unfinished = list(workers)
            for worker in unfinished:
                worker.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)

    async def _work(self, number: int, task: Any) -> None:
        """One place: this episode, and then whichever is next. There may be tens of thousands of these."""
        env, job = _fork(self.env), (number, task)
        for played in itertools.count(1):
            number, task = job
            episode = Episode(number, self.seed + number)
            clock: asyncio.Timeout | None = None
            try:
                async with asyncio.timeout(self.timeout_s) as clock:
                    await play(env, self.policy, seed=episode.seed, options=_options(task), episode=episode)
            except Exception as error:
                if isinstance(error, TimeoutError) and clock is not None and clock.expired():
                    error = TimeoutError(f"the episode took longer than {self.timeout_s:g} s")
                name = episode.task_key or (None if isinstance(task, Mapping) else getattr(task, "key", task))
                error.add_note(f"(in episode {number}, seed {episode.seed}, task {name!r})")
                episode.error = error
                env = _fork(self.env)  # a thread that was given up on may still be at work in the old one
            await self.room.acquire()
            self.finished.append(episode)
            self.news.set()
            following = next(self.jobs, None)
            if following is None:
                return
            job = following
            if played % _YIELD_EVERY == 0:
                await asyncio.sleep(0)


def _fork(env: TextEnv[Any]) -> TextEnv[Any]:
    """Return a fork for this module alone: its spaces are never sampled from, and each episode has a seed."""
    fork = env.fork(0)
    fork.observation_space, fork.action_space = env.observation_space, env.action_space
    return fork


def _options(task: Any) -> dict[str, Any] | None:
    if task is None:
        return None
    return {"task": task} if isinstance(task, (Task, Mapping)) else {"task_index": task}


@contextmanager
def rarely_collected(episodes: int) -> Iterator[None]:
    """While inside, the collector looks after 20 new objects an episode, if 1000 episodes or more wait at a time.

    CPython (up to 3.13) looks for cycles whenever 700 more objects were made than freed. What an episode makes for a
    turn lives while it waits for its user, so all of it becomes old before it is freed, and a third of the time goes
    into looking at it in vain (``benchmarks/vector_throughput.py one_core``): a turn leaves no cycles.

    This is process-wide; the last to leave puts back what was there. A collector that is off (0), or looks less often
    already, is left alone.
    """
    additions = [_PER_EPISODE * episodes] if episodes >= _MANY else []
    with _lock:
        _requests.extend(additions)
        _apply()
    try:
        yield
    finally:
        with _lock:
            for threshold in additions:
                _requests.remove(threshold)
            _apply()


def _apply() -> None:
    global _original, _applied
    now, *older = gc.get_threshold()
    if now != _applied:  # it was chosen elsewhere
        _original = now
    _applied = max([_original, *_requests]) if _original else 0
    gc.set_threshold(_applied, *older)
