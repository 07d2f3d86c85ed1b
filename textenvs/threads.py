"""Hooks of environments in threads: those that block, and plain ones that other episodes must not wait for.

A thread cannot be stopped. These are daemons, which those of ``concurrent.futures`` are not: one whose call never ends
keeps its place, counts as stuck, and ends with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from .env import ResetResult, StepResult, TextEnv
from .event_loop import discard, in_new_thread, settle, wait_for

#: Carries out a call in a thread, and gives its result.
InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


class Threads:
    """Daemon threads for the calls of one event loop, at most ``most`` at a time; every method is to be called there.

    ``stuck`` is how many calls run that nothing waits for any more.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.stuck = 0
        self._free = asyncio.Semaphore(most)

    async def begin(self, call: Callable[[], Any], *, beyond: bool = False) -> asyncio.Future[Any]:
        """Run ``call`` as soon as a thread is free (``beyond``: now, however many there are); not if this is cancelled.

        The result is a future: shield it, because the call cannot be cancelled.
        """
        if beyond:
            return in_new_thread(call)
        await self._free.acquire()
        return in_new_thread(call, self._free.release)

    async def result(self, begun: asyncio.Future[Any]) -> Any:
        """Await the result of a call that has begun; cancelled, the call continues and is stuck until it ends."""
        try:
            return await asyncio.shield(begun)
        except asyncio.CancelledError:
            if not begun.done():
                self.stuck += 1
                begun.add_done_callback(self._ended_late)
            begun.add_done_callback(_discard_result)
            raise

    def _ended_late(self, _: asyncio.Future[Any]) -> None:
        self.stuck -= 1


class StepTimeoutError(TimeoutError):
    """An environment took longer over a reset or a step than it may."""


class Calls:
    """Calls of one environment's episodes: on the event loop, or in threads where it may block.

    With a time limit (``timeout_s``, for a reset or a step), plain hooks run in threads, too; an asynchronous hook that
    blocks the event loop has no limit. ``undo``: a turn that raises leaves the episode as it was before, and otherwise
    as far as it came.
    """

    def __init__(self, env: TextEnv[Any], timeout_s: float | None = None, *, undo: bool = True) -> None:
        self.env = env
        self._threads = Threads(1)
        self._timeout_s = timeout_s
        self._undo = undo
        self._in_loop = timeout_s is None and not env.blocking

    @property
    def hangs(self) -> bool:
        """True where an abandoned thread is still at work in the environment."""
        return self._threads.stuck > 0

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        if self._in_loop:
            return await self.env.areset(seed=seed, options=options)
        return await self._limited("reset", reset_in_thread(self.env, self._in_thread, seed=seed, options=options))  # type: ignore[no-any-return]

    async def step(self, action: Any) -> StepResult:
        if self._in_loop:
            return await self.env.astep(action)
        if not self._undo:
            return await self._limited("step", self._in_thread(lambda: wait_for(self.env._play(action))))  # type: ignore[no-any-return]
        return await self._limited("step", step_in_thread(self.env, self._in_thread, action))  # type: ignore[no-any-return]

    async def close(self, within_s: float = 10.0) -> None:
        if self.hangs:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await (self._in_thread(self.env.close) if self.env.blocking else self.env.aclose())

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await self._threads.result(in_new_thread(call))

    async def _limited(self, what: str, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s) as clock:
                return await work
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise StepTimeoutError(f"the environment's {what} took longer than {self._timeout_s:g} s") from error


async def reset_in_thread(
    env: TextEnv[Any], in_thread: InThread, *, seed: int | None, options: dict[str, Any] | None
) -> ResetResult:
    """``env.areset``, with what may block in a thread: a plain hook, or everything where the environment blocks."""
    if env.blocking:
        return await in_thread(partial(env.reset, seed=seed, options=options))  # type: ignore[no-any-return]
    with env._opened_or_not():
        return await settle(await in_thread(partial(env._begin_episode, seed, options)))  # type: ignore[no-any-return]


async def step_in_thread(env: TextEnv[Any], in_thread: InThread, action: Any) -> StepResult:
    """``env.astep``, with what may block in a thread: a plain hook, or everything where the environment blocks."""
    if env.blocking:
        return await in_thread(partial(env.step, action))  # type: ignore[no-any-return]
    with env._played_or_not():
        return await settle(await in_thread(partial(env._play, action)))  # type: ignore[no-any-return]


def _discard_result(begun: asyncio.Future[Any]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        discard(begun.result())
