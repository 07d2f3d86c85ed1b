"""One run: start the box (by bubblewrap, or by an interpreter that makes it itself), hold it to its limits, report.

The run belongs to the thread that calls :meth:`Run.finish`; only :meth:`Run.cancel` may come from another. What ends a
run from outside is always one signal, to process 1 of the box: the kernel then kills the rest.
"""

from __future__ import annotations

import json
import marshal
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from . import cgroup, layout, usage
from .result import Limits, SandboxFailure, SandboxResult, Status

#: Seconds that making the box may take; no code runs meanwhile.
START_S = 60.0
#: Seconds that a killed box may take to end.
_END_S = 5.0
#: Seconds between two looks at the memory of all processes.
LOOK_S = 0.1
CHUNK = 65_536

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop()); import container_init; container_init.main()"


def launch(
    job: Mapping[str, Any],
    *,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    group: cgroup.Group | None = None,
) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """Start a run; return the process and the descriptors of its ``status`` and ``pid`` lines, which the caller closes.

    The code has ``stdin`` where the job's is ``None``.
    """
    status_in, status_out = os.pipe()
    pid_in, pid_out = os.pipe()
    entry = None if group is None else group.entry
    extra = [fd for fd in (entry, job["channel"]) if fd is not None]
    try:
        with tempfile.TemporaryFile() as file:
            marshal.dump({**job, "host": os.getpid(), "group": entry}, file)
            file.flush()
            passed = (file.fileno(), status_out, pid_out)
            process = subprocess.Popen(
                _bubblewrap(job, *passed) if job["mode"] == "bubblewrap" else _launcher(*passed),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                pass_fds=(*passed, *extra),
                # Of the host's interpreter; the code has an environment of its own.
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
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


def _launcher(job_fd: int, status_fd: int, pid_fd: int) -> list[str]:
    package_folder = str(Path(__file__).resolve().parent)
    return [layout.interpreter(), "-I", "-S", "-c", _BOOT, str(job_fd), str(status_fd), str(pid_fd), package_folder]


def _bubblewrap(job: Mapping[str, Any], job_fd: int, status_fd: int, pid_fd: int) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise OSError("bwrap is not installed")
    argv = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # as root it needs no user namespace, and the code changes to an unprivileged user
        argv += ["--cap-drop", "ALL"]
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            argv += ["--cap-add", name]
    else:
        argv += ["--unshare-user", "--uid", str(job["user"][0]), "--gid", str(job["user"][1])]
    argv += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    targets = [*(inside for _, inside in job["binds"]), *job["devices"], *(path for _, path in job["links"])]
    writable = ["--perms", "1777", "--size", str(job["disk"]), "--tmpfs"]
    for folder in job["writable"]:
        argv += [*writable, folder]
    # It would make the folders above a target for itself alone, and the code may be another user.
    folders = {str(parent) for target in targets for parent in Path(target).parents} - {"/", *job["writable"]}
    for folder in sorted(folders):
        argv += ["--perms", "0755", "--dir", folder]
    for source, inside in job["binds"]:
        argv += ["--ro-bind", source, inside]
    for inside in job["hidden"]:
        argv += ["--size", "4096", "--tmpfs", inside, "--remount-ro", inside]
    for device in job["devices"]:
        argv += ["--dev-bind", device, device]
    if job["proc"]:
        argv += ["--proc", "/proc"]
    for target, path in job["links"]:
        argv += ["--symlink", target, path]
    argv += [*writable, job["folder"], "--remount-ro", "/"]
    argv += ["--setenv", "LD_LIBRARY_PATH", layout.LIBRARIES]
    argv += ["--info-fd", str(pid_fd), "--chdir", "/", "--"]
    return [*argv, layout.PYTHON, "-I", "-S", "-c", _BOOT, str(job_fd), str(status_fd), "-1", layout.TOOLS]


class Run:
    """A run; its limits on wall time, output and memory of all processes are enforced here."""

    def __init__(self, job: dict[str, Any], limits: Limits) -> None:
        self.job, self._limits = job, limits
        self._lock = threading.Lock()
        self._cancelled = False
        self._process: subprocess.Popen[bytes] | None = None  # from the start of the box to its end
        self._init: int | None = None  # a file descriptor (pidfd) of process 1
        self._init_pid: int | None = None
        self._read = {"stdout": b"", "stderr": b"", "status": b"", "pid": b""}
        self._started = False  # the code, not only the box
        self._stopped: Literal["start", "wall", "output", "memory"] | None = None  # which limit of this side ended it
        self._deadline = 0.0

    def cancel(self) -> None:
        """End the run, or prevent its start, from any thread; :meth:`finish` then returns soon."""
        self._cancelled = True
        self._kill()

    def finish(self) -> SandboxResult:
        parent = cgroup.parent()
        group = None if parent is None else cgroup.Group(parent, self._limits)
        try:
            with self._lock:
                if self._cancelled:
                    return SandboxResult("killed", "", "", None, "Cancelled before it began.")
                self._process, lines = launch(self.job, group=group)
            try:
                self._watch(self._process, lines)
                if self._stopped is None and group is not None and group.ran_out():
                    self._stopped = "memory"
            finally:
                self._clean_up(self._process, lines)
        finally:
            if group is not None:
                group.close()
        return self._conclude()

    # ------------------------------------------------------------------ watching

    def _watch(self, process: subprocess.Popen[bytes], lines: Mapping[str, int]) -> None:
        """Read all output until the box has ended, and stop it at a limit."""
        assert process.stdout and process.stderr  # noqa: PT018
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
                # So much output is the code's. The status line of its start may come later, or be lost with the box:
                # code that writes quickly must not look like a box that was never made.
                self._started = True
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

    def _stop(self, why: Literal["start", "wall", "output", "memory"]) -> None:
        if self._stopped is None:
            self._stopped, self._deadline = why, time.monotonic() + _END_S
            self._kill()

    def _kill(self) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if self._process is None:
                return
            if self._init is not None:
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
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
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()

    def _conclude(self) -> SandboxResult:
        limits = self._limits
        stdout, stderr, lines, _ = (text.decode("utf-8", "replace") for text in self._read.values())
        status_lines = dict(line.split(" ", 1) for line in lines.splitlines() if " " in line)

        def result(status: Status, code: int | None, kind: str = "", **details: object) -> SandboxResult:
            return SandboxResult(status, stdout, stderr, code, limits.says(kind, **details) if kind else "")

        if "failed" in status_lines or not self._started:
            late = "it took too long" if self._stopped == "start" else "it ended at once"
            raise SandboxFailure(
                f"the sandbox could not be made: {status_lines.get('failed') or stderr.strip() or late}"
            )
        if self._stopped is not None and self._stopped != "start":
            return result("timeout" if self._stopped == "wall" else self._stopped, None, self._stopped)
        if (
            "ended" not in status_lines
        ):  # Not a SandboxFailure: code that can break its box must not escape its score by that.
            return result("killed", None, "broken")
        code, cpu_s = int(status_lines["ended"].split()[0]), float(status_lines["ended"].split()[1])
        # The kernel judges the limit by counted ticks, and reports here the time really run, which is less on a loaded
        # machine. Half of the limit still tells it from a program that sends itself the signal at once.
        if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= limits.cpu_s / 2:
            return result("timeout", code, "cpu")
        if code < 0:
            return result("killed", code, "signal", number=-code, name=signal.strsignal(-code) or "unknown")
        if code and stderr.rstrip().rpartition("\n")[2].startswith("MemoryError"):
            return result("memory", code, "address space")
        return result("error" if code else "ok", code)
