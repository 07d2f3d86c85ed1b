"""Where the time goes: of one episode, and of the engine's room over all episodes. Clock reads only, no I/O.

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
from collections import Counter
from collections.abc import Callable, Mapping

from .trace import Lane

PHASES = ("queue", "reset", "generate", "step", "rewards", "own")


def loop_time() -> float:
    """Seconds on the running event loop's clock."""
    return asyncio.get_running_loop().time()


class Load:
    """How full the engine was, integrated over time.

    The engine has room for ``room`` requests at a time. At any moment its places are busy, or idle for one of two
    reasons, so the three shares add up to 1:

    * ``engine_busy``: a request is in it (at most ``room`` count; what it queues beyond counts as one place each).
    * ``bubble_environment``: idle, while the episode that could use it is elsewhere: with its environment, waiting for
      one, or waiting for rewards.
    * ``bubble_books``: idle, and no episode runs that could use it, because none may start: staleness, the order of
      delivery, or ``max_running`` forbid it, or the trainer has not published the update that it owes.

    The last is the *bubble* of pipeline parallelism (Huang et al. 2019, arXiv 1811.06965), idle capacity over capacity,
    for the pipeline of rollout and trainer.

    Args:
        room: Requests that the engine computes at a time.
        clock: Seconds, monotonic.
    """

    def __init__(self, room: int, clock: Callable[[], float] = loop_time) -> None:
        self.room = room
        self.clock = clock
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
        """The three shares since the last call (or since the first episode); empty where no time has passed."""
        self._advance(self.clock())
        areas = {
            "engine_busy": self._busy,
            "bubble_environment": self._environment,
            "bubble_books": self._books,
        }
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
    """One episode's phases, and what its requests read and reused.

    Args:
        load: What the phases are told to.
        lane: Where they are drawn, if a trace is written.
        lanes: Where rewards that come later are drawn, likewise.
    """

    __slots__ = (
        *("_asked", "_began", "_lane", "_load", "_phase", "_queued", "_start"),
        *("cached_tokens", "cause", "continued", "cut", "lanes", "prompt_tokens", "replies", "seconds", "tokens"),
        "unanswered_s",
    )

    def __init__(self, load: Load, lane: Lane | None = None, lanes: Callable[[str], Lane] | None = None) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.prompt_tokens = 0  # of requests whose engine says how many it reused
        self.cached_tokens = 0
        self.continued = 0  # replies that went on after a weight update had cut them
        self.tokens = 0  # sampled
        self.replies = 0  # replies that are complete
        self.cut = 0  # of these, those that ended at their length limit
        self.unanswered_s = 0.0  # of a request that was cancelled or failed
        self.cause: str | None = None  # why it ended, where it did not end well
        self.lanes = lanes
        self._load = load
        self._lane = lane
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
        cached = metrics.get("cached_tokens")
        if cached is not None:
            self.prompt_tokens += prompt
            self.cached_tokens += int(cached)
        self._queued += float(metrics.get("queue_s", 0.0))
        self._asked = self._load.clock()

    def replied(self, *, cut: bool) -> None:
        """A reply is complete; ``cut`` if its length limit ended it."""
        self.replies += 1
        self.cut += cut

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
        if self._lane is not None:
            self._lane.close(self._start, self._began, {"status": status, **({"cause": cause} if cause else {})})

    def _turn_to(self, new: str | None) -> None:
        old = self._phase
        assert old is not None, "this episode has ended"
        now = self._load.move(old, new)
        self.seconds[old] += now - self._began
        if self._lane is not None and old != "own":
            self._lane.span(old, self._began, now)
        self._phase, self._began = new, now
