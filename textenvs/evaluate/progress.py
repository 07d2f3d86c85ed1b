"""What an evaluation is doing, counted while it runs, and a line about it."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from ..text import printable
from .records import Record

#: How often the line is renewed: on a terminal, and elsewhere (a log file), in seconds.
ON_TERMINAL_S, ELSEWHERE_S = 0.5, 30.0


@dataclass
class Stats:
    """Counts of an evaluation; the runner adds to them."""

    total: int = 0  # how many episodes are to be played
    running: int = 0
    turns: int = 0
    completion_tokens: int = 0
    episodes: int = 0
    solved: int = 0
    failed: int = 0

    def finished(self, record: Record) -> None:
        self.episodes += 1
        self.solved += record.success
        self.failed += record.failed

    def line(self, seconds: float) -> str:
        parts = [f"{self.episodes}/{self.total} episodes", f"{self.running} running", f"{self.turns} turns"]
        if self.completion_tokens:
            parts.append(f"{self.completion_tokens / max(seconds, 1e-3):.0f} tokens/s")
        if (counted := self.episodes - self.failed) > 0:
            parts.append(f"{self.solved / counted:.1%} solved")
        if self.failed:
            parts.append(f"{self.failed} FAILED")
        return ", ".join([*parts, f"{seconds:.0f} s"])


class StatusLine:
    """Shows the counts: one line that is written over on a terminal, and else a line now and then."""

    def __init__(self, stats: Stats, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self.stats = stats
        self.quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._started = time.monotonic()
        self._shown = False

    @property
    def every_s(self) -> float:
        """How often :meth:`show` is to be called, in seconds."""
        return ON_TERMINAL_S if self._terminal else ELSEWHERE_S

    def show(self) -> None:
        if self.quiet:
            return
        line = printable(self.stats.line(time.monotonic() - self._started))
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:width]}\x1b[K", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)
        self._shown = True

    def clear(self) -> None:
        """Leave the terminal's line empty, for what is written next."""
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)
        self._shown = False
