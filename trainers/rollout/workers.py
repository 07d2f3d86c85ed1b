"""Where one environment lives: on the event loop, in a thread of its own, or in a process of its own.

A worker owns one environment and serves one call at a time (``make``, ``reset``, ``step``). Whatever goes wrong comes
out as :class:`EnvError`, and the worker is then not ``healthy``: nobody knows what state its environment is in.

A worker may be retired while its call still runs. A process is then killed. A coroutine is cancelled; one that swallows
that is left alone (and holds up the end of its event loop, as any such task does). A thread cannot be stopped: it is
left alone, and ends when its call returns, or with the program (it is a daemon).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

_log = logging.getLogger(__name__)
_starting = threading.Lock()  # multiprocessing's own list of children is not made for threads that start some at once


class EnvError(Exception):
    """An environment raised, died, or returned what no environment may return; the message has its traceback.

    ``cause`` says which in one word, with the method that was called: ``make_raised``, ``step_died``, ...
    """

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class EnvTimeoutError(EnvError):
    """An environment took longer than it may."""


@dataclass(frozen=True)
class EnvSpec:
    """How to make an environment; picklable when its parts are.

    Args:
        target: An id for ``textenvs.make``, or a callable that returns an environment (for processes: importable).
        kwargs: Keyword arguments for it.
    """

    target: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        """A new environment."""
        if callable(self.target):
            return self.target(**self.kwargs)
        import textenvs

        return textenvs.make(self.target, **self.kwargs)


class Worker(Protocol):
    """One environment, wherever it lives. Used from one event loop."""

    #: Whether its environment may be used for another call.
    healthy: bool
    #: Whether :meth:`kill` ends a call that is running.
    killable: bool

    @property
    def busy(self) -> bool:
        """Whether a call is running, perhaps one that nobody waits for any more."""
        ...

    async def call(self, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``method`` (``make`` comes first) and wait ``timeout`` seconds for it.

        Raises:
            EnvError: The environment raised or died; :class:`EnvTimeoutError` when it took too long.
        """
        ...

    def retire(self) -> None:
        """Close the environment without waiting for it; kill or abandon it where it does not answer."""
        ...

    async def ended(self) -> None:
        """Return when nothing of the worker is left; never, where it was abandoned and cannot be killed."""
        ...

    def kill(self) -> None:
        """Put an end to it now, where that is possible."""
        ...


class InlineWorker:
    """An environment with ``areset``/``astep`` on the event loop itself: the cheapest, for hooks that never block."""

    killable = True  # by cancellation, which it should not swallow

    def __init__(self, spec: EnvSpec) -> None:
        self.healthy = True
        self._spec = spec
        self._env: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._waiter: asyncio.Future[None] | None = None  # for the call to end, or for its time to be up
        self._deadline = math.inf
        self._alarm: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def env(self) -> Any:
        """The environment itself."""
        return self._env

    @property
    def busy(self) -> bool:
        """See :class:`Worker`."""
        return self._task is not None

    async def call(self, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`Worker.call`."""
        if method == "make":
            try:
                return self._make()
            except (Exception, SystemExit) as error:
                self.healthy = False
                raise EnvError(f"the environment could not be made: {traceback.format_exc()}", "make_raised") from error
        # The call is a task of its own, so that a hook that swallows cancellation cannot hold who waits for it.
        self._task = task = asyncio.ensure_future(_without_exit(getattr(self._env, f"a{method}")(*args, **kwargs)))
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        task.add_done_callback(self._over)
        self._expect_by(timeout)
        try:
            await waiter
        except asyncio.CancelledError:
            self.healthy = False
            raise
        finally:
            self._waiter = None
        if not task.done():
            self.healthy = False
            raise EnvTimeoutError(f"the environment's {method} took longer than {timeout:g} s", f"{method}_timeout")
        if task.cancelled():
            self.healthy = False
            raise EnvError(f"the environment's {method} was cancelled from inside", f"{method}_raised")
        if (problem := task.exception()) is not None:
            self.healthy = False
            said = f"the environment's {method} raised: {formatted(problem)}"
            raise EnvError(said, f"{method}_raised") from problem
        return task.result()

    def retire(self) -> None:
        """See :meth:`Worker.retire`."""
        self.healthy = False
        self.kill()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._env is not None and self._closing is None:
            self._closing = asyncio.ensure_future(self._close())

    async def ended(self) -> None:
        """See :meth:`Worker.ended`."""
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def kill(self) -> None:
        """See :meth:`Worker.kill`."""
        if self._task is not None:
            self._task.cancel()

    def _make(self) -> None:
        env = self._spec.make()
        if not all(inspect.iscoroutinefunction(getattr(env, name, None)) for name in ("areset", "astep")):
            raise TypeError(f"{type(env).__name__} has no async areset and astep: run it in a thread or a process")
        if getattr(env, "blocking", False):
            raise TypeError(f"{type(env).__name__} says that its steps block: run it in a thread or a process")
        self._env = env

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._task = None
        _wake(self._waiter)
        if not task.cancelled():
            task.exception()  # mark as seen: nobody waits for the call of an abandoned environment

    def _expect_by(self, timeout: float | None) -> None:
        """Wake who waits for the call when ``timeout`` is up.

        The alarm of an earlier call is left standing, and looks at the deadline of the call in progress when it goes
        off: nearly all calls end in time, and then none of them sets a timer.
        """
        loop = asyncio.get_running_loop()
        self._deadline = math.inf if timeout is None else loop.time() + timeout
        if self._alarm is not None and self._alarm.when() > self._deadline:
            self._alarm.cancel()
            self._alarm = None
        if self._alarm is None and timeout is not None:
            self._alarm = loop.call_at(self._deadline, self._look_at_the_time)

    def _look_at_the_time(self) -> None:
        self._alarm = None
        if self._waiter is None or self._deadline == math.inf:
            return
        loop = asyncio.get_running_loop()
        if self._deadline > loop.time():
            self._alarm = loop.call_at(self._deadline, self._look_at_the_time)
        else:
            _wake(self._waiter)

    async def _close(self) -> None:
        while self._task is not None:
            await asyncio.wait((self._task,))
        try:
            await self._env.aclose()
        except Exception:
            _log.warning("an environment could not be closed", exc_info=True)


async def _without_exit(call: Awaitable[Any]) -> Any:
    """The result of ``call``; its ``sys.exit`` ends the episode, and not the event loop."""
    try:
        return await call
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r:.100})") from error


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Host(Protocol):
    """Where the environment of a :class:`ThreadWorker` is. All but ``kill`` come from the worker's own thread."""

    def __init__(self, spec: EnvSpec) -> None: ...

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``method`` (``make`` comes first); raise :class:`SaidError` for what went wrong elsewhere."""
        ...

    def close(self) -> None:
        """Close the environment, and end what it lives in."""
        ...

    def kill(self) -> None:
        """End a call that is running, where that is possible."""
        ...


class _Local:
    """An environment in the calling thread."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._env: Any = None

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method == "make":
            self._env = self._spec.make()
            return None
        return getattr(self._env, method)(*args, **kwargs)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def kill(self) -> None:
        """A thread cannot be killed."""


class _Remote:
    """An environment in a process, seen from the one thread that talks to it. ``kill`` may come from any thread."""

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._killed = False

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method == "make":
            self._start()
            args = (self._spec,)
        assert self._pipe is not None
        assert self._process is not None
        try:
            self._pipe.send((method, args, kwargs))
            good, result = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(timeout=5)
            raise SaidError(f"its process died with exit code {self._process.exitcode}", "died") from None
        if not good:
            raise SaidError(result, "raised")
        return result

    def close(self) -> None:
        if self._process is None or self._pipe is None:  # it was never made
            return
        self._pipe.close()  # the process reads the end of the pipe as the order to close
        self._process.join(timeout=2)
        self.kill()
        self._process.join()

    def kill(self) -> None:
        self._killed = True
        process = self._process
        if process is None or process.pid is None or process.exitcode is not None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group: what it started dies with it
        except (ProcessLookupError, PermissionError):  # not yet: it is only starting
            process.kill()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_child, args=(theirs,), name="textenvs-env", daemon=True)
        with _starting:
            process.start()
        theirs.close()  # so that its death is the end of the pipe
        self._process = process
        if self._killed:
            self.kill()


class SaidError(Exception):
    """What went wrong in another process, as text, and in one word."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


def _child(pipe: Connection) -> None:
    """The whole life of an environment's process: answer calls until the pipe ends."""
    os.setsid()  # a group of its own, to be killed as one; and Ctrl-C is for the parent alone
    env: Any = None
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            method, args, kwargs = pipe.recv()
            try:
                if method == "make":
                    env = args[0].make()
                    pipe.send((True, None))
                else:
                    pipe.send((True, getattr(env, method)(*args, **kwargs)))
            except ConnectionError:
                raise
            except BaseException as error:
                pipe.send((False, formatted(error)))
    if env is not None:
        env.close()


class ThreadWorker:
    """An environment in a thread of its own, from its making to its end: safe for what is bound to its thread."""

    killable = False
    host: type[Host] = _Local

    def __init__(self, spec: EnvSpec) -> None:
        self.healthy = True
        self._loop = asyncio.get_running_loop()
        self._host = self.host(spec)
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], str, tuple[Any, ...], dict[str, Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._job: asyncio.Future[Any] | None = None
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._retired = False
        threading.Thread(target=self._serve, name="textenvs-env", daemon=True).start()

    @property
    def busy(self) -> bool:
        """See :class:`Worker`."""
        return self._job is not None

    async def call(self, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        """See :meth:`Worker.call`."""
        self._job = job = self._loop.create_future()
        self._jobs.put((job, method, args, kwargs))
        try:
            await asyncio.wait((job,), timeout=timeout)
        except asyncio.CancelledError:
            self.healthy = False
            raise
        if not job.done():
            self.healthy = False
            raise EnvTimeoutError(f"the environment's {method} took longer than {timeout:g} s", f"{method}_timeout")
        problem, result = job.result()
        if problem is not None:
            self.healthy = False
            raise EnvError(f"the environment's {method} failed: {result}", f"{method}_{problem}")
        return result

    def retire(self) -> None:
        """See :meth:`Worker.retire`."""
        self.healthy = False
        if self._retired:
            return
        self._retired = True
        self._jobs.put(None)
        if self.busy:
            self.kill()

    async def ended(self) -> None:
        """See :meth:`Worker.ended`."""
        await asyncio.shield(self._end)

    def kill(self) -> None:
        """See :meth:`Worker.kill`."""
        self._host.kill()

    # ------------------------------------------------------------------ in the thread

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, method, args, kwargs = item
            outcome: tuple[str | None, Any]
            try:
                outcome = (None, self._host.call(method, args, kwargs))
            except SaidError as error:
                outcome = (error.cause, str(error))
            except BaseException as error:  # even SystemExit: an environment must not end the thread that answers
                outcome = ("raised", formatted(error))
            self._post(self._answer, job, outcome)
        try:
            self._host.close()
        except BaseException:
            _log.warning("an environment could not be closed", exc_info=True)
        self._post(self._finish)

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *args)

    def _answer(self, job: asyncio.Future[Any], outcome: tuple[str | None, Any]) -> None:
        self._job = None
        job.set_result(outcome)

    def _finish(self) -> None:
        self._end.set_result(None)


class ProcessWorker(ThreadWorker):
    """An environment in a process of its own, which can be killed; a thread here waits for its answers."""

    killable = True
    host = _Remote


def formatted(error: BaseException) -> str:
    """An exception with its traceback, as text."""
    return "".join(traceback.format_exception(error)).rstrip()
