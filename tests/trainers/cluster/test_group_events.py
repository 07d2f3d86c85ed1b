"""What the group makes of events, with ranks that are only told of: which error is raised, and what comes after it."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from trainers.cluster.group import Event, LearnerGroup, RankError
from trainers.cluster.rank import Failure
from trainers.learner.fsdp import OtherRankError


class Told:
    """Two ranks that start well, and then do what ``script`` says, an item a look."""

    count = 2

    def __init__(self, script: list[list[Event]]) -> None:
        self.script, self.killed, self.closed = script, threading.Event(), 0
        self._number = 0

    def name(self, rank: int) -> str:
        return f"learner rank {rank}"

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._number = number
        if method in ("open", "build"):
            result = {"critic": False, "reference": False} if method == "build" else None
            self.script.insert(0, [Event(rank, "done", number, result) for rank in range(2)])

    def poll(self, timeout: float) -> list[Event]:
        if self.killed.is_set():
            return [Event(rank, "gone", 0, "was killed by SIGKILL") for rank in range(2)]
        if self.script:
            return [Event(e.rank, e.kind, e.number or self._number, e.value) for e in self.script.pop(0)]
        time.sleep(0.01)
        return []

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.closed += 1


def raised(error: BaseException) -> Failure:
    return Failure.of(error)


def test_the_news_of_a_death_after_a_survivors_error_is_the_cause_and_keeps_the_error_as_a_note():
    reset = raised(ConnectionError("connection reset by peer"))
    ranks = Told([[Event(0, "failed", 0, reset)], [], [Event(1, "gone", 0, "was killed by SIGSEGV")]])
    group = LearnerGroup(ranks, None, {})
    with pytest.raises(RankError, match="learner rank 1 was killed by SIGSEGV") as caught:
        group.values([])
    assert "connection reset by peer" in "\n".join(caught.value.__notes__)
    assert ranks.killed.is_set()
    with pytest.raises(RankError, match="has ended: in values, learner rank 1 was killed by SIGSEGV"):
        group.values([])
    group.close()
    assert ranks.closed == 1


def test_an_error_of_one_rank_is_raised_and_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.cluster.group._GRACE_S", 0.05)
    ranks = Told([[Event(1, "failed", 0, raised(ArithmeticError("this rank cannot add")))]])
    group = LearnerGroup(ranks, None, {})
    with pytest.raises(ArithmeticError, match="this rank cannot add") as caught:
        group.values([])
    notes = "\n".join(caught.value.__notes__)
    assert "On learner rank 1" in notes
    assert "The other ranks were stopped" in notes
    assert ranks.killed.is_set()
    with pytest.raises(RankError, match="raised, and others wait for it"):
        group.values([])


@pytest.mark.parametrize("first", [0, 1])
def test_error_of_the_failed_rank_is_raised_in_any_order_of_answers(first: int) -> None:
    """A full disk on the rank that writes: its OSError is what a run ends with in plain words."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/checkpoint")
    told: dict[int, BaseException] = {0: full, 1: OtherRankError("rank 0 failed with OSError: no space left")}
    events = [Event(rank, "failed", 0, raised(told[rank])) for rank in (first, 1 - first)]
    group = LearnerGroup(Told([[events[0]], [events[1]], [Event(rank, "done", 0) for rank in range(2)]]), None, {})
    with pytest.raises(OSError, match="No space left on device") as caught:
        group.save("/runs/checkpoint")
    assert "On learner rank 0" in "\n".join(caught.value.__notes__)
    group.values([])  # all ranks are at the same point: the group goes on


def test_events_of_calls_that_are_over_do_not_count():
    late = [Event(0, "done", 1, "the answer to another question"), Event(1, "failed", 1, raised(ValueError()))]
    ranks = Told([late, [Event(1, "done", 0)], [Event(0, "done", 0, "the answer")]])
    group = LearnerGroup(ranks, None, {})
    assert group.values([]) == "the answer"


def test_an_error_that_cannot_be_pickled_is_told_in_words():
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} is odd")

    failure = raised(Odd(1, 2))
    assert failure.error is None
    group = LearnerGroup(Told([[Event(rank, "failed", 0, failure) for rank in range(2)]]), None, {})
    with pytest.raises(RankError, match="1 is odd"):
        group.values([])


def test_closing_ends_a_call_that_another_thread_waits_for():
    group = LearnerGroup(Told([]), None, {})
    said: list[str] = []

    def call() -> None:
        try:
            group.values([])
        except RankError as error:
            said.append(str(error))

    waiting = threading.Thread(target=call)
    waiting.start()
    group.close()
    waiting.join(timeout=30)
    assert said == ["the learner has ended: it was closed"]
