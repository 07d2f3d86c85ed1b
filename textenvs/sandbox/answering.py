"""Parts of programs that stay and answer questions (:class:`~.worker.Worker`): the loop, and a process a question.

A program is one text, which may run where this package is not: :func:`program` puts this module's source before it,
under the name by which it imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 65_536
_LONGEST = 64 << 20  # bytes of an answer; more is as if there were none


def program(path: Path) -> str:
    """Return the text of a program that stays, which finds this module wherever it runs."""
    here, name = Path(__file__).read_text("utf-8"), "textenvs.sandbox.answering"
    lines = (
        "import sys, types",
        f"for name in ('textenvs', 'textenvs.sandbox', {name!r}): sys.modules[name] = types.ModuleType(name)",
        f"vars(sys.modules[{name!r}])['__file__'] = ''",
        f"exec(compile({here!r}, 'answering.py', 'exec'), vars(sys.modules[{name!r}]))",
        f"exec(compile({path.read_text('utf-8')!r}, {path.name!r}, 'exec'))",
    )
    return "\n".join(lines)


class Answers:
    """A program's way to answer; what else it prints is lost. Make it before other code is imported or run."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        self._nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(self._nothing, 1)

    def serve(self, answer: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
        """Say that the program is ready, and answer every question until there is none, or the answer is ``None``.

        A question whose answer raises has the answer ``{"error": text}``.
        """
        print("ready", file=self._file, flush=True)
        os.dup2(self._nothing, 2)
        for line in sys.stdin:
            try:
                answered = answer(json.loads(line))
            except Exception as error:
                answered = {"error": message(error)}
            if answered is None:
                break
            print(json.dumps(answered), file=self._file, flush=True)

    def in_a_process(self, answer: Callable[[], Mapping[str, Any]], timeout_s: float) -> dict[str, Any]:
        """Return an answer that is made in a process of its own, so that nothing it does is there for the next.

        ``{"error": text}`` where it raised; ``{"stopped": reason}`` where it did not end in time, or the process ended
        without an answer. Where this program is killed meanwhile, the process ends soon after its time.
        """
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            for fd in (0, self._file.fileno(), reads):
                os.close(fd)
            _answer_and_exit(answer, writes, timeout_s)
        os.close(writes)
        text, reason = _read(reads, time.monotonic() + timeout_s)
        os.close(reads)
        if reason:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if reason == "late":
            return {"stopped": f"it took longer than {timeout_s:g} s"}
        try:
            answered = json.loads(text)
        except (ValueError, RecursionError):
            answered = None
        if isinstance(answered, dict):
            return answered
        code = os.waitstatus_to_exitcode(status)
        ended = f"its process ended with {'signal ' if code < 0 else 'exit code '}{abs(code)}"
        return {"stopped": reason or ended}


def _read(reads: int, deadline: float) -> tuple[bytes, str]:
    """Return what is written until the end, and why it is not whole: ``"late"`` or words, empty where it is."""
    chunks, size = list[bytes](), 0
    while size <= _LONGEST:
        if not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return b"", "late"
        chunk = os.read(reads, _CHUNK)
        if not chunk:
            return b"".join(chunks), ""
        chunks.append(chunk)
        size += len(chunk)
    return b"", "its answer is too long"


def _answer_and_exit(answer: Callable[[], Mapping[str, Any]], writes: int, timeout_s: float) -> None:
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(timeout_s) + 1)
        try:
            answered = answer()
        except Exception as error:
            answered = {"error": message(error)}
        rest = memoryview(json.dumps(answered).encode())
        while rest:
            rest = rest[os.write(writes, rest) :]
    os._exit(0)


def message(error: BaseException) -> str:
    """Return what an error says, in a line of at most 500 characters."""
    return f"{type(error).__name__}: {error}"[:500]
