"""Workers that host one environment: on the event loop, in a thread, in a process, or in a Ray actor of its own.

A worker owns one environment and serves one call at a time. Whatever goes wrong comes out as :class:`EnvError`, and the
worker is then not ``healthy``. One that is retired while its call still runs is killed (process, actor), cancelled
(coroutine), or left behind (thread).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from textenvs.event_loop import settle, wait_for

from ..trajectory import EpisodeError, Status

_log = logging.getLogger(__name__)
_starting = threading.Lock()  # neither multiprocessing nor Ray is made for threads that start some at once


class EnvError(EpisodeError):
    """An environment raised, died, or broke the contract; ``cause`` names the method, too: ``step_died``."""

    status = Status.ERROR_ENV


class EnvTimeoutError(EnvError):
    """An environment took longer than it may."""

    status = Status.TRUNCATED_TIME


@dataclass(frozen=True)
class EnvSpec:
    """Recipe of an environment; picklable when its parts are."""

    #: An id for ``textenvs.make``, or a callable that returns an environment (for processes: importable).
    target: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Any:
        if callable(self.target):
            return self.target(**self.kwargs)
        import textenvs

        return textenvs.make(self.target, **self.kwargs)


class Worker(ABC):
    """One environment, wherever it lives. Used from one event loop."""

    killable = True  # whether `kill` ends a call that is running

    def __init__(self) -> None:
        self.healthy = True  # its environment may be used for another call
        self._job: asyncio.Future[Any] | None = None  # the call that runs, or the last one

    @property
    def busy(self) -> bool:
        """A call is running, perhaps an abandoned one."""
        return self._job is not None and not self._job.done()

    async def call(self, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``method`` (``make`` first, with an :class:`EnvSpec`), for ``timeout`` seconds; raises EnvError."""
        healthy, self.healthy = self.healthy, False  # unless it returns
        # The call is a task of its own, so that a hook that swallows cancellation cannot block its caller.
        self._job = job = self._begin(method, args, kwargs)
        job.add_done_callback(lambda job: job.cancelled() or job.exception())  # an abandoned call has no waiter
        await asyncio.wait((job,), timeout=timeout)
        if not job.done():
            raise EnvTimeoutError(f"the environment's {method} took longer than {timeout:g} s", f"{method}_timeout")
        if job.cancelled():
            raise EnvError(f"the environment's {method} was cancelled from inside", f"{method}_raised")
        if (problem := job.exception()) is not None:
            message, cause = (
                (str(problem), problem.cause) if isinstance(problem, EnvError) else (_traceback_of(problem), "raised")
            )
            raise EnvError(f"the environment's {method} failed: {message}", f"{method}_{cause}") from problem
        self.healthy = healthy
        return job.result()

    @abstractmethod
    def _begin(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]: ...

    @abstractmethod
    def retire(self) -> None:
        """Close the environment without waiting for it; kill or abandon it where it does not answer."""

    @abstractmethod
    async def ended(self) -> None:
        """Return when the worker has ended completely; never, where it was abandoned and cannot be killed."""

    @abstractmethod
    def kill(self) -> None:
        """End a call that is running, where that is possible."""


def _traceback_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


class InlineWorker(Worker):
    """An environment with ``areset``/``astep`` on the event loop itself: the cheapest, for hooks that never block."""

    def __init__(self) -> None:
        super().__init__()
        self.env: Any = None  # the environment itself
        self._closing: asyncio.Task[None] | None = None

    def _begin(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._call(method, args, kwargs))

    async def _call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if method in ("snapshot", "restore", "conversation_score", "privileged"):  # they have no async twin
                return await settle(getattr(self.env, method)(*args))
            if method != "make":
                return await getattr(self.env, f"a{method}")(*args, **kwargs)
            env = args[0].make()
        except SystemExit as error:  # it ends the episode, and not the event loop
            raise RuntimeError(f"it called sys.exit({error.code!r:.100})") from error
        if not all(inspect.iscoroutinefunction(getattr(env, name, None)) for name in ("areset", "astep")):
            raise TypeError(f"{type(env).__name__} has no async areset and astep: run it in a thread or a process")
        if getattr(env, "blocking", False):
            raise TypeError(f"{type(env).__name__} says that its steps block: run it in a thread or a process")
        self.env = env
        return None

    def retire(self) -> None:
        self.healthy = False
        self.kill()
        if self.env is not None and self._closing is None:
            self._closing = asyncio.ensure_future(self._close())

    async def ended(self) -> None:
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def kill(self) -> None:
        if self._job is not None:
            self._job.cancel()

    async def _close(self) -> None:
        if self._job is not None:
            await asyncio.wait((self._job,))
        try:
            await self.env.aclose()
        except Exception:
            _log.warning("an environment could not be closed", exc_info=True)


class Host:
    """Host of a :class:`ThreadWorker`'s environment: its thread. All methods but ``kill`` are called there."""

    killable = False
    env: Any = None

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``method``; raises :class:`EnvError`, with a cause alone, for what went wrong elsewhere."""
        if method != "make":
            return wait_for(getattr(self.env, method)(*args, **kwargs))
        self.env = args[0].make()
        return None

    def close(self) -> None:
        """Close the environment, and end what it lives in."""
        if self.env is not None:
            self.env.close()

    def kill(self) -> None:
        """End a call that is running, where that is possible. Called from any thread."""


class ThreadWorker(Worker):
    """A thread from an environment's making to its end: it holds the environment, or waits for its remote host."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.killable = host.killable
        self._loop = asyncio.get_running_loop()
        self._host = host
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], str, tuple[Any, ...], dict[str, Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._retired = False
        threading.Thread(target=self._serve, name="textenvs-env", daemon=True).start()

    def _begin(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Future[Any]:
        job = self._loop.create_future()
        self._jobs.put((job, method, args, kwargs))
        return job

    def retire(self) -> None:
        self.healthy = False
        if self._retired:
            return
        self._retired = True
        self._jobs.put(None)
        if self.busy:
            self.kill()

    async def ended(self) -> None:
        await asyncio.shield(self._end)

    def kill(self) -> None:
        self._host.kill()

    # ------------------------------------------------------------------ in the thread

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, method, args, kwargs = item
            try:
                self._post(job.set_result, self._host.call(method, args, kwargs))
            except EnvError as error:
                self._post(job.set_exception, error)
            except BaseException as error:  # even SystemExit: an environment must not end the thread that answers
                self._post(job.set_exception, EnvError(_traceback_of(error), "raised"))
        try:
            self._host.close()
        except BaseException:
            _log.warning("an environment could not be closed", exc_info=True)
        self._post(self._end.set_result, None)

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
            self._loop.call_soon_threadsafe(function, *args)


class ProcessHost(Host):
    """An environment in a process of its own, which can be killed."""

    killable = True

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._killed = False

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method == "make":
            self._start()
        assert self._pipe is not None
        assert self._process is not None
        try:
            self._pipe.send((method, args, kwargs))
            return _result(*self._pipe.recv())
        except (EOFError, ConnectionError):
            self._process.join(timeout=5)
            raise EnvError(f"its process died with exit code {self._process.exitcode}", "died") from None

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
        self._pipe, child_pipe = context.Pipe()
        process = context.Process(target=_child, args=(child_pipe,), name="textenvs-env", daemon=True)
        with _starting:
            process.start()
        child_pipe.close()  # so that its death is the end of the pipe
        self._process = process
        if self._killed:
            self.kill()


class _Remote(Host):
    """Host of the environment inside the process or the actor."""

    def answer(self, *call: Any) -> tuple[bool, Any]:
        try:
            return True, self.call(*call)
        except BaseException as error:  # even SystemExit, or it would end without an error
            return False, _traceback_of(error)


def _result(good: bool, result: Any) -> Any:
    if not good:
        raise EnvError(result, "raised")
    return result


def _child(pipe: Connection) -> None:
    """Run an environment's process: answer calls until the pipe ends."""
    os.setsid()  # a group of its own, to be killed as one; and Ctrl-C is for the parent alone
    host = _Remote()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            answer = host.answer(*pipe.recv())
            try:
                pipe.send(answer)
            except ConnectionError:
                raise
            except Exception as error:  # it cannot be pickled
                pipe.send((False, _traceback_of(error)))
    host.close()


_CLOSE_S = 2.0
# Actors mostly wait, so they take no CPU from what Ray hands out.
_options: Callable[[], Mapping[str, Any]] = lambda: {"num_cpus": 0}  # noqa: E731


@contextlib.contextmanager
def placed(options: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Make the actors inside with these options of Ray (a placement group, and what they take of it)."""
    global _options
    before, _options = _options, options
    try:
        yield
    finally:
        _options = before


class RayHost(Host):
    """An environment in a Ray actor, on any machine of a cluster.

    Without Ray here, one is started, or joined if ``RAY_ADDRESS`` names a cluster; environments must be importable
    there.
    """

    killable = True

    def __init__(self) -> None:
        self._actor: Any = None
        self._killed = False

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ray = _ray()
        if method == "make":
            self._actor = ray.remote(max_restarts=0, **_options())(_Remote).remote()
            if self._killed:
                self.kill()
        try:
            return _result(*ray.get(self._actor.answer.remote(method, args, kwargs)))
        except ray.exceptions.RayActorError as error:
            raise EnvError(f"its Ray actor died: {error}", "died") from None
        except (ray.exceptions.RayError, TypeError) as error:  # its answer, or its spec, cannot be sent
            raise EnvError(_traceback_of(error), "raised") from None

    def close(self) -> None:
        if self._actor is None:  # it was never made
            return
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        self._killed = True
        if self._actor is not None:
            ray = _ray()
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self._actor, no_restart=True)


def _ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise ImportError("environments on Ray need Ray: pip install 'textenvs[ray]'") from error
    with _starting:
        if not ray.is_initialized():
            # Never whatever Ray happens to run on this machine: its end would be the end of this process.
            address = os.environ.get("RAY_ADDRESS") or "local"
            ray.init(address, logging_level=logging.WARNING, log_to_driver=False)
    return ray
