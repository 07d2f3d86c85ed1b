"""A function of a user's file, computed in processes: one that hangs, crashes or prints fails for its own row alone.

The function is verl's: ``compute_score(data_source, solution_str, ground_truth, extra_info)``, called by these names.
It returns a number, or a mapping with ``score`` and other numbers; it may be ``async``. A call that takes longer than
it may is killed with its process, and another process is started.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .process import Process, SilentError

_START_S = 120.0  # a file may import large libraries


class FunctionError(ValueError):
    """The function cannot be had: no such file, no such function, or its module does not load."""


class ScoreError(RuntimeError):
    """A call failed; ``cause`` is ``raised`` (or returned no finite number), ``timeout`` or ``died``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Scored:
    """What a call returned: the score, and the other numbers of a mapping."""

    score: float
    more: Mapping[str, float] = field(default_factory=dict)


class FunctionPool:
    """Processes that compute one function; a context manager that ends them.

    Args:
        path: The file with the function.
        name: The function.
        workers: Processes, started when they are first needed.
        timeout_s: Seconds that one call may take. Waiting for a process does not count.

    Raises:
        FunctionError: The function cannot be had; one process is started at once to find out.
        ValueError: ``workers`` or ``timeout_s`` is not positive.
    """

    def __init__(self, path: str | Path, name: str = "compute_score", *, workers: int = 1, timeout_s: float = 30.0):
        if workers < 1 or timeout_s <= 0:
            raise ValueError(f"workers ({workers}) must be at least 1 and timeout_s ({timeout_s}) above 0")
        self.path, self.name, self.timeout_s = Path(path).expanduser(), name, timeout_s
        self.workers = workers
        if not self.path.is_file():
            raise FunctionError(f"there is no file {self.path}")
        self._lock = threading.Lock()
        self._all: set[Process] = set()
        self._idle: list[Process] = [self._start()]
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="textenvs-score")

    def submit(self, **question: Any) -> Future[Scored]:
        """Ask for a score; the arguments are the function's. The future raises :class:`ScoreError`."""
        return self._threads.submit(self._ask, question)

    async def score(self, **question: Any) -> Scored:
        """Likewise, awaitable."""
        return await asyncio.wrap_future(self.submit(**question))

    def close(self) -> None:
        """End the processes; calls that run fail. Safe to call twice."""
        with self._lock:
            self._closed = True
            processes = list(self._all)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        self._threads.shutdown(wait=True)
        for process in processes:
            process.end()

    def __enter__(self) -> FunctionPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------ in the threads

    def _ask(self, question: Mapping[str, Any]) -> Scored:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            try:
                process = self._start()
            except FunctionError as error:
                raise ScoreError(str(error), "died") from error
        try:
            answer = process.ask(dict(question), self.timeout_s)
        except SilentError as error:
            process.end()
            with self._lock:
                self._all.discard(process)
            raise ScoreError(f"{self.name} {error}", error.cause) from None
        with self._lock:
            self._idle.append(process)
        if "error" in answer:
            raise ScoreError(f"{self.name} failed: {answer['error']}", "raised")
        return Scored(answer["score"], answer["more"])

    def _start(self) -> Process:
        process = Process(str(self.path), self.name)
        with self._lock:
            self._all.add(process)
        try:
            answer = process.read(_START_S)
        except SilentError as error:
            answer = {"error": f"its process {error}"}
        if "error" in answer:
            process.end()
            with self._lock:
                self._all.discard(process)
            raise FunctionError(f"{self.path}: {answer['error']}")
        return process
