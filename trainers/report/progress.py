"""The phase of a run, as one line: its progress, the rate, the time left, and the memory of the process."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Seconds without a line after which one is printed, where there is no terminal to draw on.
EVERY_S = 10.0
_GIB = 2**30


@dataclass(eq=False)
class Phase:
    """A phase that takes time; ``total`` is its number of ``units``, where that is known."""

    name: str
    began: float
    total: int | None = None
    units: str = ""
    count: Callable[[], int] | None = None  #: returns the number done, in place of :meth:`advance`
    detail: str = ""
    done: int = 0

    def advance(self, by: int = 1, detail: str = "") -> None:
        self.done += by
        self.detail = detail or self.detail

    def line(self, now: float, memory: str) -> str:
        done, seconds = self.done if self.count is None else self.count(), max(now - self.began, 1e-9)
        if self.total is None and not done:
            return ", ".join([f"{self.name}: {duration(seconds)}", memory])
        of = f"{done:,}" if self.total is None else f"{min(done, self.total):,}/{self.total:,}"
        parts = [f"{self.name}: {of} {self.units}".rstrip()]
        if done:
            rate = done / seconds
            parts.append(f"{rate:.3g}/s" if rate >= 1 else f"{1 / rate:.3g} s each")
            if self.total is not None and done < self.total:
                parts.append(f"{duration((self.total - done) / rate)} left")
        else:
            parts.append(duration(seconds))
        return ", ".join([*parts, *([self.detail] if self.detail else []), memory])


class Progress:
    """The phases under way, of which the one that began last is shown.

    Without a terminal, ``say`` gets the line after ``every_s`` seconds in which :meth:`spoke` was not called, from a
    thread, so also where a phase reports nothing; ``every_s=None`` never.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        every_s: float | None = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], str] | None = None,
    ) -> None:
        self._say, self._every_s, self._clock, self._memory = say, every_s, clock, memory or memory_in_words
        self._phases: list[Phase] = []
        self._last = clock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @classmethod
    def silent(cls) -> Progress:
        """Return one that prints nothing."""
        return cls(lambda line: None, every_s=None)

    def enter(
        self, name: str, total: int | None = None, units: str = "", count: Callable[[], int] | None = None
    ) -> Phase:
        phase = Phase(name, self._clock(), total, units, count)
        self._phases.append(phase)
        if self._thread is None and self._every_s is not None:
            self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            self._thread.start()
        return phase

    def leave(self, phase: Phase) -> None:
        if phase in self._phases:
            self._phases.remove(phase)

    @contextmanager
    def phase(
        self, name: str, total: int | None = None, units: str = "", count: Callable[[], int] | None = None
    ) -> Iterator[Phase]:
        """Show a phase until the block ends."""
        phase = self.enter(name, total, units, count)
        try:
            yield phase
        finally:
            self.leave(phase)

    @property
    def line(self) -> str:
        """The current phase as a line; empty where there is none."""
        phases = self._phases[-1:]  # one look: other threads enter and leave
        return phases[0].line(self._clock(), self._memory()) if phases else ""

    def spoke(self) -> None:
        """Note that something else was printed: no line is due for a while."""
        self._last = self._clock()

    def due(self) -> None:
        """Print the line if it is due."""
        if self._every_s is None or self._clock() - self._last < self._every_s:
            return
        if line := self.line:
            self.spoke()
            self._say(line)

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        assert self._every_s is not None
        while not self._closed.wait(self._every_s / 10):
            self.due()


def duration(seconds: float) -> str:
    """Format seconds: ``8 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def memory_in_words() -> str:
    """Describe the memory that this process holds, and that torch holds of its GPU."""
    parts = [_size(resident_bytes())]
    torch = sys.modules.get("torch")  # nothing is imported for a line
    if torch is not None and torch.cuda.is_initialized():
        parts.append(f"{_size(torch.cuda.memory_reserved())} of the GPU")
    return " and ".join(parts)


def resident_bytes() -> int:
    """Return the resident memory of this process; its peak, where the system does not tell the current one."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / 2**20:.0f} MiB"
