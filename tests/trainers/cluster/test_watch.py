"""The outcome of a call: every order of events ends, with the right cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.cluster.rank import Heartbeat, Verdict, Watch

LIMITS = {"silence": 10.0, "stall": 100.0, "grace": 3.0}


def watch(ranks: int = 2) -> Watch:
    return Watch(ranks, 0.0, **LIMITS)


def tell(call: Watch, what: str, rank: int, now: float) -> None:
    if what in ("done", "raised"):
        call.answered(rank, now, raised=what == "raised")
    elif what == "gone":
        call.lost(rank, f"rank {rank} died")
    elif what in ("moves", "waits"):
        call.pulse(rank, Heartbeat(0.0, what == "waits", "somewhere"), now)


@pytest.mark.parametrize(
    ("ranks", "events", "now", "verdict"),
    [
        (2, [("done", 0, 1.0)], 1.0, None),
        (2, [("done", 0, 1.0), ("done", 1, 2.0)], 2.0, ("done", None, ())),
        # Errors of all ranks keep the group, and no others.
        (2, [("raised", 1, 1.0), ("raised", 0, 2.0)], 2.0, ("raised", 1, ())),
        (2, [("raised", 1, 1.0), ("done", 0, 2.0)], 2.0, ("broken", 1, (1,))),
        # The first error is the cause while others wait.
        (3, [("raised", 2, 1.0), ("waits", 0, 3.9)], 3.9, None),
        (3, [("raised", 2, 1.0), ("waits", 0, 3.9)], 4.0, ("broken", 2, (2,))),
        # Silence counts only for ranks that have not answered.
        (3, [("done", 0, 1.0), ("moves", 1, 9.0)], 9.9, None),
        (3, [("done", 0, 1.0), ("moves", 1, 9.0)], 10.0, ("broken", None, (2,))),
        # A rank that moves is late in the end.
        (2, [("done", 0, 1.0), ("moves", 1, 100.0)], 100.9, None),
        (2, [("done", 0, 1.0), ("moves", 1, 101.0)], 101.0, ("broken", None, (1,))),
    ],
)
def test_events_lead_to_verdict(ranks, events, now, verdict):
    call = watch(ranks)
    for event in events:
        tell(call, *event)
    actual = call.verdict(now)
    assert (actual and (actual.kind, actual.rank, actual.ranks)) == verdict


@pytest.mark.parametrize("late", [0.1, 2.9])
def test_death_behind_a_survivors_error_is_cause(late):
    call = watch()
    call.answered(0, 1.0, raised=True)  # connection reset by peer
    assert call.verdict(1.0 + late) is None
    call.lost(1, "rank 1 was killed")
    assert call.verdict(1.0 + late) == Verdict("broken", ranks=(1,), message="rank 1 was killed")


def test_waiting_rank_is_blamed_only_with_all():
    call = watch(2)
    for waiting, guilty in ((False, (1,)), (True, (0, 1))):
        call.pulse(0, Heartbeat(100.0, True, "was in all_reduce"), 101.0)
        call.pulse(1, Heartbeat(99.0, waiting, "was in my_loss"), 101.0)
        verdict = call.verdict(101.0)
        assert verdict is not None
        assert verdict.ranks == guilty


def test_late_rank_without_heartbeat_has_no_place():
    call = Watch(3, 0.0, silence=1000.0, stall=10.0, grace=3.0)
    call.answered(0, 1.0, raised=False)
    assert call.verdict(11.0) == Verdict("broken", ranks=(1, 2), message="made no progress for 10 s")
    call.pulse(1, Heartbeat(0.0, False, "in my_loss"), 11.0)
    assert call.verdict(11.0) == Verdict(
        "broken", ranks=(1, 2), message="made no progress for 10 s (rank 1 in my_loss)"
    )


EVENTS = st.tuples(
    st.sampled_from(["done", "raised", "gone", "moves", "waits", "nothing"]),
    st.integers(0, 3),
    st.floats(0.0, 8.0, allow_nan=False),
)


@given(st.integers(1, 4), st.lists(EVENTS, max_size=30))
def test_every_call_ends_and_success_needs_all(ranks: int, events: list[tuple[str, int, float]]) -> None:
    call, now = watch(ranks), 0.0
    answers: dict[int, bool] = {}
    dead: set[int] = set()
    for what, number, later in events:
        rank, now = number % ranks, now + later
        if what in ("done", "raised"):
            if rank in answers or rank in dead:
                continue
            answers[rank] = what == "raised"
        elif what == "gone":
            dead.add(rank)
        tell(call, what, rank, now)
        verdict = call.verdict(now)
        if dead:
            assert verdict is not None
            assert set(verdict.ranks) == dead
            return
        if verdict is None:
            continue
        if verdict.kind == "done":
            assert answers == dict.fromkeys(range(ranks), False)
        elif verdict.kind == "raised":
            assert answers == dict.fromkeys(range(ranks), True)
            assert verdict.rank == next(iter(answers))
        else:
            assert verdict.ranks
            assert verdict.message
        return
    verdict = call.verdict(now + LIMITS["silence"] + 1e-6)  # no further event
    assert verdict is not None
