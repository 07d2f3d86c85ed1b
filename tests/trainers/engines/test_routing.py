"""The router of the replicas: invariants under any order of events, each rule by itself, and the prefix index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainers.engines.routing import PREFILL_WEIGHT, Placement, PrefixIndex, Router


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def an_index(replicas: int, block: int, max_blocks: int = 10**6) -> PrefixIndex:
    index = PrefixIndex(replicas)
    index.block, index.max_blocks = block, max_blocks
    return index


def a_router(replicas: int, block: int = 16, max_blocks: int = 10**6, **settings: float) -> Router:
    router = Router(replicas)
    router.index = an_index(replicas, block, max_blocks)
    for name, value in settings.items():
        setattr(router, name, value)
    return router


def home_of(router: Router, session: str | None) -> int | None:
    state = None if session is None else router.sessions.get(session)
    return None if state is None else state.home


# ---------------------------------------------------------------- prefixes

SEQUENCES = st.lists(st.integers(0, 2), max_size=14)  # few tokens, so that prefixes are shared often


@given(
    block=st.integers(1, 4),
    served=st.lists(st.tuples(st.integers(0, 2), SEQUENCES), max_size=12),
    query=SEQUENCES,
    lost=st.integers(0, 3),
)
def test_index_knows_each_replicas_longest_prefix(block, served, query, lost):
    index = an_index(3, block)
    for replica, tokens in served:
        index.add(index.keys(tokens), replica)
    index.forget(lost) if lost < 3 else None
    expected = [0, 0, 0]
    for replica, tokens in served:
        common = 0
        while common < min(len(tokens), len(query)) and tokens[common] == query[common]:
            common += 1
        if replica != lost:
            expected[replica] = max(expected[replica], common // block * block)
    assert index.shared(index.keys(query)) == expected
    assert index.keys(query) == index.keys(query, index.keys(query[: len(query) // 2])), "keys can be continued"
    index.clear()
    assert index.shared(index.keys(query)) == [0, 0, 0]


@given(served=st.lists(st.tuples(st.integers(0, 1), SEQUENCES), max_size=20), most=st.integers(1, 9))
def test_index_is_bounded_and_claims_only_served(served, most):
    index, free = an_index(2, 2, most), an_index(2, 2)
    for replica, tokens in served:
        index.add(index.keys(tokens), replica)
        free.add(free.keys(tokens), replica)
        assert len(index) <= most
        believed, true = index.shared(index.keys(tokens)), free.shared(free.keys(tokens))
        assert all(b <= t for b, t in zip(believed, true, strict=True))
        assert believed[replica] == min(len(tokens) // 2, most) * 2, "the newest is known, from its beginning"


# ---------------------------------------------------------------- the invariants, under any order of events


class RouterMachine(RuleBasedStateMachine):
    """Requests, ends, deaths, returns, releases and updates, against an independent oracle."""

    @initialize(
        replicas=st.integers(1, 4),
        settle=st.integers(1, 3),
        slack=st.sampled_from([0.5, 2.0]),
        blocks=st.integers(1, 12),
    )
    def begin(self, replicas, settle, slack, blocks):
        self.settle, self.blocks = settle, blocks
        self.router = a_router(replicas, 2, blocks, settle=settle, slack=slack)
        self.up = set(range(replicas))
        self.flights: list[Placement] = []
        self.moved: dict[str, int] = {}  # session -> requests since it moved for balance

    @precondition(lambda self: self.up)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), limit=st.integers(1, 40), data=st.data())
    def request(self, tokens, limit, data):
        session = data.draw(st.sampled_from([None, "a", "b", "c", "d", "e", "f"]))
        avoid = data.draw(st.sets(st.integers(0, len(self.router.load) - 1), max_size=2))
        home = home_of(self.router, session)
        busy = any(flight.session == session for flight in self.flights)
        shedding = set(self.router.shedding)
        loads = {replica: self.router.load[replica] for replica in self.up}
        placement = self.router.place(ids(*tokens), limit, session, avoid)
        candidates = self.up - avoid or self.up
        assert placement.replica in candidates, "never a replica that is down"
        assert 0 < placement.charge <= PREFILL_WEIGHT * len(tokens) + limit
        self.flights.append(placement)
        if session is not None:
            assert home_of(self.router, session) == placement.replica
            if placement.reason == "balance":
                assert home in shedding
                assert not busy
                assert placement.previous_home == home != placement.replica
                assert self.moved.get(session, self.settle) >= self.settle, "a session that moved stays for a while"
                assert loads[placement.replica] < loads[home], "it moves to where less is to do"
                self.moved[session] = 0
            elif home in candidates:
                assert (placement.replica, placement.reason, placement.previous_home) == (home, "home", None)
            self.moved[session] = self.moved.get(session, self.settle) + 1
        if placement.reason == "load":
            calm = candidates - shedding or candidates
            assert loads[placement.replica] == min(loads[replica] for replica in calm)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), reply=st.one_of(st.none(), st.lists(st.integers(0, 1), max_size=6)))
    def finish(self, data, reply):
        at = data.draw(st.integers(0, len(self.flights) - 1))
        self.router.finish(self.flights.pop(at), None if reply is None else ids(*reply))

    @rule(data=st.data())
    def down(self, data):
        replica = data.draw(st.integers(0, len(self.router.load) - 1))
        self.router.down(replica)
        self.up.discard(replica)
        assert self.router.at_home[replica] == 0

    @rule(data=st.data())
    def come_up(self, data):
        replica = data.draw(st.integers(0, len(self.router.load) - 1))
        if replica not in self.up:
            self.router.up(replica)
            self.up.add(replica)

    @rule(session=st.sampled_from(["a", "b", "c", "d", "e", "f", "g"]))
    def release(self, session):
        holders = self.router.release(session)
        assert set(holders) <= self.up
        for flight in self.flights:
            if flight.session == session and flight.replica in self.up:
                break
        else:
            assert home_of(self.router, session) is None or any(f.session == session for f in self.flights)

    @rule()
    def update(self):
        self.router.forget_computed()
        assert len(self.router.index) == 0
        self.moved.clear()

    @invariant()
    def loads_and_flights_agree(self):
        if not hasattr(self, "router"):
            return
        router = self.router
        assert router.healthy == self.up
        for replica in range(len(router.load)):
            own = [flight for flight in self.flights if flight.replica == replica]
            assert router.in_flight[replica] == len(own)
            assert router.load[replica] == pytest.approx(sum(flight.charge for flight in own))
            assert own or router.load[replica] == 0, "what is added is taken off, to the last bit"
        assert len(router.index) <= self.blocks
        assert set(router.shedding) < self.up or not router.shedding, "never all that are up"


RouterMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestRouter = RouterMachine.TestCase


# ---------------------------------------------------------------- each rule


def test_session_goes_home_new_ones_to_least_loaded():
    router = Router(3)
    homes = [router.place(ids(i, i, i), 10, f"s{i}").replica for i in range(3)]
    assert sorted(homes) == [0, 1, 2]
    for i in (2, 0, 1):
        again = router.place(ids(i, i, i, i), 10, f"s{i}")
        assert (again.replica, again.reason) == (homes[i], "home")
    heavy = router.place(ids(9), 100)
    assert router.place(ids(8), 1).replica != heavy.replica


def test_sessions_spread_without_requests_in_flight():
    router = Router(2)
    for i in range(6):
        router.finish(router.place(ids(i), 5, f"s{i}"), ids(1, 2))
    assert [router.at_home[replica] for replica in range(2)] == [3, 3]


def test_new_session_follows_a_long_enough_prefix():
    router = a_router(2, block=4)
    router.finish(router.place(ids(*[1] * 8), 4, "a"), ids(7, 7, 7, 7))
    router.finish(router.place(ids(*[2] * 8), 4, "b"), ids(7, 7, 7, 7))
    home = home_of(router, "a")
    follower = router.place(ids(*[1] * 8, 7, 7, 7, 7, 3), 4, "c")
    assert (follower.replica, follower.reason) == (home, "prefix")
    assert follower.charge == pytest.approx(PREFILL_WEIGHT * 1 + 4), "what was computed before is not to be computed"
    assert router.counters == {"prefix_hits": 1, "prefix_tokens": 12, "moves": 0}
    stranger = router.place(ids(*[1] * 4, *[5] * 8), 4, "d")
    assert (stranger.replica, stranger.reason) == (1 - home, "load"), "a third of the prompt is not worth it"
    router.forget_computed()
    assert router.place(ids(*[2] * 8), 4, "e").reason == "load", "new weights: nothing is computed"


def test_overloaded_replica_sheds_until_balanced():
    router = a_router(2, slack=2.0, settle=3)
    flights = [router.place(ids(1), 16, f"s{i}") for i in range(8)]
    at_zero = [flight for flight in flights if flight.replica == 0]
    for flight in flights:
        if flight.replica == 1:
            router.finish(flight, ids(*[1] * 16))
    assert router.shedding == {0}, "4 requests against none"
    router.finish(at_zero[0], ids(*[1] * 16))
    assert router.shedding == {0}
    moving = router.place(ids(1, 2), 16, at_zero[0].session)
    assert (moving.replica, moving.reason, moving.previous_home) == (1, "balance", 0)
    assert router.place(ids(5), 16, "new").replica == 1
    busy = router.place(ids(1, 2), 16, at_zero[1].session)
    assert busy.replica == 0, "a session in flight does not move"
    router.finish(busy)
    for flight in at_zero[1:]:
        router.finish(flight, ids(*[1] * 16))
    assert 0 not in router.shedding
    assert router.counters["moves"] == 1


def test_swinging_load_does_not_oscillate_sessions():
    """Load that swings from one side to the other at every request: a session moves once in ``settle``."""
    router = a_router(2, settle=5, slack=1.0)
    router.finish(router.place(ids(1), 8, "s"), ids(1))
    for _ in range(60):
        home = home_of(router, "s")
        assert home is not None
        extra = [router.place(ids(3), 8, avoid={1 - home}) for _ in range(6)]
        assert router.shedding == {home}
        router.finish(router.place(ids(1, 2, 3), 8, "s"), ids(1))
        for other in extra:
            router.finish(other)
    assert 5 <= router.counters["moves"] <= 60 // 5 + 1


def test_sessions_of_lost_replica_move_once():
    router = Router(2)
    for i in range(4):
        router.finish(router.place(ids(i), 5, f"s{i}"), ids(1))
    homeless = [f"s{i}" for i in range(4) if home_of(router, f"s{i}") == 0]
    router.down(0)
    assert router.release(homeless[0]) == [], "no replica holds it"
    moved = router.place(ids(1, 2), 5, homeless[1])
    assert (moved.replica, router.counters["moves"]) == (1, 1)
    router.finish(moved, ids(1))
    router.up(0)
    assert router.place(ids(1, 2, 3), 5, homeless[1]).replica == 1
    assert router.place(ids(9), 5, "new").replica == 0
    assert router.release("never heard of") == [0, 1]


def test_moved_session_is_released_at_both_homes():
    router = Router(2)
    router.finish(router.place(ids(1), 5, "s"), ids(1))
    first = home_of(router, "s")
    moved = router.place(ids(1), 5, "s", avoid={first})
    router.finish(moved, ids(1))
    assert moved.previous_home == first
    assert home_of(router, "s") == 1 - first
    assert router.release("s") == [1 - first]
    assert home_of(router, "s") is None
    assert [router.at_home[replica] for replica in range(2)] == [0, 0]


def test_replies_set_the_expected_length():
    router = Router(1)
    first = router.place(ids(1), 1000)
    assert first.charge == pytest.approx(PREFILL_WEIGHT + 1000)
    router.finish(first, ids(*[1] * 10))
    assert router.place(ids(2), 1000).charge == pytest.approx(PREFILL_WEIGHT + 10)
    assert router.place(ids(2), 4).charge == pytest.approx(PREFILL_WEIGHT + 4)
    silent = a_router(1, block=1)
    silent.finish(silent.place(ids(1), 1000), ids())
    assert silent.place(ids(1), 1000).charge == 1, "nothing to compute and nothing to expect is still a request"
