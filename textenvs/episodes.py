"""Whole episodes, played side by side and each at its own pace: no batch, no barrier.

::

    async for episode in play_episodes(env, policy, range(1000), concurrency=256):
        print(episode.task_key, episode.reward, episode.stop)

One coroutine a running episode: policy, step, policy, step. An episode that is over is handed out at once and its place
is taken by the next one; a slow reply holds up no other episode.

* Episode ``k`` has seed ``seed + k`` and the ``k``-th task, whatever the concurrency and whichever ends first. So it
  can be played again: ``env.reset(seed=episode.seed, options=...)``.
* Back-pressure: when ``buffer`` finished episodes wait to be taken, no new one is started.
* With a thousand episodes or more at a time, Python's garbage collector looks less often until the last is over
  (:mod:`textenvs.gc_tuning`).
* Errors are data: what a policy, a hook or a task raises ends its own episode, as ``episode.error``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np

from .env import TextEnv
from .gc_tuning import rarely_collected
from .options import NonNegativeInt, Policy, PositiveInt, Seconds, check_env, checked, resolve
from .play import Episode, play
from .task import Task

#: Which tasks to play: indices, tasks or rows, in order; ``None`` in their place draws one by the episode's seed. A
#: number is how many to draw, and ``None`` draws without end.
Tasks: TypeAlias = "Iterable[int | Task | Mapping[str, Any] | None] | int | None"


_NO_LIMIT = nullcontext(None)
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
        policy: Replies; see :data:`~textenvs.options.Policy`.
        tasks: Which tasks; see :data:`Tasks`. It is read as episodes start, so it may be endless.
        concurrency: How many episodes are running at a time.
        seed: Of the first episode; ``None`` draws one.
        buffer: How many finished episodes may wait to be taken; ``None`` for as many as are running.
        timeout_s: An episode that takes longer ends with a ``TimeoutError``; ``None`` for no limit.

    Raises:
        TypeError: ``env`` is not a text environment itself, but for example a wrapper.
        ValueError: A number below 1 (or, for ``tasks`` and ``seed``, below 0).
    """
    check_env("play_episodes", env)
    plan = Plan(policy, tasks, seed, concurrency if buffer is None else buffer, timeout_s)
    return plan.stream(_fork(env) for _ in range(concurrency))


class Plan:
    """What :func:`play_episodes` was asked for, checked; :meth:`stream` plays it, once.

    Args:
        policy: Replies.
        tasks: Which tasks.
        seed: Of the first episode.
        buffer: How many finished episodes may wait.
        timeout_s: For one episode.
    """

    @checked
    def __init__(
        self,
        policy: Policy | str,
        tasks: Tasks,
        seed: NonNegativeInt | None,
        buffer: PositiveInt,
        timeout_s: Seconds | None,
    ) -> None:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(tasks, (int, np.integer)):
            if isinstance(tasks, bool) or tasks < 0:
                raise ValueError(f"tasks, as a number of episodes, must be an integer of at least 0, not {tasks!r}")
        elif tasks is not None and (isinstance(tasks, (str, bytes, Mapping, Task)) or not isinstance(tasks, Iterable)):
            raise ValueError(f"tasks must be indices, tasks or rows, a number of episodes or None, not {tasks!r}")
        self.policy: Policy = resolve("policy", policy)
        self.seed = seed
        self.timeout_s = timeout_s
        self._jobs = enumerate(
            itertools.repeat(None) if tasks is None
            else itertools.repeat(None, int(tasks)) if isinstance(tasks, (int, np.integer))
            else tasks
        )  # fmt: skip
        self._room = asyncio.Semaphore(buffer)
        self._finished: deque[Episode] = deque()
        self._news = asyncio.Event()

    async def stream(self, envs: Iterable[TextEnv[Any]]) -> AsyncGenerator[Episode, None]:
        """Play, each episode in one of ``envs``: as many as may run at a time."""
        workers: set[asyncio.Task[None]] = set()
        crashed: list[BaseException] = []

        def ended(worker: asyncio.Task[None]) -> None:
            workers.discard(worker)
            if not worker.cancelled() and (error := worker.exception()) is not None:
                crashed.append(error)
            self._news.set()

        try:
            for env, (number, task) in zip(envs, self._jobs, strict=False):  # never takes a task that it has no env for
                worker = asyncio.ensure_future(self._work(env, number, task))
                worker.add_done_callback(ended)
                workers.add(worker)
            with rarely_collected(len(workers)):
                while True:
                    while self._finished:
                        episode = self._finished.popleft()
                        self._room.release()
                        yield episode
                    if crashed:
                        raise crashed[0]
                    if not workers:
                        return
                    self._news.clear()
                    await self._news.wait()
        finally:
            left = list(workers)
            for worker in left:
                worker.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _work(self, env: TextEnv[Any], number: int, task: Any) -> None:
        """One place: this episode, and then whichever is next.

        There may be tens of thousands of these, and most of the time they wait.
        """
        job: tuple[int, Any] | None = (number, task)
        played = 0
        while job is not None:
            number, task = job
            episode = Episode(number, self.seed + number)
            clock: asyncio.Timeout | None = None
            try:
                async with _NO_LIMIT if self.timeout_s is None else asyncio.timeout(self.timeout_s) as clock:
                    await play(env, self.policy, seed=episode.seed, options=_options(task), episode=episode)
            except Exception as error:
                if isinstance(error, TimeoutError) and clock is not None and clock.expired():
                    error = TimeoutError(f"the episode took longer than {self.timeout_s:g} s")
                name = episode.task_key or _named(task)
                error.add_note(f"(in episode {number}, seed {episode.seed}, task {name!r})")
                episode.error = error
                env = _fork(env)  # a thread that was given up on may still be at work in the old one
            await self._room.acquire()
            self._finished.append(episode)
            self._news.set()
            job = next(self._jobs, None)
            played += 1
            if played % _YIELD_EVERY == 0:
                await asyncio.sleep(0)


def _fork(env: TextEnv[Any]) -> TextEnv[Any]:
    """A fork for this module alone: its spaces are never sampled from, and each episode has a seed."""
    fork = env.fork(0)
    fork.observation_space, fork.action_space = env.observation_space, env.action_space
    return fork


def _options(task: Any) -> dict[str, Any] | None:
    if task is None:
        return None
    return {"task": task} if isinstance(task, (Task, Mapping)) else {"task_index": task}


def _named(task: Any) -> Any:
    return task.key if isinstance(task, Task) else "given" if isinstance(task, Mapping) else task
