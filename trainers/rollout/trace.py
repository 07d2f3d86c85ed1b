"""A trace of a run in the trace-event JSON format, for ui.perfetto.dev or chrome://tracing.

The file is a JSON array with one event a line (the format's "JSON Array Format"). Events are appended as they come, and
only whole lines are written, so what a killed run leaves is an array without its closing bracket, which both viewers
(and :func:`read_trace`) take. Closing adds the bracket.

Tracks:

* ``trainer``: the phases of the loop (rollout, learn, publish, ...); weight updates are instants across all tracks.
* ``episodes`` and ``evaluation``: as many lanes as there were episodes at a time. An episode is a span on one lane, and
  its phases (see :mod:`trainers.rollout.timeline`) are spans inside it.
* ``later rewards``: one span a reward, from the turn it is for until it is there; beside the episode's next turns.

Times are microseconds since the file was opened, on the event loop's clock.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger("trainers")

_TRACKS = ("trainer", "episodes", "evaluation", "later rewards")
_MOST_KEPT, _LONGEST_KEPT = 512, 1.0  # events, seconds, before they are written


class TraceFile:
    """Writes a trace.

    Where the file exists, the next free name is taken (``trace.json``, ``trace-2.json``, ...): a resumed run leaves the
    trace of what came before it alone. A disk that is full ends the trace with a warning, not the run.

    Args:
        path: The file; its folder is made if need be.
        clock: Seconds, monotonic; that of the event loop whose episodes are drawn.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = _free(Path(path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: Any = self.path.open("xb", buffering=0)
        self._clock = clock
        self._zero = clock()
        self._kept: list[str] = []
        self._written = time.monotonic()
        self._separator = "[\n"
        self._free_lanes: dict[str, list[int]] = {track: [] for track in _TRACKS}
        self._lanes: dict[str, int] = dict.fromkeys(_TRACKS, 0)

    def lane(self, track: str, name: str) -> Lane:
        """A lane of a track, for one thing called ``name`` at a time; :meth:`Lane.close` gives it back."""
        free = self._free_lanes[track]
        if free:
            return Lane(self, track, heapq.heappop(free), name)
        number = self._lanes[track] = self._lanes[track] + 1
        pid = _TRACKS.index(track) + 1
        if number == 1:
            self._name("process_name", pid, 0, {"name": track})
            self._name("process_sort_index", pid, 0, {"sort_index": pid})
        self._name("thread_name", pid, number, {"name": f"{track} {number}"})
        return Lane(self, track, number, name)

    def phase(self, name: str, began: float, ended: float) -> None:
        """A phase of the trainer."""
        if self._lanes["trainer"] == 0:
            self.lane("trainer", "")
        self._span("trainer", 1, name, began, ended, {})

    def instant(self, name: str, args: Mapping[str, Any]) -> None:
        """Something that happens now, on all tracks."""
        event = {"ph": "i", "s": "g", "name": name, "pid": 1, "tid": 1, "ts": self._micros(self._clock())}
        self._event(event | {"args": dict(args)})

    def counter(self, name: str, values: Mapping[str, float]) -> None:
        """Numbers as they are now, drawn as a graph."""
        self._event({"ph": "C", "name": name, "pid": 1, "ts": self._micros(self._clock()), "args": dict(values)})

    def flush(self) -> None:
        """Write what is kept."""
        if not self._kept or self._file is None:
            return
        data = (self._separator + ",\n".join(self._kept)).encode()
        self._kept.clear()
        self._separator, self._written = ",\n", time.monotonic()
        self._write(data)

    def close(self) -> None:
        """Write what is left and end the array. Safe to call twice."""
        self.flush()
        if self._file is not None:
            self._write(b"[\n]\n" if self._separator == "[\n" else b"\n]\n")
        if self._file is not None:
            self._file.close()
            self._file = None

    def _span(self, track: str, lane: int, name: str, began: float, ended: float, args: Mapping[str, Any]) -> None:
        start, end = self._micros(began), self._micros(ended)
        event = {"ph": "X", "name": name, "pid": _TRACKS.index(track) + 1, "tid": lane, "ts": start}
        self._event(event | {"dur": round(end - start, 3), "args": dict(args)})

    def _name(self, what: str, pid: int, tid: int, args: Mapping[str, Any]) -> None:
        self._event({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    def _event(self, event: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        self._kept.append(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
        if len(self._kept) >= _MOST_KEPT or time.monotonic() - self._written >= _LONGEST_KEPT:
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

    def _give_back(self, lane: Lane) -> None:
        heapq.heappush(self._free_lanes[lane.track], lane.number)


class Lane:
    """A place to draw one thing and its phases; see :meth:`TraceFile.lane`."""

    __slots__ = ("_file", "name", "number", "track")

    def __init__(self, file: TraceFile, track: str, number: int, name: str) -> None:
        self.track, self.number, self.name = track, number, name
        self._file = file

    def span(self, name: str, began: float, ended: float) -> None:
        """A phase."""
        self._file._span(self.track, self.number, name, began, ended, {})

    def close(self, began: float, ended: float, args: Mapping[str, Any]) -> None:
        """It has ended: draw it whole, and let others have the lane."""
        self._file._span(self.track, self.number, self.name, began, ended, args)
        self._file._give_back(self)


def read_trace(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events of a trace, also of one that a killed run left; a line that was cut is left out.

    Raises:
        ValueError: The file is no such trace.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    if lines and lines[0] != "[":
        raise ValueError(f"{path} does not begin with a line '[': it is no trace that TraceFile wrote")
    events = []
    for number, line in enumerate(lines[1:], 2):
        if line in ("", "]"):
            continue
        try:
            events.append(json.loads(line.removesuffix(",")))
        except ValueError as error:
            if number == len(lines):
                break  # the process was killed while it wrote this line
            raise ValueError(f"{path}, line {number}: not a trace event ({error})") from error
    return events


def _free(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free
