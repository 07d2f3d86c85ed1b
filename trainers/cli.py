"""The run and end of a command: log, exit code, expected errors, signals, and garbage collection.

Ctrl-C and SIGTERM end a run within seconds in every phase, even if an environment hangs: their handlers signal the
event loop, and a thread watches whether it reacts; if it does not, the process ends anyway, and reports what it did not
wait for. (C code that holds Python's interpreter lock cannot be interrupted; ``env.backend=process`` can.)
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from textenvs.startup import INTERRUPTED, raise_on_interrupt
from textenvs.text import printable

T = TypeVar("T")

log = logging.getLogger("trainers")

#: Seconds from a signal to the forced end of the process.
GRACE_S = 5.0
_GC_THRESHOLDS = (20_000, 20, 20)  # objects made, and collections of each younger generation, before one is due


def run_command(
    work: Callable[[], int],
    *,
    stopped: str,
    expected: tuple[type[Exception], ...],
    folder: Path | None = None,
    advice: Callable[[bool], str] = lambda full: "make room",
    as_written: Callable[[str], str] = str,
) -> int:
    """Run the work of a command; return its exit code.

    ``stopped`` is printed if it was interrupted. ``expected`` errors are shown without a traceback, and so is an
    ``OSError`` about a file in ``folder``, or of a full disk; ``advice`` says what to do then, given whether it is
    full. ``as_written`` turns the names of keys in an error into the user's. The exit code of an error is its
    ``exit_code``, or 1.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for client in ("httpx", "httpx2"):  # of programs, users and judges: a line for each of their calls
        logging.getLogger(client).setLevel(logging.WARNING)
    try:
        raise_on_interrupt()
        return work()
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(stopped, file=sys.stderr)
        return INTERRUPTED
    except expected as error:
        print(f"error: {printable(as_written(str(error)))}", file=sys.stderr)
        return int(getattr(error, "exit_code", 1))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if not full and not (folder is not None and _within(folder, error.filename)):
            raise
        print(f"error: {error}: {advice(full)}", file=sys.stderr)
        return 1


def _within(folder: Path, name: object) -> bool:
    return isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(folder.absolute())


class Interrupts:
    """Handlers of both signals in a ``with`` block, or in :meth:`run`; only in the main thread.

    After :meth:`save_first` the first signal requests a stop after a checkpoint; any other ends the run.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None
        self._stop: tuple[asyncio.Event | threading.Event, str] | None = None
        self._asked = self._ending = False
        self._over = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers; outside the main thread do nothing."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._ending and isinstance(error, asyncio.CancelledError):
            raise KeyboardInterrupt from None

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``asyncio.run(main)``, and wait for the end of its threads as long as a signal allows."""

        async def attached() -> T:
            self.attach()
            return await main

        with self:
            return asyncio.run(attached())

    def attach(self) -> None:
        """Register the calling task as the main one, which is cancelled; call it there first."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()

    def save_first(self, stop: asyncio.Event | threading.Event, what: str = "a checkpoint will be saved") -> None:
        """Make the first signal from now on set ``stop`` and log ``what``."""
        self._stop = stop, what

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None and not self._asked:
            (stop, what), received = self._stop, threading.Event()
            self._asked = True

            def ask() -> None:
                received.set()
                stop.set()
                log.warning("stopping: %s; interrupt again to stop at once without it", what)

            self._call(ask)
            _end_unless(received, "nothing was saved since the last checkpoint")
        elif self._main is None:
            raise KeyboardInterrupt
        elif not self._ending:
            self._asked = self._ending = True
            self._call(self._main.cancel)
            _end_unless(self._over, "it was to stop at once")

    def _call(self, function: Callable[[], object]) -> None:
        if self._loop is None:
            function()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _end_unless(done: threading.Event, consequence: str) -> None:
    """End the process unless ``done`` is set within :data:`GRACE_S`; report what it did not wait for."""

    def watch() -> None:
        if not done.wait(GRACE_S):
            line = f"stopped without waiting any longer for {_busy()}; {consequence}\n"
            os.write(2, line.encode(errors="replace"))  # the main thread may hold the lock of sys.stderr
            os._exit(INTERRUPTED)

    threading.Thread(target=watch, name="interrupts", daemon=True).start()


def leave(code: int) -> NoReturn:
    """End the process as ``sys.exit`` does, but after an interrupt also if a thread never ends."""
    if code == INTERRUPTED:
        _end_unless(threading.Event(), "everything else has ended")
    sys.exit(code)


def _busy() -> str:
    """Return the positions of this process's busy threads; those that wait in the standard library are idle."""
    standard = os.path.dirname(threading.__file__)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    places = []
    for ident, frame in sys._current_frames().items():
        file = frame.f_code.co_filename
        if file != __file__ and (not file.startswith(standard) or "site-packages" in file):
            places.append(f"{file}:{frame.f_lineno} ({frame.f_code.co_name}, thread {names.get(ident)})")
    return ", ".join(places[:3]) or "a thread"


@contextmanager
def tuned_gc() -> Iterator[None]:
    """Exclude existing objects from garbage collection, and collect the rest less often, until the block ends.

    With Python's settings, walking a run's long-lived objects takes a fifth of the time at full load
    (``benchmarks/collector_throughput.py``). Process-wide: for programs, once all long-lived objects exist. A process
    that has excluded objects itself keeps these and no others: Python can only take all of them back.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    if not frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()
