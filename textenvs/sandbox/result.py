"""Limits and results of a run, and their description for a model."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, fields
from typing import Literal

_MIB = 1 << 20
Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]


class SandboxUnavailable(RuntimeError):
    """No backend isolates on this machine; the message says why, and what to install or to allow."""


class SandboxFailure(RuntimeError):
    """The box could not be made: no code ran. Once code runs, however its box ends is that code's result."""


_TRANSIENT = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.ETIMEDOUT}


def transient(failure: SandboxFailure | OSError) -> bool:
    """Return whether it says that memory, processes, open files or time ran out: the next attempt may succeed.

    What a box reports has the error's number in its text.
    """
    cause = failure if isinstance(failure, OSError) else failure.__cause__
    if isinstance(cause, OSError) and cause.errno in _TRANSIENT:
        return True
    numbers = re.findall(r"\[Errno (\d+)\]", str(failure))
    return any(int(number) in _TRANSIENT for number in numbers) or "too long" in str(failure)


@dataclass(frozen=True)
class Limits:
    """Limits of a run; its result says which one it met.

    Args:
        cpu_s: CPU seconds of one process. This is the limit that a loop meets: unlike ``wall_s`` it hardly depends on
            what else the machine does.
        wall_s: Seconds from start to end, of all processes. It stops what waits without computing.
        memory_mb: MiB of address space of one process, and of memory of all of them together (see docs/sandbox.md).
        processes: How many processes and threads there may be at once.
        disk_mb: MiB of all files together, and of each.
        open_files: How many files a process may have open.
        output_bytes: Bytes of standard output, and of standard error, before the run is stopped.
    """

    cpu_s: int = 5
    wall_s: float = 10.0
    memory_mb: int = 512
    processes: int = 16
    disk_mb: int = 16
    open_files: int = 128
    output_bytes: int = 65_536

    def __post_init__(self) -> None:
        # Python itself needs some 40 MiB of address space, its standard streams and a few files.
        least = {"memory_mb": 64, "open_files": 16, "wall_s": 0.1}
        for field in fields(self):
            value, at_least = getattr(self, field.name), least.get(field.name, 1)
            kinds = (int, float) if field.name == "wall_s" else (int,)
            if type(value) not in kinds or not at_least <= value < 1 << 31:
                kind = "a number" if field.name == "wall_s" else "an integer"
                raise ValueError(f"Limits: {field.name} must be {kind} of at least {at_least}, not {value!r}")

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """Return the resource limits as (soft, hard) by name."""
        equal = {
            "AS": self.memory_mb * _MIB,
            "NPROC": self.processes,
            "FSIZE": self.disk_mb * _MIB,
            "NOFILE": self.open_files,
            "STACK": 8 * _MIB,
            "SIGPENDING": 256,
            **dict.fromkeys(("CORE", "MEMLOCK", "MSGQUEUE", "NICE", "RTPRIO"), 0),
        }
        # The first limit of CPU time is a signal that code may ignore, the second is not.
        return {"RLIMIT_CPU": (self.cpu_s, self.cpu_s + 1)} | {f"RLIMIT_{name}": (n, n) for name, n in equal.items()}

    def says(self, kind: str, **details: object) -> str:
        """Return the sentence for the limit that ended a run."""
        return _REASONS[kind].format(**{**vars(self), **details})


@dataclass(frozen=True)
class CommandLimits:
    """Limits of a command in a sandbox, which may be any program.

    Args:
        cpu_s: CPU seconds of one process.
        memory_mb: MiB of memory of one process (data, not address space), and of all of them together.
        processes: How many processes and threads there may be at once.
        disk_mb: MiB of all files together, and of each.
        open_files: How many files and connections a process may have open.
    """

    cpu_s: int = 3600
    memory_mb: int = 1024
    processes: int = 128
    disk_mb: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        least = {"memory_mb": 64, "open_files": 16}
        for field in fields(self):
            value, at_least = getattr(self, field.name), least.get(field.name, 1)
            if type(value) is not int or not at_least <= value < 1 << 31:
                raise ValueError(f"sandbox: {field.name} must be an integer of at least {at_least}, not {value!r}")

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """Return the resource limits as (soft, hard) by name; address space is free, of which V8 reserves gigabytes."""
        shared = Limits(self.cpu_s, 1.0, self.memory_mb, self.processes, self.disk_mb, self.open_files).rlimits()
        return {"RLIMIT_DATA" if name == "RLIMIT_AS" else name: bounds for name, bounds in shared.items()}


@dataclass(frozen=True)
class ShellLimits(Limits):
    """Limits of a command of a shell; see :class:`Limits`.

    Args:
        memory_mb: MiB of memory of one process (data, not address space), and of all of them together.
        disk_mb: MiB of all files together, and of each, in blocks of 4 KiB. What is beyond is not kept.
        files: How many files, folders and links there may be; more cannot be made.
        output_bytes: Bytes of the output that are kept: of its beginning and of its end, one half each.
    """

    cpu_s: int = 10
    wall_s: float = 20.0
    memory_mb: int = 512
    processes: int = 48
    disk_mb: int = 32
    files: int = 4096
    open_files: int = 256
    output_bytes: int = 65_536

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.open_files < 256:
            raise ValueError(f"ShellLimits: open_files must be at least 256, not {self.open_files}: bash uses 255")

    def rlimits(self) -> dict[str, tuple[int, int]]:
        """Return the resource limits as (soft, hard) by name."""
        return {"RLIMIT_DATA" if name == "RLIMIT_AS" else name: pair for name, pair in super().rlimits().items()}


_REASONS = {
    "cpu": "Stopped: it used more than {cpu_s} s of CPU time. Look for an endless loop, or compute less.",
    "wall": "Stopped: it ran for more than {wall_s:g} s. Look for an endless loop, or for something it waits for.",
    "address space": "Out of memory: a process may have {memory_mb} MiB. Keep less in memory at once.",
    "memory": "Stopped: its processes used more than {memory_mb} MiB of memory together. Keep less in memory at once.",
    "output": "Stopped: it printed more than {output_bytes} bytes. Print less.",
    "broken": "Stopped: the sandbox ended before the program did, which a program that leaves it alone does not cause.",
    "signal": "Ended by signal {number} ({name}).",
}


@dataclass(frozen=True)
class SandboxResult:
    """Result of a run.

    Args:
        status: ``"ok"`` (exit code 0), ``"error"`` (another exit code, mostly an exception), ``"timeout"`` (CPU or
            wall time), ``"memory"``, ``"output"`` (more than was allowed) or ``"killed"`` (a signal: a crash in C, or
            the code's own doing).
        stdout: What it printed, cut at the limit; bytes that are not UTF-8 are replaced.
        stderr: Tracebacks and the like, cut at the limit.
        exit_code: As of :mod:`subprocess`: minus the signal's number where a signal ended it. ``None`` where it was
            stopped from outside.
        reason: One sentence where the status is not ``"ok"`` or ``"error"``; else empty.
    """

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def describe(self, max_chars: int = 4000) -> str:
        """Describe the result for a model; a stream of more than ``max_chars`` loses its middle, with a mark."""
        parts = [_shortened(self.stdout.rstrip("\n"), max_chars), _shortened(self.stderr.rstrip("\n"), max_chars)]
        if self.reason:
            parts.append(f"[{self.reason}]")
        elif self.status == "error" and not self.stderr.strip():
            parts.append(f"[The program ended with exit code {self.exit_code}.]")
        elif not any(parts):
            parts.append("[The program printed nothing. Use print() to see a value.]")
        return "\n".join(part for part in parts if part)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head, tail = (most + 1) // 2, most // 2
    return f"{text[:head]}\n[... {len(text) - head - tail} characters left out ...]\n{text[len(text) - tail :]}"
