"""A trace of a run, as Chrome's trace viewer and Perfetto read it."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

log = logging.getLogger("trainers")

_TRACKS = ("trainer", "episodes", "evaluation", "later rewards")
_MAX_BUFFERED, _MAX_BUFFER_S = 512, 1.0  # events, seconds, before they are written
_Lane: TypeAlias = tuple[int, int]  # the numbers of a track and of a lane of it, both from 1


class TraceFile:
    """Writes a trace of a run in the trace-event JSON format, for ui.perfetto.dev or chrome://tracing.

    A JSON array with one event a line; only whole lines are appended, so both viewers take what a killed run leaves.
    Where the file exists, the next free name is taken (``trace-2.json``, ...). A full disk ends the trace with a
    warning, not the run. docs/collector.md has the tracks. Times are microseconds since the file was opened, by
    ``clock`` (seconds).
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        path = Path(path)
        names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
        self.path = next(free for free in itertools.chain([path], names) if not free.exists())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: Any = self.path.open("xb", buffering=0)
        self._clock, self._zero = clock, clock()
        self._buffer: list[str] = []
        self._written = time.monotonic()
        self._separator = "[\n"
        self._free: dict[str, list[_Lane]] = {track: [] for track in _TRACKS}
        self._lanes = dict.fromkeys(_TRACKS, 0)

    def lane(self, track: str) -> _Lane:
        """Take a lane of a track, for one span at a time; :meth:`give_back` returns it."""
        if self._free[track]:
            return heapq.heappop(self._free[track])
        number = self._lanes[track] = self._lanes[track] + 1
        pid = _TRACKS.index(track) + 1
        if number == 1:
            self._event("M", "process_name", {"name": track}, pid=pid, tid=0)
            self._event("M", "process_sort_index", {"sort_index": pid}, pid=pid, tid=0)
        self._event("M", "thread_name", {"name": f"{track} {number}"}, pid=pid, tid=number)
        return pid, number

    def give_back(self, lane: _Lane) -> None:
        heapq.heappush(self._free[_TRACKS[lane[0] - 1]], lane)

    def span(self, lane: _Lane, name: str, began: float, ended: float, args: Mapping[str, Any] | None = None) -> None:
        start, end = self._micros(began), self._micros(ended)
        self._event("X", name, args or {}, pid=lane[0], tid=lane[1], ts=start, dur=round(end - start, 3))

    def phase(self, name: str, began: float, ended: float) -> None:
        if self._lanes["trainer"] == 0:
            self.lane("trainer")
        self.span((1, 1), name, began, ended)

    def instant(self, name: str, args: Mapping[str, Any]) -> None:
        """Mark now, on all tracks."""
        self._event("i", name, args, s="g", pid=1, tid=1, ts=self._micros(self._clock()))

    def counter(self, name: str, values: Mapping[str, float]) -> None:
        """Draw numbers, as they are now, as a graph."""
        self._event("C", name, values, pid=1, ts=self._micros(self._clock()))

    def flush(self) -> None:
        if not self._buffer or self._file is None:
            return
        data = (self._separator + ",\n".join(self._buffer)).encode()
        self._buffer.clear()
        self._separator, self._written = ",\n", time.monotonic()
        self._write(data)

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._write(b"[\n]\n" if self._separator == "[\n" else b"\n]\n")
        if self._file is not None:
            self._file.close()
            self._file = None

    def _event(self, kind: str, name: str, args: Mapping[str, Any], **place: Any) -> None:
        if self._file is None:
            return
        event = {"ph": kind, "name": name, **place, "args": dict(args)}
        self._buffer.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        if len(self._buffer) >= _MAX_BUFFERED or time.monotonic() - self._written >= _MAX_BUFFER_S:
            self.flush()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            log.warning("no more trace is written to %s: %s", self.path, error)
            self._file.close()
            self._file = None

    def _micros(self, seconds: float) -> float:
        return round((seconds - self._zero) * 1e6, 3)
