"""The collector's statistics: time by phase, episodes by status, length bias; and a trace.

docs/collector.md defines every number. An episode is in exactly one phase at a time, so its phases add up to its life:

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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..trajectory import Status, Trajectory

Tokens: TypeAlias = NDArray[np.int32]

PHASES = ("queue", "reset", "generate", "step", "rewards", "own")

log = logging.getLogger("trainers")


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Load:
    """Load of the engine, which computes ``room`` requests at a time, integrated over time.

    The three shares ``engine_busy``, ``bubble_environment`` and ``bubble_books`` (docs/collector.md) add up to 1.
    """

    def __init__(self, room: int, clock: Callable[[], float] = loop_time) -> None:
        self.room, self.clock = room, clock
        self.phases: Counter[str] = Counter()  # episodes in each phase now
        self.playing = 0
        self._since: float | None = None
        self._busy = self._environment = self._idle = 0.0  # places times seconds
        self._generating = 0.0  # seconds in which at least one episode did

    def move(self, old: str | None, new: str | None) -> float:
        """Move an episode from one phase to another (``None``: before its begin, or after its end); return the time."""
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
        """Return the three shares since the last call (or the first episode); empty where no time has passed."""
        self._advance(self.clock())
        areas = {"engine_busy": self._busy, "bubble_environment": self._environment, "bubble_books": self._idle}
        self._busy = self._environment = self._idle = 0.0
        total = sum(areas.values())
        return {name: area / total for name, area in areas.items()} if total else {}

    def generating_s(self) -> float:
        """Return the seconds so far in which at least one episode waited for a reply of the engine."""
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
            self._idle += (room - playing) * seconds
        self._since = now


class Timeline:
    """Phases of one episode, and its requests' prompt and cached tokens; drawn on a track of the trace, if any.

    ``counts`` has ``prompt_tokens`` and ``cached_tokens`` (of requests whose engine says how many it reused),
    ``continued`` (replies that continued after a weight update cut them), ``replies`` (that are complete) and ``cut``
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
        self._start = self._began = self._request_start = load.move(None, "own")

    def phase(self, name: str) -> None:
        self._turn_to(name)
        self._request_start = self._began

    def generated(self, prompt: int, tokens: int, metrics: Mapping[str, float]) -> None:
        """Record a request of ``prompt`` tokens that has ended with ``tokens`` new ones, and the engine's metrics."""
        self.tokens += tokens
        if (cached := metrics.get("cached_tokens")) is not None:
            self.counts.update(prompt_tokens=prompt, cached_tokens=int(cached))
        self._queued += float(metrics.get("queue_s", 0.0))
        self._request_start = self._load.clock()

    def replied(self, *, cut: bool) -> None:
        """Record a complete reply; ``cut`` if its length limit ended it."""
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
        if self._phase is None:
            return
        self.cause = cause
        if self._phase == "generate":
            self.unanswered_s = self._load.clock() - self._request_start
        self._turn_to(None)
        queued = min(self._queued, self.seconds["generate"])
        self.seconds["queue"] += queued
        self.seconds["generate"] -= queued
        if self._trace is not None and self._lane is not None:
            arguments = {"status": status} | ({"cause": cause} if cause else {})
            self._trace.span(self._lane, self._name, self._start, self._began, arguments)
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

    All probes that were due while a loop was blocked are counted, each with its own delay ("coordinated omission", as
    corrected by HdrHistogram's ``recordValueWithExpectedInterval``).
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._lags: list[float] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._arm(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> dict[str, float]:
        """Return ``loop_lag_p50_s``, ``loop_lag_p99_s``, ``loop_lag_max_s`` since the last call; {} without a probe."""
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


_ENDED = "episodes_"  # before a status


class Stats:
    """Counts over the episodes that ended between two batches; ``problems`` has the last message of each cause."""

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._episodes = 0
        self.problems: dict[str, str] = {}

    def end(self, trajectory: Trajectory, timeline: Timeline) -> None:
        status = trajectory.status.value
        self._statuses[f"{_ENDED}{status}"] += 1
        if timeline.cause is not None:
            cause = f"{status}_{timeline.cause}"
            self._statuses[f"cause_{cause}"] += 1
            self.problems[cause] = trajectory.error or trajectory.stop or "no reason given"
        self._episodes += 1
        self._seconds.update(timeline.seconds)  # type: ignore[arg-type]  # it adds floats as well
        self._counts.update(timeline.counts)

    def stats(self) -> dict[str, float]:
        counts = self._counts
        stats = {name: float(count) for name, count in self._statuses.items()}
        stats |= {f"time_{name}_s": seconds / self._episodes for name, seconds in self._seconds.items()}
        if counts["prompt_tokens"]:
            stats["prefix_cache_hit"] = counts["cached_tokens"] / counts["prompt_tokens"]
        if counts["replies"]:
            stats["replies_cut"] = counts["cut"] / counts["replies"]
        stats["replies_continued"] = float(counts["continued"])
        return stats


def ended(stats: Mapping[str, float]) -> dict[str, float]:
    """Return the number of episodes by status, from a batch's stats."""
    names = {f"{_ENDED}{status.value}": status.value for status in Status}
    return {status: stats[name] for name, status in names.items() if name in stats}


def ages(groups: Sequence[Sequence[Trajectory]], version: int) -> dict[str, float]:
    """Measure the age of each episode's oldest token, in versions: mean, maximum, and the share of each age."""
    counts = Counter(version - (trajectory.oldest_version or 0) for group in groups for trajectory in group)
    total = counts.total()
    return {
        **{f"staleness_{age}": count / total for age, count in sorted(counts.items())},
        "staleness_mean": sum(age * count for age, count in counts.items()) / total,
        "staleness_max": float(max(counts)),
    }


@dataclass
class _Attempt:
    """An attempt at an episode, observed from ``begin`` to ``end`` tokens; ``ended`` there by itself, or cut."""

    sampled: Tokens
    begin: int
    end: int
    ended: bool


class Lengths:
    """The mean length of episodes of which some were cut before their end.

    The product-limit estimator (Kaplan and Meier 1958) with delayed entry: an episode that was cut counts up to where
    it was cut. Where the longest was cut, it is a lower bound.
    """

    def __init__(self) -> None:
        self._begin: Counter[int] = Counter()
        self._end: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()

    def add(self, begin: int, end: int, ended: bool) -> None:
        """Add an episode observed from ``begin`` to ``end`` tokens, which ended there or was cut."""
        if end > begin:
            self._begin[begin] += 1
            self._end[end] += 1
            self._ended[end] += ended

    def mean(self) -> float:
        """Return the estimated mean; 0 without any episode."""
        mean, survive, at_risk, before = 0.0, 1.0, 0, 0
        for length in sorted({*self._begin, *self._end}):
            mean += survive * (length - before)
            if ended := self._ended[length]:
                survive *= 1.0 - ended / at_risk
            at_risk += self._begin[length] - self._end[length]
            before = length
        return mean


class LengthBias:
    """Bias of the lengths of delivered episodes, relative to those of all sampled ones.

    The reference must not depend on length, as "all episodes that ended so far" does: the long ones have not, or were
    cut. So the first ``k`` groups delivered are compared with all attempts at the first ``k`` groups admitted, once all
    of these are known::

        bias(k) = mean sampled tokens an episode of the first k delivered / estimated mean of those attempts

    The estimate (:class:`Lengths`) takes attempts that were cut as at least so long. An attempt that repeats the tokens
    of an earlier one continues that one. Tokens of a request that was cancelled are estimated from its seconds. It is
    reported for the largest ``k``, a multiple of the batch, that is known; groups dropped for equal rewards have no
    part in it.
    """

    def __init__(self) -> None:
        self._attempts: dict[int, dict[int, list[_Attempt]]] = {}  # by group and sibling, not yet in _admitted
        self._groups: set[int] = set()  # delivered, and not yet in _admitted
        self._delivered = (0, 0, 0)  # groups, episodes, tokens
        self._batches: deque[tuple[int, int, int]] = deque()  # _delivered after each batch that waits to be compared
        self._admitted, self._lengths = 0, Lengths()
        self._tokens, self._seconds = 0, 0.0  # of episodes that ended
        self._next = 0  # the first group not in _admitted
        self.value: float | None = None

    def attempt(self, group: int, sibling: int, trajectory: Trajectory | None, timeline: Timeline) -> None:
        """Record an ended attempt at an episode; ``trajectory`` is ``None`` if it was withdrawn."""
        sampled, length, ended = np.zeros(0, np.int32), timeline.tokens, False
        if trajectory is not None:
            sampled = trajectory.token_ids[trajectory.action_mask]
            ended = trajectory.status.trainable
        if ended:
            self._tokens += length
            self._seconds += timeline.seconds["generate"]
        elif self._seconds:
            length += round(timeline.unanswered_s * self._tokens / self._seconds)
        if group < self._next:  # its group is counted
            self._lengths.add(0, length, ended)
            return
        attempts = self._attempts.setdefault(group, {}).setdefault(sibling, [])
        for earlier in attempts:
            earlier.begin = max(earlier.begin, _common(earlier.sampled, sampled))
        attempts.append(_Attempt(sampled, 0, length, ended))

    def forget(self, group: int) -> None:
        self._attempts.pop(group, None)

    def deliver(self, batch: Mapping[int, Sequence[Trajectory]], is_done: Callable[[int], bool]) -> float | None:
        """Return the bias after this batch of groups by number; ``None`` while it cannot be estimated.

        ``is_done`` tells whether the group of a number was dropped, or delivered before this process began.
        """
        self._groups.update(batch)
        groups, episodes, tokens = self._delivered
        episodes += sum(map(len, batch.values()))
        tokens += sum(int(episode.action_mask.sum()) for group in batch.values() for episode in group)
        self._delivered = (groups + len(batch), episodes, tokens)
        self._batches.append(self._delivered)
        while self._batches:
            groups, episodes, tokens = self._batches[0]
            while self._admitted < groups:
                if self._next not in self._groups and not is_done(self._next):
                    return self.value
                self._admit(self._next)
                self._next += 1
            if mean := self._lengths.mean():
                self.value = round(tokens / episodes / mean, 9)  # not the order of sums, which resuming changes
            self._batches.popleft()
        return self.value

    def _admit(self, group: int) -> None:
        self._admitted += group in self._groups
        self._groups.discard(group)
        for attempts in self._attempts.pop(group, {}).values():
            for attempt in attempts:
                self._lengths.add(attempt.begin, attempt.end, attempt.ended)


def _common(one: Tokens, other: Tokens) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return int(differ[0]) if len(differ) else size


# ------------------------------------------------------------------------------------------------ the trace

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
