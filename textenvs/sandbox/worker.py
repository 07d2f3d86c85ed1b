"""A program that stays in a box and answers one question after the other.

For code of a package that cannot be trusted with what it is given, where starting the box and importing the package for
every call would cost seconds. Questions and answers are JSON, one line each: nothing that comes out of the box is
evaluated. Only the main process of the program reads questions and writes answers; it is up to the program to keep
one question from changing the next (a process for each, for example).
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .process import START_S, Command, launch
from .result import SandboxFailure

_CHUNK = 65_536


class WorkerDied(SandboxFailure):
    """The program ended without an answer."""


class Worker:
    """A program in a box, started; :meth:`Sandbox.start <textenvs.sandbox.Sandbox.start>` makes one.

    The program writes the line ``"ready"`` when it can be asked. One thread at a time may use a worker.

    Args:
        command: Starts the box.
        job: What it does there.
        environment: Of the command itself, not of the program.
        max_bytes: Of one answer.

    Raises:
        SandboxFailure: The box could not be made, or the program did not say that it is ready.
    """

    def __init__(
        self, command: Command, job: Mapping[str, Any], environment: Mapping[str, str], *, max_bytes: int
    ) -> None:
        self._max_bytes = max_bytes
        self._held = b""
        self._process, self._lines = launch(command, job, environment, stdin=subprocess.PIPE)
        try:
            ready = self._line(START_S)
        except WorkerDied:
            ready = None
        if ready != "ready":
            self._kill()
            raise SandboxFailure(f"the program in the sandbox does not start: {self._last_words()}")
        # A full pipe would stop the program, and what it complains of is not read from here on.
        assert self._process.stderr is not None
        self._process.stderr.close()

    def ask(self, question: Any, timeout_s: float) -> Any:
        """The program's answer.

        Args:
            question: As JSON.
            timeout_s: Seconds that it may take. After that, the worker is of no more use.

        Raises:
            TimeoutError: There was none in time.
            WorkerDied: The program ended, or answered what is not JSON or too long.
        """
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_s
        text = memoryview(json.dumps(question).encode() + b"\n")
        fd = self._process.stdin.fileno()
        os.set_blocking(fd, False)
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_WRITE)
            while text:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                try:
                    text = text[os.write(fd, text) :]
                except OSError as error:
                    raise WorkerDied(f"the program in the sandbox ended: {error}") from error
        line = self._line(max(0.0, deadline - time.monotonic()))
        if line is None:
            raise TimeoutError
        try:
            return json.loads(line)
        except ValueError as error:
            raise WorkerDied("the program in the sandbox answered what is not JSON") from error

    def close(self) -> None:
        """End the program, and everything in its box; safe to call twice."""
        self._kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        while self._lines:
            os.close(self._lines.popitem()[1])

    def _line(self, timeout_s: float) -> str | None:
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._held:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(fd, _CHUNK)
                self._held += chunk
                if not chunk or len(self._held) > self._max_bytes:
                    raise WorkerDied("the program in the sandbox ended" if not chunk else "its answer is too long")
        line, _, self._held = self._held.partition(b"\n")
        return line.decode("utf-8", "replace")

    def _kill(self) -> None:
        """End the box: its first process dies with the launcher, and the kernel kills what is below it."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        status = os.read(self._lines["status"], 4096).decode("utf-8", "replace")
        failed = next((line.removeprefix("failed ") for line in status.splitlines() if line.startswith("failed ")), "")
        self.close()
        return failed or said or "it ended at once, or took too long"
