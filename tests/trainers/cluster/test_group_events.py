"""The group's handling of events of scripted ranks: the error that is raised, and the state after it."""

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
from trainers.config.model import ModelSection
from trainers.config.running import ClusterSection
from trainers.learner.fsdp import OtherRankError

NO_LEARNER = ClusterSection(), None, ModelSection()  # which no rank builds


class ScriptedRanks:
    """Two ranks that start, and then play ``script``, one item a poll."""

    count = 2

    def __init__(self, script: list[list[Event]]) -> None:
        self.script, self.killed, self.closed = script, threading.Event(), 0
        self._number = 0

    def name(self, rank: int) -> str:
        return f"learner rank {rank}"

    def post(self, number: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._number = number
        if method in ("open", "build"):
            result = {"critic": False, "reference": False, "places": []} if method == "build" else None
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


def test_late_death_is_cause_with_error_as_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.cluster.group._GRACE_S", 60.0)
    reset = raised(ConnectionError("connection reset by peer"))
    ranks = ScriptedRanks([[Event(0, "failed", 0, reset)], [], [Event(1, "gone", 0, "was killed by SIGSEGV")]])
    group = LearnerGroup(ranks, *NO_LEARNER)
    with pytest.raises(RankError, match="learner rank 1 was killed by SIGSEGV") as caught:
        group.values([])
    assert "connection reset by peer" in "\n".join(caught.value.__notes__)
    assert ranks.killed.is_set()
    with pytest.raises(RankError, match="has ended: in values, learner rank 1 was killed by SIGSEGV"):
        group.values([])
    group.close()
    assert ranks.closed == 1


def test_error_of_one_rank_stops_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.cluster.group._GRACE_S", 0.05)
    ranks = ScriptedRanks([[Event(1, "failed", 0, raised(ArithmeticError("this rank cannot add")))]])
    group = LearnerGroup(ranks, *NO_LEARNER)
    with pytest.raises(ArithmeticError, match="this rank cannot add") as caught:
        group.values([])
    notes = "\n".join(caught.value.__notes__)
    assert "On learner rank 1" in notes
    assert "The other ranks were stopped" in notes
    assert ranks.killed.is_set()
    with pytest.raises(RankError, match="raised, and others wait for it"):
        group.values([])


@pytest.mark.parametrize("first", [0, 1])
def test_failed_ranks_error_wins_in_any_order(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk on the writing rank: the run ends with its OSError."""
    monkeypatch.setattr("trainers.cluster.group._GRACE_S", 60.0)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/runs/checkpoint")
    errors: dict[int, BaseException] = {0: full, 1: OtherRankError("rank 0 failed with OSError: no space left")}
    events = [Event(rank, "failed", 0, raised(errors[rank])) for rank in (first, 1 - first)]
    group = LearnerGroup(
        ScriptedRanks([[events[0]], [events[1]], [Event(rank, "done", 0) for rank in range(2)]]), *NO_LEARNER
    )
    with pytest.raises(OSError, match="No space left on device") as caught:
        group.save("/runs/checkpoint")
    assert "On learner rank 0" in "\n".join(caught.value.__notes__)
    group.values([])  # all ranks are at the same point: the group stays usable


def test_events_of_earlier_calls_are_ignored():
    late = [Event(0, "done", 1, "the answer to another question"), Event(1, "failed", 1, raised(ValueError()))]
    ranks = ScriptedRanks([late, [Event(1, "done", 0)], [Event(0, "done", 0, "the answer")]])
    group = LearnerGroup(ranks, *NO_LEARNER)
    assert group.values([]) == "the answer"


def test_unpicklable_error_is_raised_as_text():
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} is odd")

    failure = raised(Odd(1, 2))
    assert failure.error is None
    group = LearnerGroup(ScriptedRanks([[Event(rank, "failed", 0, failure) for rank in range(2)]]), *NO_LEARNER)
    with pytest.raises(RankError, match="1 is odd"):
        group.values([])


def test_close_ends_a_call_of_another_thread():
    group = LearnerGroup(ScriptedRanks([]), *NO_LEARNER)
    messages: list[str] = []

    def call() -> None:
        try:
            group.values([])
        except RankError as error:
            messages.append(str(error))

    waiting = threading.Thread(target=call)
    waiting.start()
    group.close()
    waiting.join(timeout=60)
    assert messages == ["the learner has ended: it was closed"]
