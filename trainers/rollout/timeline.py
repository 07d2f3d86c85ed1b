"""Where the time goes: of one episode, of the engine's room over all episodes, of the event loop; and a trace of it.

An episode is in exactly one phase at a time, so its phases add up to its life:

=========== ===========================================================================================================
``queue``    it waits for an environment (its making included), or its request waits for a place in the engine
             (``queue_s`` of the engine's metrics, taken out of ``generate``)
``reset``    the environment opens the episode
``generate`` the engine works on a reply
``step``     the environment answers, simulated users and tools included
``rewards``  the episode is over, and waits for rewards that come later
``own``      everything else: rendering tokens, and waiting for the event loop
=========== ===========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

PHASES = ("queue", "reset", "generate", "step", "rewards", "own")

log = logging.getLogger("trainers")


def loop_time() -> float:
    """Seconds on the running event loop's clock."""
    return asyncio.get_running_loop().time()


class Load:
    """How full the engine was, which computes ``room`` requests at a time, integrated over time.

    At any moment its places are busy (``engine_busy``), idle while the episode that could use it is elsewhere
    (``bubble_environment``), or idle because no episode may start (``bubble_books``); docs/collector.md has the
    formulas. The three shares add up to 1.
    """

    def __init__(self, room: int, clock: Callable[[], float] = loop_time) -> None:
        self.room, self.clock = room, clock
        self.phases: Counter[str] = Counter()  # episodes in each phase now
        self.playing = 0
        self._since: float | None = None
        self._busy = self._environment = self._books = 0.0  # places times seconds
        self._generating = 0.0  # seconds in which at least one episode did

    def move(self, old: str | None, new: str | None) -> float:
        """An episode goes from one phase to another (``None``: it is not there yet, or no more); returns the time."""
        now = self.clock()
        self._advance(now)
        if old is None:
            self.playing += 1
        else:
            self.phases[old] -= 1
        if new is None:
            self.playing -= 1
        else:
            self.phases[new] += 1
        return now

    def take(self) -> dict[str, float]:
        """The three shares since the last call (or the first episode); empty where no time has passed."""
        self._advance(self.clock())
        areas = {"engine_busy": self._busy, "bubble_environment": self._environment, "bubble_books": self._books}
        self._busy = self._environment = self._books = 0.0
        total = sum(areas.values())
        return {name: area / total for name, area in areas.items()} if total else {}

    def generating_s(self) -> float:
        """Seconds so far in which at least one episode waited for a reply of the engine's."""
        self._advance(self.clock())
        return self._generating

    def _advance(self, now: float) -> None:
        if self._since is not None and now > self._since:
            seconds, room = now - self._since, self.room
            if self.phases["generate"] > 0:
                self._generating += seconds
            busy, playing = min(self.phases["generate"], room), min(self.playing, room)
            self._busy += busy * seconds
            self._environment += (playing - busy) * seconds
            self._books += (room - playing) * seconds
        self._since = now


class Timeline:
    """One episode's phases, and what its requests read and reused; drawn on a track of the trace, if there is one.

    ``counts`` has ``prompt_tokens`` and ``cached_tokens`` (of requests whose engine says how many it reused),
    ``continued`` (replies that went on after a weight update had cut them), ``replies`` (that are complete) and ``cut``
    (of these, those that ended at their length limit).
    """

    def __init__(self, load: Load, trace: TraceFile | None = None, track: str = "episodes", name: str = "") -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.counts: Counter[str] = Counter()
        self.tokens = 0  # sampled
        self.unanswered_s = 0.0  # of a request that was cancelled or failed
        self.cause: str | None = None  # why the episode ended, where it did not end well
        self._load, self._trace, self._name = load, trace, name
        self._lane = None if trace is None else trace.lane(track)
        self._queued = 0.0
        self._phase: str | None = "own"
        self._start = self._began = self._asked = load.move(None, "own")

    def phase(self, name: str) -> None:
        """The phase before is over, and this one begins."""
        self._turn_to(name)
        self._asked = self._began

    def generated(self, prompt: int, tokens: int, metrics: Mapping[str, float]) -> None:
        """A request of ``prompt`` tokens has ended with so many new ones, and with the engine's metrics."""
        self.tokens += tokens
        if (cached := metrics.get("cached_tokens")) is not None:
            self.counts.update(prompt_tokens=prompt, cached_tokens=int(cached))
        self._queued += float(metrics.get("queue_s", 0.0))
        self._asked = self._load.clock()

    def replied(self, *, cut: bool) -> None:
        """A reply is complete; ``cut`` if its length limit ended it."""
        self.counts.update(replies=1, cut=cut)

    @contextlib.contextmanager
    def later(self, name: str) -> Iterator[None]:
        """Draw the block as a reward that comes later."""
        if self._trace is None:
            yield
            return
        began, lane = loop_time(), self._trace.lane("later rewards")
        try:
            yield
        finally:
            self._trace.span(lane, name, began, loop_time())
            self._trace.give_back(lane)

    def close(self, status: str, cause: str | None) -> None:
        """The episode has ended. Safe to call twice."""
        if self._phase is None:
            return
        self.cause = cause
        if self._phase == "generate":
            self.unanswered_s = self._load.clock() - self._asked
        self._turn_to(None)
        queued = min(self._queued, self.seconds["generate"])
        self.seconds["queue"] += queued
        self.seconds["generate"] -= queued
        if self._trace is not None and self._lane is not None:
            said = {"status": status} | ({"cause": cause} if cause else {})
            self._trace.span(self._lane, self._name, self._start, self._began, said)
            self._trace.give_back(self._lane)

    def _turn_to(self, new: str | None) -> None:
        old = self._phase
        assert old is not None, "this episode has ended"
        now = self._load.move(old, new)
        self.seconds[old] += now - self._began
        if self._trace is not None and self._lane is not None and old != "own":
            self._trace.span(self._lane, old, self._began, now)
        self._phase, self._began = new, now


_MOST_AT_ONCE = 10_000  # probes that one long block counts as, at most


class LoopLag:
    """Measures by a timer, every ``interval`` seconds, how much later than due the loop runs a callback.

    A loop that is blocked for a second delays one probe, but would have delayed all those due within that second; they
    are counted as well, each with its own delay, or a percentile would hardly show the block ("coordinated omission",
    as corrected by HdrHistogram's ``recordValueWithExpectedInterval``).
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._lags: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """A second call does nothing."""
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """``loop_lag_p50_s``, ``loop_lag_p99_s`` and ``loop_lag_max_s`` since the last call; empty without a probe."""
        lags, self._lags = sorted(self._lags), []
        if not lags:
            return {}
        # A percentile is the smallest value that at least this share of all do not exceed.
        p50, p99 = (lags[math.ceil(share * len(lags)) - 1] for share in (0.50, 0.99))
        return {"loop_lag_p50_s": p50, "loop_lag_p99_s": p99, "loop_lag_max_s": lags[-1]}

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + self.interval
        self._timer = loop.call_at(due, self._probe, loop, due)

    def _probe(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        lag = loop.time() - due
        missed = min(int(lag / self.interval), _MOST_AT_ONCE)
        self._lags += [max(0.0, lag - i * self.interval) for i in range(missed + 1)]
        self._arm(loop)


# ------------------------------------------------------------------------------------------------ the trace

_TRACKS = ("trainer", "episodes", "evaluation", "later rewards")
_MOST_KEPT, _LONGEST_KEPT = 512, 1.0  # events, seconds, before they are written
_Lane: TypeAlias = tuple[int, int]  # the numbers of a track and of a lane of it, both from 1


class TraceFile:
    """Writes a trace of a run in the trace-event JSON format, for ui.perfetto.dev or chrome://tracing.

    The file is a JSON array with one event a line (the format's "JSON Array Format"). Only whole lines are appended, so
    what a killed run leaves is an array without its closing bracket, which both viewers take. Where the file exists,
    the next free name is taken (``trace.json``, ``trace-2.json``, ...). A disk that is full ends the trace with a
    warning, not the run. docs/collector.md has the tracks. Times are microseconds since the file was opened.

    Args:
        path: The file; its folder is made if need be.
        clock: Seconds, monotonic; that of the event loop whose episodes are drawn.
    """

    def __init__(self, path: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        path = Path(path)
        names = (path.with_stem(f"{path.stem}-{number}") for number in itertools.count(2))
        self.path = next(free for free in itertools.chain([path], names) if not free.exists())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: Any = self.path.open("xb", buffering=0)
        self._clock, self._zero = clock, clock()
        self._kept: list[str] = []
        self._written = time.monotonic()
        self._separator = "[\n"
        self._free: dict[str, list[_Lane]] = {track: [] for track in _TRACKS}
        self._lanes = dict.fromkeys(_TRACKS, 0)

    def lane(self, track: str) -> _Lane:
        """A lane of a track, for one thing at a time; :meth:`give_back` ends that."""
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
        """A phase of the trainer."""
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

    def _event(self, kind: str, name: str, args: Mapping[str, Any], **place: Any) -> None:
        if self._file is None:
            return
        event = {"ph": kind, "name": name, **place, "args": dict(args)}
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
