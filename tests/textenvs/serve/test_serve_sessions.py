"""The books of a server, held against a plain account of what was asked."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from textenvs.serve.protocol import Refusal
from textenvs.serve.sessions import Book, Join, Limits, Repeat, Start

LIMITS = Limits(
    max_sessions=4, max_sessions_per_token=3, max_running=3, idle_s=10.0, grace_s=3.0, linger_s=5.0, max_age_s=40.0
)
OWNERS = ("ann", "bob")
FIRST, SECOND = "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b", "a44f1c0e-3f4b-4d0c-9f0e-6f1d7a3c2b10"
WIRES = (None, "wire 1", "wire 2")


def refused(call, *args, **kwargs):
    with pytest.raises(Refusal) as raised:
        call(*args, **kwargs)
    return raised.value


class Books(RuleBasedStateMachine):
    """Sessions as a client sees them: what it was answered must never contradict what it was answered before."""

    sessions = Bundle("sessions")
    asked = Bundle("asked")  # (owner, session, turn, id, fingerprint) of requests that were made

    def __init__(self):
        super().__init__()
        self.book = Book(LIMITS)
        self.now = 0.0
        self.numbers = itertools.count()
        self.facts = {}  # by session, what must hold: owner, opened, used, turn, over, wire, lost, work, last, gone

    def _check_ended(self, ended):
        for session in ended:
            fact = self.facts[session]
            assert not fact["gone"], "it ended twice"
            assert fact["work"] is None, "it ended while it was at work"
            fact["gone"] = True

    def _touch(self, fact, wire):
        fact.update(used=self.now, wire=wire or fact["wire"], lost=None)

    # ---------------------------------------------------------------- requests

    @rule(target=sessions, owner=st.sampled_from(OWNERS), wire=st.sampled_from(WIRES))
    def open(self, owner, wire):
        name, request = f"s{next(self.numbers)}", f"a UUID of our own {next(self.numbers)}"
        there = [fact for fact in self.facts.values() if not fact["gone"]]
        mine = [fact for fact in there if fact["owner"] == owner]
        working = [fact for fact in there if fact["work"] is not None]

        def ask():
            return self.book.open(self.now, owner, request, "open", session=name, connection=wire)

        if len(there) >= 4 or len(mine) >= 3 or len(working) >= 3:
            why = refused(ask)
            assert why.kind == ("full" if len(there) >= 4 or len(mine) >= 3 else "overloaded")
            assert why.retry_after_s > 0
            return name
        assert ask() == Start(name)
        self.facts[name] = {
            "owner": owner, "opened": self.now, "used": self.now, "turn": 0, "over": False, "wire": wire, "lost": None,
            "work": (request, "open", 0), "last": None, "gone": False, "closing": False,
        }  # fmt: skip
        assert ask() == Join(name)
        assert refused(self.book.open, self.now, owner, request, "other", session="x").kind == "bad_request"
        return name

    @rule(
        target=asked,
        session=sessions,
        owner=st.sampled_from(OWNERS),
        wire=st.sampled_from(WIRES),
        ahead=st.sampled_from((0, 0, 0, 0, -1, 1)),
        steps=st.booleans(),
    )
    def step(self, session, owner, wire, ahead, steps):
        fact = self.facts.get(session)
        turn = max(0, (0 if fact is None else fact["turn"]) + ahead)
        request = (owner, session, turn, f"r{next(self.numbers)}", steps)
        self._ask(request, wire)
        return request

    @rule(request=asked, wire=st.sampled_from(WIRES))
    def ask_again(self, request, wire):
        self._ask(request, wire)

    def _ask(self, request, wire):
        owner, session, turn, name, steps = request
        fact = self.facts.get(session)
        running = sum(each["work"] is not None for each in self.facts.values())

        def ask(asked=f"step {turn} {steps}"):
            return self.book.begin(
                self.now, owner, name, asked, session=session, turn=turn, connection=wire, steps=steps
            )

        if fact is None or fact["gone"] or fact["closing"] or fact["owner"] != owner:
            assert refused(ask).kind == "unknown_session"
        elif fact["work"] is not None and fact["work"][0] == name:
            assert ask() == Join(session)
            self._touch(fact, wire)
            assert refused(ask, "something else").kind == "bad_request"
        elif fact["last"] is not None and fact["last"][0] == name:
            assert ask() == Repeat(session, fact["last"][1])
            self._touch(fact, wire)
        elif fact["work"] is not None:
            assert refused(ask).kind == "busy"
        elif turn != fact["turn"]:
            assert refused(ask).details["turn"] == fact["turn"]
        elif fact["over"] and steps:
            assert refused(ask).kind == "reset_needed"
        elif running >= 3:
            assert refused(ask).kind == "overloaded"
        else:
            assert ask() == Start(session)
            self._touch(fact, wire)
            fact["work"] = (name, f"step {turn} {steps}", int(steps))

    def _at_work(self):
        return [name for name, fact in self.facts.items() if fact["work"] is not None]

    @rule(pick=st.integers(0, 3), over=st.booleans())
    def finish(self, pick, over):
        at_work = self._at_work()
        if not at_work:
            return
        session = at_work[pick % len(at_work)]
        fact = self.facts[session]
        name, _, turns = fact["work"]
        answer = f"answer {next(self.numbers)}"
        fact.update(work=None, last=(name, answer), turn=fact["turn"] + turns, used=self.now)
        fact["over"] = fact["over"] or (over and turns > 0)
        ended = self.book.finish(self.now, session, answer, turns=turns, over=fact["over"])
        assert ended == ([session] if fact["closing"] else [])
        self._check_ended(ended)

    @rule(pick=st.integers(0, 3))
    def fail(self, pick):
        at_work = self._at_work()
        if not at_work:
            return
        session = at_work[pick % len(at_work)]
        fact = self.facts[session]
        fact.update(work=None, used=self.now)
        ended = self.book.fail(self.now, session)
        assert ended == ([session] if fact["closing"] or fact["last"] is None else [])
        self._check_ended(ended)

    @rule(session=consumes(sessions), owner=st.sampled_from(OWNERS))
    def close(self, session, owner):
        ended = self.book.close(owner, session)
        fact = self.facts.get(session)
        if fact is None or fact["gone"] or fact["owner"] != owner:
            assert ended == []
        elif fact["work"] is not None:
            assert ended == []
            fact["closing"] = True
        else:
            assert ended == [session]
            self._check_ended(ended)

    @rule(wire=st.sampled_from(WIRES[1:]))
    def lose(self, wire):
        self.book.lose(self.now, wire)
        for fact in self.facts.values():
            if fact["wire"] == wire:
                fact.update(wire=None, lost=self.now)

    @rule(seconds=st.sampled_from((0.0, 1.0, 2.9, 3.0, 5.0, 9.0, 41.0)))
    def wait(self, seconds):
        self.now += seconds
        ended = self.book.expire(self.now)
        self._check_ended(ended)
        for name, fact in self.facts.items():
            ends = [fact["opened"] + 40.0, fact["used"] + 10.0]
            if fact["lost"] is not None:
                ends.append(fact["lost"] + 3.0)
            if fact["over"]:
                ends.append(fact["used"] + 5.0)
            if not fact["gone"] and fact["work"] is None:
                assert self.now < min(ends), f"{name} should have ended"
            if name in ended:
                assert self.now >= min(ends), f"{name} ended too early"

    # ---------------------------------------------------------------- always

    @invariant()
    def it_counts_what_there_is(self):
        there = {name for name, fact in self.facts.items() if not fact["gone"]}
        assert len(self.book) == len(there) <= 4
        assert all(name in self.book for name in there)
        assert self.book.running == len(self._at_work()) <= 3
        assert self.book.playing == sum(not self.facts[name]["over"] for name in there)
        assert sum(self.book.ended.values()) == sum(fact["gone"] for fact in self.facts.values())

    @invariant()
    def nothing_is_left_of_what_has_ended(self):
        assert set(self.book._opened.values()) == set(self.book._sessions)
        assert sum(self.book._owned.values()) == len(self.book)


Books.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_books = Books.TestCase


def test_an_opening_that_is_asked_for_again_opens_no_second_session():
    book = Book(LIMITS)
    assert book.open(0, "ann", FIRST, "x", session="s1") == Start("s1")
    assert book.open(1, "ann", FIRST, "x", session="s2") == Join("s1")
    book.finish(1, "s1", "opened")
    assert book.open(2, "ann", FIRST, "x", session="s3") == Repeat("s1", "opened")
    assert book.open(2, "bob", FIRST, "x", session="s4") == Start("s4")  # another's ids are another's
    assert book.begin(3, "ann", "r2", "step", session="s1", turn=0) == Start("s1")
    assert book.open(3, "ann", FIRST, "x", session="s5") == Repeat(
        "s1", "opened"
    )  # a duplicate that was long on its way
    assert book.begin(3, "ann", "r2", "step", session="s1", turn=0) == Join("s1")
    book.finish(3, "s1", "played", turns=1)
    assert refused(book.open, 3, "ann", FIRST, "x", session="s5").kind == "wrong_turn"
    assert len(book) == 2


def test_two_clients_of_one_token_that_count_their_requests_are_not_given_the_same_session():
    book = Book(LIMITS)
    for _ in range(2):
        for number in ("1", "req-1", "x" * 15):
            problem = refused(book.open, 0, "ann", number, "x", session="s1")
            assert problem.kind == "bad_request"
            assert "UUID" in str(problem)
    assert len(book) == 0
    assert book.open(0, "ann", "x" * 16, "x", session="s1") == Start("s1")


def test_draining_opens_nothing_and_lets_the_rest_go_on():
    book = Book(LIMITS)
    book.open(0, "ann", FIRST, "x", session="s1")
    book.finish(0, "s1", "opened")
    book.draining = True
    assert refused(book.open, 0, "ann", SECOND, "x", session="s2").kind == "draining"
    assert book.open(0, "ann", FIRST, "x", session="s2") == Repeat("s1", "opened")
    assert book.begin(0, "ann", "r3", "step", session="s1", turn=0) == Start("s1")
    assert book.close_all() == []
    assert refused(book.begin, 0, "ann", "r3", "step", session="s1", turn=0).kind == "unknown_session"
    assert book.finish(1, "s1", "played", turns=1) == ["s1"]
    assert dict(book.ended) == {"shutdown": 1}


def test_no_more_is_at_work_than_allowed():
    book = Book(Limits(max_running=1))
    for request, name in ((FIRST, "s1"), (SECOND, "s2")):
        book.open(0, "ann", request, "x", session=name)
        book.finish(0, name, "opened")
    assert book.begin(0, "ann", "r1", "step", session="s1", turn=0) == Start("s1")
    assert refused(book.begin, 0, "ann", "r2", "step", session="s2", turn=0).kind == "overloaded"
    assert refused(book.open, 0, "bob", FIRST, "x", session="s3").kind == "overloaded"
    book.finish(0, "s1", "played", turns=1)
    assert book.begin(0, "ann", "r2", "step", session="s2", turn=0) == Start("s2")


def test_it_is_counted_why_sessions_ended():
    def ended(how):
        book = Book(LIMITS)
        book.open(0, "ann", FIRST, "x", session="s1", connection="wire 1")
        book.finish(0, "s1", "opened", over=how == "over")
        if how == "connection_lost":
            book.lose(0, "wire 1")
        if how == "too_old":
            for now in (9, 18, 27, 36):
                book.begin(now, "ann", f"r{now}", "look", session="s1", turn=0)
                book.finish(now, "s1", "seen")
        assert book.expire({"connection_lost": 3, "over": 5, "idle": 10, "too_old": 40}[how]) == ["s1"]
        return dict(book.ended)

    for how in ("connection_lost", "over", "idle", "too_old"):
        assert ended(how) == {how: 1}
    book = Book(LIMITS)
    book.open(0, "ann", FIRST, "x", session="s1")
    book.give_up("s1", "broken")
    assert book.close_all() == book.close("ann", "s1") == []
    assert book.fail(0, "s1") == ["s1"]
    assert dict(book.ended) == {"broken": 1}, "the first reason stays"


def test_what_is_given_up_ends_with_its_work():
    book = Book(LIMITS)
    book.open(0, "ann", FIRST, "x", session="s1")
    book.give_up("s1", "broken")
    assert book.fail(0, "s1") == ["s1"]
    assert dict(book.ended) == {"broken": 1}


@pytest.mark.parametrize("name", ["max_sessions", "max_running", "idle_s", "grace_s", "linger_s", "max_age_s"])
def test_limits_are_checked(name):
    for wrong in (0, -1, None, True, "3"):
        with pytest.raises(ValueError, match=name):
            Limits(**{name: wrong})
    assert Limits().max_sessions_per_token is None
