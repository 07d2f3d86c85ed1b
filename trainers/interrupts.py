"""What Ctrl-C and SIGTERM do: they end a run within seconds in every phase, also where an environment hangs.

Handlers run in the main thread between two instructions of Python, so they are heard while the event loop is blocked.
They ask the loop, and a thread watches whether it obeys: where it does not, the process ends all the same, in words.
(One thing they cannot interrupt: C code that keeps Python's interpreter lock. An environment that may do that belongs
into a process of its own, ``env.backend=process``.)
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self, TypeVar

T = TypeVar("T")

log = logging.getLogger("trainers")

#: Seconds from a signal to the end of the process, where something keeps it from ending by itself.
GRACE_S = 5.0
INTERRUPTED = 130  # the exit code
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The handlers of both signals, within a ``with`` block (or :meth:`run`); in the main thread alone.

    Until :meth:`save_first` there is nothing to save, and a signal ends the run. From then on the first signal asks to
    stop after a checkpoint, and the second one ends the run.

    Args:
        grace_s: Seconds that an end, or the loop's answer to the first signal, may take.
        end: What ends the process; for tests.
    """

    def __init__(self, grace_s: float = GRACE_S, end: Callable[[int], Any] = os._exit) -> None:
        self._grace_s, self._end = grace_s, end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stop: asyncio.Event | None = None
        self._asked = False
        self._ending = False
        self._over = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Take the signals over; elsewhere than in the main thread nothing happens."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back; the process is no longer ended."""
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._ending and isinstance(error, asyncio.CancelledError):
            raise KeyboardInterrupt from None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """``asyncio.run(main)``; the end of its threads, too, is waited for as long as a signal allows."""

        async def attached() -> T:
            self.attach()
            return await main

        with self:
            return asyncio.run(attached())

    def attach(self) -> None:
        """Called first in the main task: the one that is cancelled."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()

    def save_first(self, stop: asyncio.Event) -> None:
        """From here on the first signal sets ``stop``."""
        self._stop = stop

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._loop is None or self._main is None:
            raise KeyboardInterrupt
        if self._stop is not None and not self._asked:
            self._asked = True
            heard = threading.Event()
            self._call(self._ask, heard)
            self._watch(heard, "nothing was saved since the last checkpoint")
        elif not self._ending:
            self._asked = self._ending = True
            self._call(self._main.cancel)
            self._watch(self._over, "it was to stop at once")

    def _ask(self, heard: threading.Event) -> None:
        heard.set()
        assert self._stop is not None
        self._stop.set()
        log.warning("stopping: a checkpoint will be saved; interrupt again to stop at once without one")

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _watch(self, done: threading.Event, said: str) -> None:
        end_unless(done, self._grace_s, said, self._end)


def end_unless(
    done: threading.Event, seconds: float, said: str, end: Callable[[int], Any] = os._exit
) -> threading.Thread:
    """End the process with 130 unless ``done`` is set within ``seconds``; says what it did not wait for."""

    def watch() -> None:
        if not done.wait(seconds):
            line = f"stopped without waiting any longer for {_busy()}; {said}\n"
            os.write(2, line.encode(errors="replace"))  # the main thread may hold the lock of sys.stderr
            end(INTERRUPTED)

    thread = threading.Thread(target=watch, name="interrupts", daemon=True)
    thread.start()
    return thread


def leave(code: int) -> NoReturn:
    """End the process as ``sys.exit`` does, but where it was interrupted also if a thread never ends."""
    if code == INTERRUPTED:
        end_unless(threading.Event(), GRACE_S, "everything else has ended")
    sys.exit(code)


def _busy() -> str:
    """Where the threads of this process are; those that wait in the standard library have nothing to do."""
    standard = os.path.dirname(threading.__file__)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = []
    for ident, frame in sys._current_frames().items():
        file = frame.f_code.co_filename
        if file != __file__ and (not file.startswith(standard) or "site-packages" in file):
            found.append(f"{file}:{frame.f_lineno} ({frame.f_code.co_name}, thread {names.get(ident)})")
    return ", ".join(found[:3]) or "a thread"
