"""One run: start the box, read what comes out of it, hold it to its limits, and say how it ended.

The run belongs to the thread that calls :meth:`Run.finish`; only :meth:`Run.cancel` may come from another. What ends a
run from outside is always one signal, to process 1 of the box: the kernel then kills the rest.
"""

from __future__ import annotations

import json
import marshal
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import cgroup, usage
from .limits import Limits
from .result import SandboxFailure, SandboxResult, reason

#: Seconds that making the box may take; no code runs meanwhile.
START_S = 60.0
#: Seconds that a killed box may take to be gone.
_END_S = 5.0
#: Seconds between two looks at the memory of all processes.
_LOOK_S = 0.1
_CHUNK = 65_536

#: From the file descriptors of the job, the status line and the pid line to a command.
Command = Callable[[int, int, int], Sequence[str]]


def launch(
    command: Command,
    job: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    group: cgroup.Group | None = None,
) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """Start a box.

    Args:
        command: Starts the program of :mod:`.container_init` in some box.
        job: What it reads; see there.
        environment: Of the command itself, not of the code.
        stdin: As of :class:`subprocess.Popen`; the code has it where the job's ``stdin`` is ``None``.
        group: The control group that it enters first.

    Returns:
        The process, and the file descriptors of its ``status`` and ``pid`` lines; the caller closes them.

    Raises:
        SandboxFailure: The command could not be started.
    """
    status_in, status_out = os.pipe()
    pid_in, pid_out = os.pipe()
    entry = None if group is None else group.entry
    try:
        with tempfile.TemporaryFile() as file:
            marshal.dump({**job, "host": os.getpid(), "group": entry}, file)
            file.flush()
            passed = (file.fileno(), status_out, pid_out)
            process = subprocess.Popen(
                command(*passed),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=passed if entry is None else (*passed, entry),
                env=dict(environment),
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        os.close(status_in)
        os.close(pid_in)
        raise SandboxFailure(f"the sandbox could not be started: {error}") from error
    finally:
        os.close(status_out)
        os.close(pid_out)
    return process, {"status": status_in, "pid": pid_in}


class Run:
    """A run that has begun.

    Args:
        command: Starts the program of :mod:`.container_init` in some box.
        job: What it reads; see there.
        limits: What is kept from here: wall time, output, memory of all processes.
        environment: Of the command itself, not of the code.

    Raises:
        SandboxFailure: The command could not be started.
    """

    def __init__(
        self, command: Command, job: Mapping[str, Any], limits: Limits, environment: Mapping[str, str]
    ) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._over = False
        self._init: int | None = None  # a file descriptor (pidfd) of process 1
        self._init_pid: int | None = None
        self._unsafe = job["mode"] == "unsafe"
        self._group: cgroup.Group | None = None
        self._pid_text = b""
        self._status_text = b""
        try:
            if (parent := cgroup.parent()) is not None:
                self._group = cgroup.Group(parent, limits)
            self._process, self._lines = launch(command, job, environment, group=self._group)
        except OSError as error:
            raise SandboxFailure(f"the sandbox's control group could not be made: {error}") from error
        except SandboxFailure:
            if self._group is not None:
                self._group.close()
            raise

    def cancel(self) -> None:
        """End the run now, from any thread; :meth:`finish` then returns soon."""
        self._kill()

    def finish(self) -> SandboxResult:
        """Wait for the end.

        Raises:
            SandboxFailure: The box could not be made, or broke.
        """
        try:
            stopped, streams = self._watch()
            if stopped is None and self._group is not None and self._group.ran_out():
                stopped = "memory"
            return self._conclude(stopped, streams["stdout"], streams["stderr"])
        finally:
            self._clean_up()

    # ------------------------------------------------------------------ watching

    def _watch(self) -> tuple[str | None, dict[str, bytes]]:
        """Read everything until the box is gone; also says which limit of this side ended it."""
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        streams = {"stdout": b"", "stderr": b""}
        stopped: str | None = None
        with selectors.DefaultSelector() as selector:
            for name, fd in {
                "stdout": process.stdout.fileno(),
                "stderr": process.stderr.fileno(),
                **self._lines,
            }.items():
                selector.register(fd, selectors.EVENT_READ, name)
            started = False
            deadline = time.monotonic() + START_S
            look = deadline
            while selector.get_map():
                now = time.monotonic()
                if now >= deadline:
                    if stopped is not None:
                        break  # killed, and yet not gone
                    stopped, deadline = "wall" if started else "start", now + _END_S
                    self._kill()
                if now >= look and stopped is None:
                    look = now + _LOOK_S
                    if self._too_much_memory():
                        stopped, deadline = "memory", now + _END_S
                        self._kill()
                for key, _ in selector.select(max(0.0, min(deadline, look if stopped is None else deadline) - now)):
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fd)
                    elif key.data in streams:
                        held = streams[key.data] + chunk
                        streams[key.data] = held[: self._limits.output_bytes]
                        if len(held) > self._limits.output_bytes and stopped is None:
                            stopped, deadline = "output", time.monotonic() + _END_S
                            self._kill()
                    else:
                        self._take(key.data, chunk)
                if not started and b"started\n" in self._status_text:
                    started = True
                    if stopped is None:
                        deadline = time.monotonic() + self._limits.wall_s
                        look = time.monotonic() + _LOOK_S
        return stopped, streams

    def _take(self, line: str, chunk: bytes) -> None:
        if line == "status":
            self._status_text += chunk
            return
        self._pid_text += chunk
        if self._init is None and b"}" in self._pid_text:
            with self._lock, suppress(ProcessLookupError):  # it may have ended already
                self._init_pid = json.loads(self._pid_text)["child-pid"]
                self._init = os.pidfd_open(self._init_pid)

    def _too_much_memory(self) -> bool:
        if self._init_pid is None:
            return False
        most = self._limits.memory_mb << 20
        return usage.resident(self._init_pid) > most and usage.memory(self._init_pid) > most

    # ------------------------------------------------------------------ ending

    def _kill(self) -> None:
        with self._lock:
            if self._over:
                return
            with suppress(ProcessLookupError, PermissionError):
                if self._init is not None:
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                elif self._unsafe:
                    self._process.terminate()
                else:
                    os.killpg(self._process.pid, signal.SIGKILL)

    def _clean_up(self) -> None:
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._kill()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with self._lock:
            self._over = True
            for fd in (*self._lines.values(), *(() if self._init is None else (self._init,))):
                os.close(fd)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._group is not None:
            self._group.close()

    def _conclude(self, stopped: str | None, out: bytes, err: bytes) -> SandboxResult:
        stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        lines = self._status_text.decode("utf-8", "replace").splitlines()
        failed = next((line.removeprefix("failed ") for line in lines if line.startswith("failed ")), None)
        if failed is not None or "started" not in lines:
            why = failed or stderr.strip() or ("it took too long" if stopped == "start" else "it ended at once")
            raise SandboxFailure(f"the sandbox could not be made: {why}")
        if stopped == "output":
            return SandboxResult("output", stdout, stderr, None, reason("output", self._limits))
        if stopped == "wall":
            return SandboxResult("timeout", stdout, stderr, None, reason("wall", self._limits))
        if stopped == "memory":
            return SandboxResult("memory", stdout, stderr, None, reason("memory", self._limits))
        ended = next((line.split()[1:] for line in lines if line.startswith("ended ")), None)
        if ended is None:  # Not a SandboxFailure: code that can break its box must not escape its score by that.
            return SandboxResult("killed", stdout, stderr, None, reason("broken", self._limits))
        return self._judge(int(ended[0]), float(ended[1]), stdout, stderr)

    def _judge(self, code: int, cpu_s: float, stdout: str, stderr: str) -> SandboxResult:
        limits = self._limits
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= limits.cpu_s - 0.2:
            return SandboxResult("timeout", stdout, stderr, code, reason("cpu", limits))
        if code < 0:
            name = signal.strsignal(-code) or "unknown"
            return SandboxResult("killed", stdout, stderr, code, reason("signal", limits, number=-code, name=name))
        if code == 0:
            return SandboxResult("ok", stdout, stderr, 0)
        last = stderr.rstrip().rpartition("\n")[2]
        if last.startswith("MemoryError"):
            return SandboxResult("memory", stdout, stderr, code, reason("address space", limits))
        return SandboxResult("error", stdout, stderr, code)


def launcher_environment() -> dict[str, str]:
    """The environment in which the host's interpreter starts; the code has its own."""
    kept = ("LD_LIBRARY_PATH",) if sys.platform == "linux" else ("DYLD_LIBRARY_PATH",)
    return {name: os.environ[name] for name in kept if name in os.environ}
