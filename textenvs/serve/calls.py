"""How the environments of a server are called: under a deadline, plain hooks in a thread, coroutines on the event loop.

A plain hook may compute for long, and the other sessions must not wait for it. What a hook leaves to be awaited is
awaited on the loop; where the environment blocks (``env.blocking``), in the thread, too.

What goes wrong becomes a :class:`~textenvs.serve.protocol.Refusal`. The text of an exception that is not meant for
clients may have anything in it, so only its class crosses, and the log has the rest.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium

from ..env import EnvironmentFailure, TextEnv
from ..event_loop import settle, wait_for
from .protocol import ERRORS, Refusal
from .threads import Threads

_LOG = logging.getLogger("textenvs.serve")
#: How long an environment has to close.
CLOSE_S = 10.0


class StillAtWork(Refusal):
    """The call is in a thread, which cannot be stopped: nobody can say what its environment is at."""


@dataclass
class Played:
    """An environment, and the last call of it in a thread."""

    env: TextEnv[Any]
    thread: asyncio.Future[Any] | None = None


class Calls:
    """The calls of one host; all on one event loop.

    Args:
        threads: How many environments that block may be at work at a time.
        step_timeout_s: An environment that takes longer over a request has failed it.

    Raises:
        ValueError: A number is not above 0.
    """

    def __init__(self, threads: int, step_timeout_s: float) -> None:
        if threads < 1 or not step_timeout_s > 0:
            raise ValueError(f"threads and step_timeout_s must be above 0, not {threads} and {step_timeout_s}")
        self.step_timeout_s = step_timeout_s
        self.threads = Threads(threads)
        self._closing: set[asyncio.Task[None]] = set()
        self._ending = False

    def deadline(self) -> float:
        """Until when a request of now has time, by the loop's clock."""
        return asyncio.get_running_loop().time() + self.step_timeout_s

    # ------------------------------------------------------------------ anything

    async def begin(self, call: Callable[[], Any], deadline: float) -> asyncio.Future[Any]:
        """Have ``call`` carried out in a thread; returns when it has begun.

        Raises:
            Refusal: No thread was free in time; nothing was done.
        """
        try:
            if self.threads.all_stuck:
                raise TimeoutError
            async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                return await self.threads.begin(call)
        except TimeoutError:
            raise Refusal(
                "overloaded",
                f"all {self.threads.most} threads are taken, {self.threads.stuck} of them by calls that do not end",
                retry_after_s=1.0,
            ) from None

    async def result(self, begun: asyncio.Future[Any], deadline: float, what: str, *, lost: bool = True) -> Any:
        """What has begun gives, if it does in time; it goes on if not.

        Args:
            begun: A call in a thread, or a task.
            deadline: Until when.
            what: It is, for the error.
            lost: Whether nobody will ask for it again: a thread that is late is stuck.

        Raises:
            Refusal: It is late; a :class:`StillAtWork` where it is lost.
        """
        left = None if deadline == math.inf else max(0.0, deadline - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({begun}, timeout=left)
        if done:
            return begun.result()
        late = f"{what} took longer than {self.step_timeout_s:g} s"
        if not lost:
            raise Refusal("timeout", f"{late}; it goes on, so ask again later")
        self.threads.late(begun)
        raise StillAtWork("timeout", late)

    # ------------------------------------------------------------------ environments

    async def act(self, method: str, played: Played, deadline: float, *args: Any, **kwargs: Any) -> Any:
        """``reset`` or ``step``.

        Raises:
            Refusal: Whatever the environment raised, or it is late.
        """
        env = played.env
        begin: Callable[..., Any]
        whole: AbstractContextManager[None]
        if env.blocking:
            begin, whole = getattr(env, method), nullcontext()
        elif method == "reset":
            begin, whole = env._begin_episode, env._opened_or_not()
        else:
            begin, whole = env._play, env._played_or_not()
        hook = env.opening if method == "reset" else env.respond
        try:
            with whole:
                return await self._within(
                    deadline, played, method, partial(begin, *args, **kwargs), inspect.iscoroutinefunction(hook)
                )
        except gymnasium.error.InvalidAction as error:
            raise Refusal("invalid_action", str(error)) from error
        except gymnasium.error.ResetNeeded as error:
            raise Refusal("reset_needed", str(error)) from error
        except (ValueError, TypeError, gymnasium.error.Error) as error:
            if method == "reset":  # it speaks of the seed and the options that the client gave
                raise Refusal("refused_reset", str(error), exception=_known_class(error)) from error
            raise logged(error, f"{type(env).__name__}.{method}") from error
        except Refusal:
            raise
        except Exception as error:
            raise logged(error, f"{type(env).__name__}.{method}") from error

    async def ask(self, hook: str, played: Played, *args: Any) -> Any:
        """What a hook gives that changes nothing.

        Raises:
            Refusal: As of :meth:`act`, or the environment does not have the hook.
        """
        env = played.env
        call = getattr(env, hook)
        try:
            return await self._within(
                self.deadline(), played, hook, partial(call, *args), inspect.iscoroutinefunction(call)
            )
        except NotImplementedError as error:
            raise Refusal("forbidden", str(error), exception="NotImplementedError") from error
        except Refusal:
            raise
        except Exception as error:
            raise logged(error, f"{type(env).__name__}.{hook}") from error

    async def _within(
        self, deadline: float, played: Played, what: str, call: Callable[[], Any], asynchronous: bool
    ) -> Any:
        """The call's result, awaited; ``asynchronous`` where the call itself does nothing yet."""
        env = played.env
        name = f"{type(env).__name__}.{what}"
        clock: asyncio.Timeout | None = None
        try:
            if env.blocking:
                played.thread = await self.begin(lambda: wait_for(call()), deadline)
                return await self.result(played.thread, deadline, name)
            if asynchronous:
                begun = call()
            else:
                played.thread = await self.begin(call, deadline)
                begun = await self.result(played.thread, deadline, name)
            async with asyncio.timeout_at(deadline) as clock:
                return await settle(begun)
        except EnvironmentFailure as error:
            raise Refusal("environment_failure", error.reason, stop=error.stop) from error
        except StillAtWork as error:
            raise StillAtWork("timeout", f"{error}; the session is lost") from error
        except TimeoutError as error:
            if clock is None or not clock.expired():  # the environment's own
                raise logged(error, name) from error
            late = f"{name} took longer than {self.step_timeout_s:g} s; the episode is as it was before"
            raise Refusal("timeout", late) from error

    # ------------------------------------------------------------------ closing

    def close_fork(self, played: Played) -> None:
        """Close what a session had, where a fork holds something of its own: a running episode."""
        env = played.env
        if (type(env).close, type(env).aclose) != (TextEnv.close, TextEnv.aclose):
            self.close_soon(env, after=played.thread)

    def close_soon(self, env: TextEnv[Any], *, after: asyncio.Future[Any] | None = None, beyond: bool = False) -> None:
        """Close an environment, without waiting for it.

        Args:
            env: The environment.
            after: Once this is done with it.
            beyond: In a thread beyond those of the host.
        """
        closing = asyncio.create_task(self._close_env(env, after, beyond))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_env(self, env: TextEnv[Any], after: asyncio.Future[Any] | None, beyond: bool) -> None:
        name = f"{type(env).__name__}.close"
        if after is not None and not after.done():
            await asyncio.wait({after})
        try:
            if env.blocking:
                begun = await self.threads.begin(env.close, beyond=beyond or self._ending)
                await self.result(begun, asyncio.get_running_loop().time() + CLOSE_S, name)
            else:
                async with asyncio.timeout(CLOSE_S):
                    await env.aclose()
        except (StillAtWork, TimeoutError):
            _LOG.error("%s took longer than %g s", name, CLOSE_S)
        except Exception:
            _LOG.exception("%s raised", name)

    def end(self) -> None:
        """From now on what is closed waits for no thread."""
        self._ending = True

    async def close(self) -> None:
        """Wait for what is being closed, and let the threads go; what hangs is left to the end of the process."""
        await ended(set(self._closing))
        self.threads.close()


async def ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait for tasks, but not for ever."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=CLOSE_S + 1.0)
        for task in late:
            task.cancel()


def seen(work: asyncio.Task[Any]) -> None:
    """Whoever waits for a task hears of its error; when nobody does any more, that is nothing to warn of."""
    if not work.cancelled():
        work.exception()


def logged(error: Exception, where: str) -> Refusal:
    """What an exception becomes that a client shall not read."""
    number = secrets.token_hex(4)
    _LOG.error("error %s in %s", number, where, exc_info=error)
    return Refusal(
        "environment_error",
        f"{where} raised {type(error).__name__}; the server's log has it as error {number}",
        exception=_known_class(error),
    )


def _known_class(error: Exception) -> str | None:
    """The nearest class of an error that a client knows, too."""
    for kind in type(error).__mro__:
        if kind.__name__ in ERRORS and ERRORS[kind.__name__] is kind:
            return kind.__name__
    return None
