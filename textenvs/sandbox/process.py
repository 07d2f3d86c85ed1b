"""One run: start the box, read what comes out of it, hold it to its limits, and say how it ended.

The run belongs to the thread that calls :meth:`Run.finish`; only :meth:`Run.cancel` may come from another. What ends a
run from outside is always one signal, to process 1 of the box: the kernel then kills the rest.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from . import usage
from .launch import launch
from .result import Limits, SandboxFailure, SandboxResult, Status

#: Seconds that making the box may take; no code runs meanwhile.
START_S = 60.0
#: Seconds that a killed box may take to be gone.
_END_S = 5.0
#: Seconds between two looks at the memory of all processes.
LOOK_S = 0.1
CHUNK = 65_536


class Run:
    """A run, from its start to its end; ``limits`` on wall time, output and memory of all processes are kept here."""

    def __init__(self, job: dict[str, Any], limits: Limits) -> None:
        self.job, self._limits = job, limits
        self._lock = threading.Lock()
        self._cancelled = False
        self._process: subprocess.Popen[bytes] | None = None  # from the start of the box to its end
        self._init: int | None = None  # a file descriptor (pidfd) of process 1
        self._init_pid: int | None = None
        self._read = {"stdout": b"", "stderr": b"", "status": b"", "pid": b""}
        self._started = False  # the code, not only the box
        self._stopped: str | None = None  # which limit of this side ended it
        self._deadline = 0.0

    def cancel(self) -> None:
        """End the run, or see that it does not begin, from any thread; :meth:`finish` then returns soon."""
        self._cancelled = True
        self._kill()

    def finish(self) -> SandboxResult:
        """Start, and wait for the end; a SandboxFailure where the box could not be made."""
        with self._lock:
            if self._cancelled:
                return SandboxResult("killed", "", "", None, "Cancelled before it began.")
            self._process, lines = launch(self.job)
        try:
            self._watch(self._process, lines)
        finally:
            self._clean_up(self._process, lines)
        return self._conclude()

    # ------------------------------------------------------------------ watching

    def _watch(self, process: subprocess.Popen[bytes], lines: Mapping[str, int]) -> None:
        """Read everything until the box is gone, and end it at a limit."""
        assert process.stdout is not None
        assert process.stderr is not None
        self._deadline, look = time.monotonic() + START_S, 0.0
        with selectors.DefaultSelector() as selector:
            for name, fd in {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno(), **lines}.items():
                selector.register(fd, selectors.EVENT_READ, name)
            while selector.get_map():
                now = time.monotonic()
                if now >= self._deadline:
                    if self._stopped is not None:
                        break  # killed, and yet not gone
                    self._stop("wall" if self._started else "start")
                elif self._started and now >= look:
                    look = now + LOOK_S
                    if self._init_pid is not None and usage.exceeds(self._init_pid, self._limits.memory_mb << 20):
                        self._stop("memory")
                for key, _ in selector.select(max(0.0, min(self._deadline - now, LOOK_S))):
                    if chunk := os.read(key.fd, CHUNK):
                        self._take(key.data, chunk)
                    else:
                        selector.unregister(key.fd)

    def _take(self, name: str, chunk: bytes) -> None:
        held = self._read[name] + chunk
        self._read[name] = held
        if name in ("stdout", "stderr"):
            self._read[name] = held[: self._limits.output_bytes]
            if len(held) > self._limits.output_bytes:
                self._stop("output")
        elif name == "status":
            if not self._started and b"started\n" in held:
                self._started = True
                if self._stopped is None:
                    self._deadline = time.monotonic() + self._limits.wall_s
        elif self._init is None and b"}" in held:
            with self._lock, suppress(ProcessLookupError):  # it may have ended already
                self._init_pid = json.loads(held)["child-pid"]
                self._init = os.pidfd_open(self._init_pid)

    # ------------------------------------------------------------------ ending

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            self._stopped, self._deadline = why, time.monotonic() + _END_S
            self._kill()

    def _kill(self) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if self._process is None:
                return
            if self._init is not None:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            elif self.job["mode"] == "unsafe":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)

    def _clean_up(self, process: subprocess.Popen[bytes], lines: Mapping[str, int]) -> None:
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._kill()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with self._lock:
            self._process = None
            for fd in (*lines.values(), *(() if self._init is None else (self._init,))):
                os.close(fd)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _conclude(self) -> SandboxResult:
        limits = self._limits
        stdout, stderr, status = (
            self._read[name].decode("utf-8", "replace") for name in ("stdout", "stderr", "status")
        )
        said = dict(line.split(" ", 1) for line in status.splitlines() if " " in line)

        def result(status: Status, code: int | None, kind: str = "", **more: object) -> SandboxResult:
            return SandboxResult(status, stdout, stderr, code, limits.says(kind, **more) if kind else "")

        if "failed" in said or not self._started:
            late = "it took too long" if self._stopped == "start" else "it ended at once"
            raise SandboxFailure(f"the sandbox could not be made: {said.get('failed') or stderr.strip() or late}")
        stopped: dict[str | None, Status] = {"output": "output", "wall": "timeout", "memory": "memory"}
        if self._stopped in stopped:
            return result(stopped[self._stopped], None, str(self._stopped))
        if "ended" not in said:  # Not a SandboxFailure: code that can break its box must not escape its score by that.
            return result("killed", None, "broken")
        code, cpu_s = int(said["ended"].split()[0]), float(said["ended"].split()[1])
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= limits.cpu_s - 0.2:
            return result("timeout", code, "cpu")
        if code < 0:
            return result("killed", code, "signal", number=-code, name=signal.strsignal(-code) or "unknown")
        if code and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
            return result("memory", code, "address space")
        return result("error" if code else "ok", code)
