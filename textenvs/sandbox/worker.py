"""Programs that stay and answer one question after the other, and pools of them.

For what would cost too much to start for every call: a box, a package to import. Questions and answers are JSON, one
line each: nothing that comes back is evaluated. It is up to the program to keep one question from changing the next (a
process for each, for example).
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import selectors
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from . import usage
from .process import CHUNK, LOOK_S, START_S
from .result import SandboxFailure

#: Cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
T = TypeVar("T")


class WorkerDied(SandboxFailure):
    """The program ended without an answer."""


class Worker:
    """A program that was started: it writes the line ``ready``, and then an answer to every question.

    :meth:`Sandbox.start <textenvs.sandbox.Sandbox.start>` makes one in a box. One thread at a time may use a worker.

    Args:
        process: The program, or what starts it, with pipes as its standard streams.
        max_bytes: Of one answer.
        lines: File descriptors of a box's status lines; closed with the worker.
        memory_mb: MiB that the program and all below it may use together, while it works on a question.

    Raises:
        SandboxFailure: The program did not say that it is ready.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        max_bytes: int,
        lines: Mapping[str, int] | None = None,
        memory_mb: int | None = None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self._lines = process, dict(lines or {})
        self._questions, self._answers, self._errors = process.stdin, process.stdout, process.stderr
        self._max_bytes, self._memory_mb = max_bytes, memory_mb
        self._held = b""
        try:
            ready = self._line(time.monotonic() + START_S)
        except (WorkerDied, TimeoutError):
            ready = ""
        if ready != "ready":
            self._kill()
            raise SandboxFailure(f"the program does not start: {self._last_words()}")
        self._errors.close()  # a full pipe would stop the program, and this one is not read from here on

    def ask(self, question: Any, timeout_s: float) -> Any:
        """The program's answer to ``question``; both are JSON.

        Raises:
            TimeoutError: There was none in ``timeout_s``. The worker is of no more use then.
            WorkerDied: The program ended, used too much memory, or answered what is not JSON or too long.
        """
        deadline = time.monotonic() + timeout_s
        text = memoryview(json.dumps(question).encode() + b"\n")
        fd = self._questions.fileno()
        os.set_blocking(fd, False)
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_WRITE)
            while text:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                try:
                    text = text[os.write(fd, text) :]
                except OSError as error:
                    raise WorkerDied(f"the program ended: {error}") from error
        try:
            return json.loads(self._line(deadline))
        except ValueError as error:
            raise WorkerDied("the program answered what is not JSON") from error

    def close(self) -> None:
        """End the program, and everything in its box; safe to call twice."""
        self._kill()
        for stream in (self._questions, self._answers, self._errors):
            with suppress(OSError):
                stream.close()
        while self._lines:
            os.close(self._lines.popitem()[1])

    def _line(self, deadline: float) -> str:
        fd = self._answers.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._held:
                left = deadline - time.monotonic()
                if selector.select(max(0.0, min(left, LOOK_S))):
                    chunk = os.read(fd, CHUNK)
                    self._held += chunk
                    if not chunk or len(self._held) > self._max_bytes:
                        raise WorkerDied("the program ended" if not chunk else "its answer is too long")
                elif left <= LOOK_S:
                    raise TimeoutError
                elif self._memory_mb is not None and usage.exceeds(self.process.pid, self._memory_mb << 20):
                    raise WorkerDied("the program used too much memory")
        line, _, self._held = self._held.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _kill(self) -> None:
        """End its process group; the first process of a box dies with it, and the kernel kills what is below that."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _last_words(self) -> str:
        said = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        status = os.read(self._lines["status"], 4096).decode("utf-8", "replace") if "status" in self._lines else ""
        failed = next((line.removeprefix("failed ") for line in status.splitlines() if line.startswith("failed ")), "")
        self.close()
        return failed or said or "it ended at once, or took too long"


class Turns:
    """How much is done at the same time in one process, and threads to wait in.

    Args:
        size: At most so many at once: ``with turns:``.
        name: Of the threads, which are apart from asyncio's own: a hundred that wait must not hold up everything else.
    """

    def __init__(self, size: int, name: str) -> None:
        self.size, self._name = size, name
        self.forget()
        _all.add(self)

    def __enter__(self) -> None:
        self._turns.acquire()

    def __exit__(self, *error: object) -> None:
        self._turns.release()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What ``work`` returns, which waits, without holding up the event loop."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.size, thread_name_prefix=self._name)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """End what runs."""

    def forget(self) -> None:
        """A forked child has none of the threads, and perhaps a lock that no thread will release."""
        self._lock, self._turns = threading.Lock(), threading.BoundedSemaphore(self.size)
        self._threads: ThreadPoolExecutor | None = None


class Pool(Turns):
    """Workers of one kind, started as they are needed and used again; any thread may ask.

    Args:
        start: Starts one.
        size: How many are asked at the same time at most.
        name: Of the threads of :meth:`in_thread`.
    """

    def __init__(self, start: Callable[[], Worker], size: int, name: str) -> None:
        super().__init__(size, name)
        self._start = start

    def ask(self, question: Any, timeout_s: float) -> Any:
        """The answer of one of the workers.

        Args:
            question: As JSON.
            timeout_s: Seconds from when a worker is free.

        Raises:
            TimeoutError: There was none in time; that worker was ended.
            WorkerDied: A worker that was started for this question ended, or gave no proper answer.
            SandboxFailure: None could be started.
        """
        with self:
            while True:
                with self._lock:
                    worker = self._idle.pop() if self._idle else None
                fresh = worker is None
                if worker is None:
                    worker = self._start()
                    with self._lock:
                        self.workers.add(worker)
                try:
                    answer = worker.ask(question, timeout_s)
                except BaseException as error:
                    worker.close()
                    with self._lock:
                        self.workers.discard(worker)
                    if isinstance(error, WorkerDied) and not fresh:
                        continue  # it may have ended before this question
                    raise
                with self._lock:
                    self._idle.append(worker)
                return answer

    def close(self) -> None:
        """End all workers; the next question starts another."""
        with self._lock:
            ended, self.workers, self._idle = self.workers, set(), []
        for worker in ended:
            worker.close()

    def forget(self) -> None:
        """A forked child shares no worker with its parent: two readers of one pipe would get each other's answers."""
        super().forget()
        self._idle: list[Worker] = []
        #: All that run.
        self.workers: set[Worker] = set()


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for turns in tuple(_all):
        turns.close()


def _forget_after_fork() -> None:
    for turns in tuple(_all):
        turns.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
