"""What an evaluation is doing, counted while it runs, and a line about it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def shown(stats: Stats, stream: TextIO | None = None) -> AsyncIterator[None]:
    """Within the block, show the counts: one line that is written over on a terminal, and else a line now and then."""
    stream = sys.stderr if stream is None else stream
    terminal, started = stream.isatty(), time.monotonic()

    async def show() -> None:
        while True:
            await asyncio.sleep(ON_TERMINAL_S if terminal else ELSEWHERE_S)
            line = printable(stats.line(time.monotonic() - started))
            if terminal:
                line = f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K"
            print(line, end="" if terminal else "\n", file=stream, flush=True)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        if terminal:
            print("\r\x1b[K", end="", file=stream, flush=True)
