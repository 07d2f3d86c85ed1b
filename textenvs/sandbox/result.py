"""What a run came to, and how to say it to a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .limits import Limits

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]


class SandboxUnavailable(RuntimeError):
    """This machine offers no box that holds; the message says why, and what to install or to allow."""


class SandboxFailure(RuntimeError):
    """The box could not be made: no code ran. Once code runs, however its box ends is that code's result."""


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended.

    Args:
        status: ``"ok"`` (exit code 0), ``"error"`` (another exit code, mostly an exception), ``"timeout"`` (CPU or
            wall time), ``"memory"``, ``"output"`` (more than was allowed) or ``"killed"`` (a signal: a crash in C, or
            the code's own doing).
        stdout: What it printed, cut at the limit; bytes that are not UTF-8 are replaced.
        stderr: Tracebacks and the like, cut at the limit.
        exit_code: As of :mod:`subprocess`: minus the signal's number where a signal ended it. ``None`` where it was
            stopped from outside.
        reason: One sentence for a reader where the status is not ``"ok"`` or ``"error"``; else empty.
    """

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end with exit code 0."""
        return self.status == "ok"

    def describe(self, max_chars: int = 4000) -> str:
        """The result as a text for a model: what was printed, what went wrong, and why it was stopped.

        Args:
            max_chars: Of each of the two streams; a longer one loses its middle, and says so.
        """
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


#: What is said where a limit ended the run.
REASONS = {
    "cpu": "Stopped: it used more than {cpu_s} s of CPU time. Look for an endless loop, or compute less.",
    "wall": "Stopped: it ran for more than {wall_s:g} s. Look for an endless loop, or for something it waits for.",
    "address space": "Out of memory: a process may have {memory_mb} MiB. Keep less in memory at once.",
    "memory": "Stopped: its processes used more than {memory_mb} MiB of memory together. Keep less in memory at once.",
    "output": "Stopped: it printed more than {output_bytes} bytes. Print less.",
    "broken": "Stopped: the sandbox ended before the program did, which a program that leaves it alone does not cause.",
    "signal": "Ended by signal {number} ({name}).",
}


def reason(kind: str, limits: Limits, **more: object) -> str:
    """The sentence for what ended a run, with the limits it met."""
    return REASONS[kind].format(**{**vars(limits), **more})
