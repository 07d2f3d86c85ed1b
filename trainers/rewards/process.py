"""A process that answers questions: pickles go in, lines of JSON come out, and whoever waits too long kills it."""

from __future__ import annotations

import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# What the library was imported from, so that a program may import it too.
_ROOT = str(Path(__file__).resolve().parents[2])


class SilentError(Exception):
    """No answer came; ``cause`` is ``timeout`` or ``died``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Process:
    """One process; asked by one thread at a time, killed by any.

    Args:
        program: Its file. It reads pickles behind 8 bytes of length from stdin, and writes each answer as a line of
            JSON to the pipe whose number is its last argument.
        arguments: Those before that.
        environment: Laid over this process's own.
    """

    def __init__(self, program: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._answers, theirs = os.pipe()
        path = os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])
        try:
            # -P: the folder of that program is not a place to import from.
            # A session of its own: what it starts is killed with it, and Ctrl-C is for the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(program), *arguments, str(theirs)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            )
        finally:
            os.close(theirs)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def ask(self, question: Any, timeout_s: float | None) -> dict[str, Any]:
        """Send a question, and wait for its answer.

        Raises:
            SilentError: None came.
        """
        data = pickle.dumps(question)
        assert self._process.stdin is not None
        left = memoryview(len(data).to_bytes(8, "big") + data)
        try:
            while left:  # it waits for questions, so this ends
                left = left[self._process.stdin.write(left) or 0 :]
        except (OSError, ValueError) as error:
            raise SilentError(f"died with exit code {self._exit_code()}", "died") from error
        return self.read(timeout_s)

    def read(self, timeout_s: float | None) -> dict[str, Any]:
        """The next answer; ``None`` waits as long as the process lives.

        Raises:
            SilentError: None came.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    raise SilentError(f"took longer than {timeout_s:g} s", "timeout")
                chunk = os.read(self._answers, 65536)
                if not chunk:
                    raise SilentError(f"died with exit code {self._exit_code()}", "died")
                self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]

    def kill(self) -> None:
        """Kill it, and what it started; from any thread."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and free what is left of it here."""
        self.kill()
        self._process.wait()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=5)
        return None
