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
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).with_name("function_worker.py")
# What the library was imported from, so that the function may import it too.
_ROOT = str(Path(__file__).resolve().parents[2])


class SilentError(Exception):
    """No answer came; ``cause`` is ``timeout`` or ``died``."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Process:
    """One process of ``function_worker.py``; asked by one thread at a time, killed by any.

    Args:
        arguments: Of that program.
    """

    def __init__(self, *arguments: str) -> None:
        self._answers, theirs = os.pipe()
        try:
            # -P: the folder of that program is not a place to import from.
            # A session of its own: what it starts is killed with it, and Ctrl-C is for the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), *arguments, str(theirs)],
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=(theirs,),
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, os.environ.get("PYTHONPATH", "")])},
            )
        finally:
            os.close(theirs)
        self._rest = b""

    def ask(self, question: Any, timeout_s: float) -> dict[str, Any]:
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

    def read(self, timeout_s: float) -> dict[str, Any]:
        """The next answer.

        Raises:
            SilentError: None came.
        """
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
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
