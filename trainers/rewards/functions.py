"""A user function computed in processes: a call that hangs, crashes or prints affects its own row alone.

The function is verl's: ``compute_score(data_source, solution_str, ground_truth, extra_info)``, called by these names,
plain or ``async``. It returns a number, or a mapping with a ``score``. A call that takes too long is killed with its
process, and another process is started.
"""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from textenvs.sandbox.result import SandboxFailure
from textenvs.sandbox.worker import Pool, Worker

from ..config.reward_model import RewardFunctionSection

_START_S = 120.0  # a file may import large libraries
_PROGRAM = Path(__file__).with_name("function_worker.py")
# The folder of the library, so that the function can import it too.
_ROOT = str(Path(__file__).resolve().parents[2])


class FunctionError(ValueError):
    """The function cannot be loaded: no such file, no such function, or its module does not load."""


class ScoreError(RuntimeError):
    """A call failed; ``cause`` is ``raised`` (or returned no finite number), ``timeout`` or ``died``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class FunctionPool(AbstractContextManager["FunctionPool"]):
    """Processes that compute one function; a context manager that ends them.

    The timeout is for one call, without the waiting for a process. FunctionError: the function cannot be loaded; one
    process is started at once to check it.
    """

    def __init__(self, section: RewardFunctionSection) -> None:
        assert section.path is not None
        self.section, self.path, workers = section, Path(section.path).expanduser(), section.workers
        if not self.path.is_file():
            raise FunctionError(f"there is no file {self.path}")
        self._starting: set[subprocess.Popen[bytes]] = set()
        self._pool = Pool(self._start, workers, "textenvs-score")
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="textenvs-score")
        try:
            problem = self._pool.ask(None, _START_S).get("error")
        except (SandboxFailure, TimeoutError) as error:
            problem = error
        if problem is not None:
            self.close()
            raise FunctionError(f"{self.path}: {problem}")

    def submit(self, **question: Any) -> Future[float]:
        """Ask for a score; the arguments are the function's. The future raises :class:`ScoreError`."""
        return self._threads.submit(self._ask, question)

    async def score(self, **question: Any) -> float:
        return await asyncio.wrap_future(self.submit(**question))

    def close(self) -> None:
        """End the processes; calls that run fail. Safe to call twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in tuple(self._starting):
            process.kill()
        self._pool.close()
        self._threads.shutdown(wait=True)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, question: Mapping[str, Any]) -> float:
        name = self.section.name
        try:
            # A row may hold values without a JSON form. Answers are JSON, and never unpickled.
            answer = self._pool.ask(base64.b64encode(pickle.dumps(question)).decode(), self.section.timeout_s)
        except TimeoutError:
            raise ScoreError(f"{name} took longer than {self.section.timeout_s:g} s", "timeout") from None
        except SandboxFailure as error:
            raise ScoreError(f"{name} died: {error}", "died") from error
        if "error" in answer:
            raise ScoreError(f"{name} failed: {answer['error']}", "raised")
        return float(answer["score"])

    def _start(self) -> Worker:
        prints, pipe = os.dup(2), subprocess.PIPE  # where the function prints is where this process reports errors
        try:
            # -P: do not import from the program's folder.
            # In its own session: its children are killed with it, and Ctrl-C reaches the parent alone.
            process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(self.path), self.section.name, str(prints)],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                bufsize=0,
                pass_fds=(prints,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])},
            )
        finally:
            os.close(prints)
        self._starting.add(process)
        try:
            return Worker(process, max_bytes=1 << 20, start_s=_START_S)
        finally:
            self._starting.discard(process)
