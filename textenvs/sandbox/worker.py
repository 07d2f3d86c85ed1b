"""Long-lived programs that answer one question after the other, and pools of them.

Questions and answers are JSON, one line each: nothing that comes back is evaluated. It is up to the program to keep one
question from changing the next (a process for each, for example).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import LifoQueue
from typing import Any, TypeVar

from . import usage
from .process import CHUNK, LOOK_S, START_S
from .result import SandboxFailure

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
T = TypeVar("T")


class WorkerDied(SandboxFailure):
    """The program ended without an answer."""


class WorkerTooLarge(WorkerDied):
    """The program and what it started used too much memory."""


class Worker:
    """A program that was started: it writes the line ``ready``, and then an answer to every question.

    :meth:`Sandbox.start <textenvs.sandbox.Sandbox.start>` makes one in a box. One thread at a time may use a worker.
    ``process`` (the program, or what starts it) has pipes as its standard streams; ``max_bytes`` are of one answer,
    ``lines`` a box's status lines. The program and all below it may use ``memory_mb`` MiB while it works on a question,
    and take ``start_s`` seconds until it is ready.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        max_bytes: int,
        lines: Mapping[str, int] | None = None,
        memory_mb: int | None = None,
        start_s: float = START_S,
    ) -> None:
        assert process.stdin and process.stdout and process.stderr  # noqa: PT018
        self.process, self._lines = process, dict(lines or {})
        self._questions, self._answers, self._errors = process.stdin, process.stdout, process.stderr
        self._max_bytes, self._memory_mb = max_bytes, memory_mb
        self._held = b""
        try:
            ready, problem = self._line(time.monotonic() + start_s), "it does not say that it is ready"
        except (WorkerDied, TimeoutError) as error:
            ready, problem = "", str(error) or f"it took longer than {start_s:g} s"
        if ready != "ready":
            self.kill()
            raise SandboxFailure(f"the program does not start: {self._last_words() or problem}")
        self._errors.close()  # a full pipe would stop the program, and this one is not read from here on

    def ask(self, question: Any, timeout_s: float) -> Any:
        """Return the program's answer to ``question``; both are JSON. The worker is unusable after a TimeoutError."""
        deadline = time.monotonic() + timeout_s
        self._send(json.dumps(question).encode() + b"\n", deadline)
        try:
            return json.loads(self._line(deadline))
        except ValueError as error:
            raise WorkerDied("the program answered what is not JSON") from error

    def close(self) -> None:
        self.kill()
        for stream in (self._questions, self._answers, self._errors):
            with suppress(OSError):
                stream.close()
        while self._lines:
            os.close(self._lines.popitem()[1])

    def _send(self, content: bytes, deadline: float) -> None:
        rest = memoryview(content)
        fd = self._questions.fileno()
        os.set_blocking(fd, False)
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        while rest:
            if not poll.poll(1000 * max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            try:
                rest = rest[os.write(fd, rest) :]
            except OSError as error:
                raise WorkerDied(self._ended()) from error

    def _chunks(self, deadline: float) -> Iterator[bytes]:
        """Yield what the program writes, as it comes; the program is held to its memory meanwhile."""
        fd = self._answers.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            remaining = deadline - time.monotonic()
            if poll.poll(1000 * max(0.0, min(remaining, LOOK_S))):
                chunk = os.read(fd, CHUNK)
                if not chunk:
                    raise WorkerDied(self._ended())
                yield chunk
            elif remaining <= LOOK_S:
                raise TimeoutError
            elif self._memory_mb is not None and usage.exceeds(self.process.pid, self._memory_mb << 20):
                raise WorkerTooLarge("the program used too much memory")

    def _line(self, deadline: float) -> str:
        chunks = self._chunks(deadline)
        while b"\n" not in self._held:
            self._held += next(chunks)
            if len(self._held) > self._max_bytes:
                raise WorkerDied("its answer is too long")
        line, _, self._held = self._held.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what it started
        return f"the program ended with exit code {self.process.returncode}"

    def kill(self) -> None:
        """End its process group; the first process of a box dies with it, and the kernel kills what is below that.

        May be called from any thread: a thread that waits for an answer gets ``WorkerDied``.
        """
        if self.process.returncode is None:  # also where it has ended: what it started may be alive
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _last_words(self) -> str:
        last_line = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        status = os.read(self._lines["status"], 4096).decode("utf-8", "replace") if "status" in self._lines else ""
        failed = next((line.removeprefix("failed ") for line in status.splitlines() if line.startswith("failed ")), "")
        self.close()
        return failed or last_line


def threads(size: int, name: str) -> ThreadPoolExecutor:
    """Return threads to wait in, apart from asyncio's own, which they would block."""
    return _threads(size, name, os.getpid())


@functools.cache
def _threads(size: int, name: str, pid: int) -> ThreadPoolExecutor:  # a forked child has none of its parent's
    return ThreadPoolExecutor(size, thread_name_prefix=name)


class Pool:
    """A pool of at most ``size`` workers, started on demand and reused; any thread may ask."""

    def __init__(self, start: Callable[[], Worker], size: int, name: str) -> None:
        self._start, self._size, self._name = start, size, name
        self._closed = False
        self.renew()
        _pools.add(self)

    def ask(self, question: Any, timeout_s: float) -> Any:
        """Return the answer of one of the workers; ``timeout_s`` begin when one is free. Errors are those of Worker."""
        slots = self.slots
        worker = slots.get()
        try:
            if worker is not None:
                with suppress(WorkerDied):  # it may have ended before this question
                    return worker.ask(question, timeout_s)
                worker.close()
                worker = None
            if not self._closed:
                worker = self._start()
                with self._lock:
                    self._started.add(worker)
            if worker is None or self._closed:
                raise WorkerDied("the pool of programs is closed")
            return worker.ask(question, timeout_s)
        except BaseException:
            if worker is not None:
                worker.close()
            worker = None
            raise
        finally:
            slots.put(worker)

    def renew(self) -> None:
        """Start over without workers. A forked child must not share one: its parent would get the child's answers."""
        self._lock = threading.Lock()
        self._started: weakref.WeakSet[Worker] = weakref.WeakSet()
        #: The idle workers; ``None`` for one that is not started.
        self.slots: LifoQueue[Worker | None] = LifoQueue()
        for _ in range(self._size):
            self.slots.put(None)

    def close(self) -> None:
        """End all workers, busy ones included; safe to call twice."""
        with self._lock:
            self._closed, started = True, tuple(self._started)
        for worker in started:
            worker.kill()
        for idle in [self.slots.get() for _ in range(self._size)]:
            if idle is not None:
                idle.close()
            self.slots.put(None)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads(self._size, self._name), work)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for worker in (worker for pool in tuple(_pools) for worker in pool.slots.queue):
        if worker is not None:
            worker.close()


def _renew_after_fork() -> None:
    for pool in tuple(_pools):
        pool.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)
