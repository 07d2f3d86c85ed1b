"""Threads for environments that block: as many as asked for, and none that the process waits for at its end.

A thread cannot be stopped. One whose call never ends keeps its place, is counted as stuck, and dies with the process:
the threads are daemons, which those of ``concurrent.futures`` are not.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any


class Threads:
    """A few threads, for the calls of one event loop; every method is to be called there.

    Args:
        most: How many calls may be at work at a time.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.stuck = 0
        self._free = asyncio.Semaphore(most)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = 0

    @property
    def all_stuck(self) -> bool:
        """Whether no thread is left for calls that end."""
        return self.stuck >= self.most

    async def begin(self, call: Callable[[], Any], *, beyond: bool = False) -> asyncio.Future[Any]:
        """Have ``call`` carried out, as soon as a thread is free; nothing has happened if this is cancelled.

        Args:
            call: What to do.
            beyond: Wait for no thread: take another one, however many there are.

        Returns:
            Its result, when it has ended. Shield it, for it cannot be cancelled.
        """
        if not beyond:
            await self._free.acquire()
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        result.add_done_callback(_seen)

        def ended(value: Any, error: Exception | None) -> None:
            self._idle += 1
            if not beyond:
                self._free.release()
            if result.done():  # the loop is ending
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        def job() -> None:
            value, error = _outcome(call)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(ended, value, error)

        self._jobs.put(job)
        if self._idle:
            self._idle -= 1
        else:
            threading.Thread(target=self._work, name="textenvs-serve", daemon=True).start()
        return result

    def late(self, result: asyncio.Future[Any]) -> None:
        """Count a call as stuck, until it has ended."""
        if result.done():
            return
        self.stuck += 1

        def ended(_: Any) -> None:
            self.stuck -= 1

        result.add_done_callback(ended)

    def close(self) -> None:
        """Let the threads go that do nothing; the others end with the process."""
        for _ in range(self._idle):
            self._jobs.put(None)
        self._idle = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except StopIteration as error:  # a future cannot have it
        stopped = RuntimeError("StopIteration was raised")
        stopped.__cause__ = error
        return None, stopped
    except Exception as error:
        return None, error
    except BaseException as error:  # SystemExit of an environment is not ours
        wrapped = RuntimeError(f"{type(error).__name__} was raised")
        wrapped.__cause__ = error
        return None, wrapped


def _seen(result: asyncio.Future[Any]) -> None:
    """When nobody waits for it any more, its error is nothing to warn of."""
    if not result.cancelled():
        result.exception()
