"""One background event loop, for asynchronous hooks under the synchronous interface; and calls in threads, from a loop.

Waiting happens on a loop in a thread of its own: it works inside a running loop too (a notebook), and it is always the
same loop, because HTTP clients are bound to theirs. Nothing is started before the first awaitable comes.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_lock = threading.Lock()


def submit(awaitable: Awaitable[T]) -> Future[T]:
    """Start ``awaitable`` on the background loop, for a caller that will wait for its result.

    An asynchronous hook that calls a synchronous method would wait for itself here, and never end: ``RuntimeError``.
    """
    if threading.current_thread() is _thread:
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise RuntimeError(
            "a synchronous method was called from an asynchronous hook, where waiting would never end; "
            "await its twin there: areset, astep or aclose"
        )
    return asyncio.run_coroutine_threadsafe(settle(awaitable), _running_loop())


def wait_for(value: T | Awaitable[T]) -> T:
    """``value`` itself, or what it resolves to if it is awaitable; Ctrl-C cancels what is waited for."""
    if not inspect.isawaitable(value):
        return value
    future = submit(value)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def settle(value: T | Awaitable[T]) -> T:
    """:func:`wait_for` for coroutines: awaited on the caller's own loop."""
    return await value if inspect.isawaitable(value) else value


def discard(value: Any) -> None:
    """Close a coroutine that nothing will await, with those among its arguments: Python would warn of each."""
    if not inspect.iscoroutine(value):
        return
    not_started = inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    arguments = [*inspect.getcoroutinelocals(value).values()] if not_started else []
    value.close()
    for argument in arguments:
        discard(argument)


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """All results; if one raises, or this is cancelled, the others are cancelled, and none is left running."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def in_new_thread(call: Callable[[], Any], ended: Callable[[], None] | None = None) -> asyncio.Future[Any]:
    """Run ``call`` in a thread of its own, with the caller's context variables; shield the result.

    ``ended`` is called on the event loop when it is over.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    result: asyncio.Future[Any] = loop.create_future()
    result.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if nothing waits

    def tell(value: Any, error: Exception | None) -> None:
        if ended is not None:
            ended()
        if result.done():  # the loop is ending
            discard(value)
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def work() -> None:
        value, error = context.run(_outcome, call)
        try:
            loop.call_soon_threadsafe(tell, value, error)
        except RuntimeError:  # the loop is closed
            discard(value)

    threading.Thread(target=work, name="textenvs-hook", daemon=True).start()
    return result


async def run_in_thread(call: Callable[[], T]) -> T:
    """Await the result of ``call`` in a thread of its own; cancelled, the call continues to its end."""
    result: T = await asyncio.shield(in_new_thread(call))
    return result


async def finish_in_thread(call: Callable[[], T]) -> T:
    """Await the result of ``call`` in a thread of its own; cancelled, wait for its end all the same, and then raise."""
    running = in_new_thread(call)
    try:
        result: T = await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
    return result


def _outcome(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        # A future cannot hold StopIteration, and SystemExit of a hook must not end the event loop.
        wrapped = RuntimeError(f"{type(error).__name__} was raised")
        wrapped.__cause__ = error
        return None, wrapped


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None or not _thread.is_alive():  # SystemExit in a callback ends the thread
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="textenvs-async-hooks", daemon=True)
            _thread.start()
        return _loop


def _forget_after_fork() -> None:
    """Reset the loop in a forked child, which has no thread and may hold a lock that nothing releases."""
    global _loop, _thread, _lock
    _loop, _thread, _lock = None, None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
