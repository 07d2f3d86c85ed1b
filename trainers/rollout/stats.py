"""The collector's statistics: time by phase, episodes by status.

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
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..trajectory import Status, Trajectory
from .trace import TraceFile

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
