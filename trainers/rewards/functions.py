"""A function of a user's file, computed in processes: one that hangs, crashes or prints fails for its own row alone.

The function is verl's: ``compute_score(data_source, solution_str, ground_truth, extra_info)``, called by these names.
It returns a number, or a mapping with a ``score``; it may be ``async``. A call that takes longer than
it may is killed with its process, and another process is started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_START_S = 120.0  # a file may import large libraries
_PROGRAM = Path(__file__).with_name("function_worker.py")
# What the library was imported from, so that the function may import it too.
_ROOT = str(Path(__file__).resolve().parents[2])


class FunctionError(ValueError):
    """The function cannot be had: no such file, no such function, or its module does not load."""


class ScoreError(RuntimeError):
    """A call failed; ``cause`` is ``raised`` (or returned no finite number), ``timeout`` or ``died``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class FunctionPool:
    """Processes that compute one function; a context manager that ends them.

    Args:
        path: The file with the function.
        name: The function.
        workers: Processes, started when they are first needed.
        timeout_s: Seconds that one call may take. Waiting for a process does not count.

    Raises:
        FunctionError: The function cannot be had; one process is started at once to find out.
    """

    def __init__(self, path: str | Path, name: str = "compute_score", *, workers: int = 1, timeout_s: float = 30.0):
        self.path, self.name, self.timeout_s, self.workers = Path(path).expanduser(), name, timeout_s, workers
        if not self.path.is_file():
            raise FunctionError(f"there is no file {self.path}")
        self._lock = threading.Lock()
        self._all: set[_Process] = set()
        self._idle: list[_Process] = [self._start()]
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="textenvs-score")

    def submit(self, **question: Any) -> Future[float]:
        """Ask for a score; the arguments are the function's. The future raises :class:`ScoreError`."""
        return self._threads.submit(self._ask, question)

    async def score(self, **question: Any) -> float:
        """As :meth:`submit`."""
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

    def _ask(self, question: Mapping[str, Any]) -> float:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is None:
            try:
                process = self._start()
            except FunctionError as error:
                raise ScoreError(str(error), "died") from error
        try:
            answer = process.ask(question, self.timeout_s)
        except ScoreError as error:
            self._end(process)
            raise ScoreError(f"{self.name} {error}", error.cause) from None
        with self._lock:
            self._idle.append(process)
        if "error" in answer:
            raise ScoreError(f"{self.name} failed: {answer['error']}", "raised")
        return float(answer["score"])

    def _start(self) -> _Process:
        process = _Process(self.path, self.name)
        with self._lock:
            self._all.add(process)
        try:
            answer = process.read(_START_S)
        except ScoreError as error:
            answer = {"error": f"its process {error}"}
        if "error" in answer:
            self._end(process)
            raise FunctionError(f"{self.path}: {answer['error']}")
        return process

    def _end(self, process: _Process) -> None:
        process.end()
        with self._lock:
            self._all.discard(process)


class _Process:
    """One process of ``function_worker.py``; asked by one thread at a time, killed by any."""

    def __init__(self, path: Path, name: str) -> None:
        ours, theirs = socket.socketpair()
        self._line = Connection(ours.detach())
        with theirs:
            # -P: the folder of that program is not a place to import from.
            # A session of its own: what it starts is killed with it, and Ctrl-C is for the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(path), name, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what the function prints
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])},
            )

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a question, and read its answer; a :class:`ScoreError` continues a sentence about the process."""
        try:
            self._line.send(dict(question))  # it waits for questions, so this ends
        except OSError as error:
            raise self._died() from error
        return self.read(timeout_s)

    def read(self, timeout_s: float) -> dict[str, Any]:
        try:
            if not self._line.poll(timeout_s):
                raise ScoreError(f"took longer than {timeout_s:g} s", "timeout")
            # JSON: what comes from the process is never unpickled.
            return json.loads(self._line.recv_bytes())  # type: ignore[no-any-return]
        except (EOFError, OSError) as error:
            raise self._died() from error

    def kill(self) -> None:
        """Kill it, and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        self._process.wait()
        self._line.close()

    def _died(self) -> ScoreError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return ScoreError(f"died with exit code {self._process.returncode}", "died")
