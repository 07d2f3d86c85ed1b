"""Facts, lives and their law: against plain readings of all that was said, and against counted questions."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.sessions.facts import FactStore, Question, Statement, answer_of
from textenvs.envs.sessions.law import demand_of, draw_question
from textenvs.envs.sessions.life import CODE, OWN_SCALE, SCALES, Life, key_of, life_of, scale_of, words
from textenvs.envs.sessions.tasks import SessionTasks

PEOPLE, THINGS = ("Ann", "Bob", "Cid"), ("desk", "gate")
KEYS = [(person, thing) for person in PEOPLE for thing in THINGS]
kinds = st.sampled_from(["tell", "change", "retract", "forget", "nothing"])
drawn = st.lists(st.tuples(kinds, st.sampled_from(KEYS), st.sampled_from([None, None, *PEOPLE])), max_size=25)


def made(draws) -> list[Statement]:
    return [
        Statement(number, kind, key, f"code{number}" * (kind in ("tell", "change")), hidden)
        for number, (kind, key, hidden) in enumerate(draws)
    ]


def valid_at_the_end(log: list[Statement], key, back: int) -> Statement | None:
    """Read the whole log from its end: the codes of a key since it was told, taken back or forgotten."""
    chain = []
    for statement in reversed(log):
        if statement.key != key or statement.kind == "nothing":
            continue
        if statement.kind in ("retract", "forget"):
            break
        chain.append(statement)
        if statement.kind == "tell":
            break
    return chain[back] if len(chain) > back else None


@given(drawn, st.sampled_from(KEYS), st.sampled_from(KEYS), st.sampled_from(PEOPLE))
def test_answers_are_those_of_the_whole_log(draws, key, other, asker):
    log, store = made(draws), FactStore()
    for statement in log:
        store.add(statement)
    for program, keys in (("value", (key,)), ("before", (key,)), ("both", (key, other)), ("newest", (key, other))):
        versions = [valid_at_the_end(log, one, program == "before") for one in keys]
        known = [one for one in versions if one is not None and one.hidden_from != asker]
        if program == "newest":
            known.sort(key=lambda one: -one.number)
        expected = " ".join(one.value for one in known) if len(known) == len(versions) else "unknown"
        assert answer_of(store.needs(Question(program, asker, keys))) == expected
    last_forget = {one: max((s.number for s in log if s.key == one and s.kind == "forget"), default=-1) for one in KEYS}
    assert store.forgotten == {one.value for one in log if one.value and one.number < last_forget[one.key]}


@given(drawn, st.sampled_from(KEYS), st.sampled_from(KEYS), st.sampled_from(PEOPLE))
def test_no_answer_has_a_protected_code(draws, key, other, asker):
    store = FactStore()
    for statement in made(draws):
        store.add(statement)
    protected = store.forgotten | store.secrets.get(asker, frozenset())
    assert protected >= {one.value for one in made(draws) if one.value and one.hidden_from == asker}
    for program, keys in (("value", (key,)), ("before", (key,)), ("both", (key, other)), ("newest", (key, other))):
        assert not {*answer_of(store.needs(Question(program, asker, keys))).split()} & protected


# ------------------------------------------------------------------ lives


@pytest.mark.parametrize("level", SCALES)
def test_lives_have_the_size_of_their_level(level):
    life, scale = life_of(key_of(level, "train", 0, {}, 1)), SCALES[level]
    assert (len(life.sessions), len(life.people), len(life.things)) == (scale.sessions, scale.people, scale.things)
    assert life.questions == scale.sessions - 1
    for names in (life.people, life.things):
        assert len({name[0].lower() for name in names}) == len(names)
    for day, session in enumerate(life.sessions, start=1):
        assert session.day == day
        assert sum(life.phase(day).percent.values()) == 100
        assert life.phase(day).first <= day <= life.phase(day).last
        keys = [one.key for one in session.statements]
        assert len(set(keys)) == len(keys)
        if session.question is not None:
            assert not {*session.question.keys} & {*keys}, "an answer was told in the session itself"
    codes = [one.value for one in life.statements.values() if one.value]
    assert len(set(codes)) == len(codes)
    assert {len(code) for code in codes} == {CODE}


def test_every_session_but_the_first_asks():
    for index in range(30):
        life = life_of(key_of("easy", "test", 0, {"sessions": 6, "people": 1, "things": 1, "capacity": 12}, index))
        assert [session.question is None for session in life.sessions] == [True] + [False] * 5


def test_splits_share_no_word():
    for name in words("train"):
        assert not {*words("train")[name]} & {*words("test")[name]}
    assert len({len(choices) for name, choices in words("test").items() if name not in ("people", "things")}) == 1


def test_lives_are_pickled_as_their_key():
    life = life_of("easy/train/0/2")
    number = next(iter(life.statements))
    for one in (life, life_of(life.key, ((number, "0" * CODE),)), life_of(life.key, (), (number,))):
        stored = pickle.dumps(one)
        assert len(stored) < 300
        assert pickle.loads(stored) is one


@pytest.mark.parametrize(
    "key",
    ["", "easy", "easy/train/0/x", "easy/dev/0/1", "none/train/0/1", "easy/train/0/sessions=x/1", "a/b/c/d/e/f"]
    + ["easy/train/0/sessions=03/1", "easy/train/0/people=3+sessions=3/1", "easy/train/0/no=3/1"],
)
def test_other_keys_are_refused(key):
    with pytest.raises(ValueError, match="is no key of a life"):
        life_of(key)


@pytest.mark.parametrize(
    ("name", "size"),
    [("sessions", 1), ("sessions", 1001), ("people", 0), ("things", 40), ("capacity", 0), ("capacity", 20_001)],
)
def test_impossible_scales_are_refused(name, size):
    assert name in OWN_SCALE
    with pytest.raises(ValueError, match=name):
        scale_of("easy", {name: size})
    with pytest.raises(ValueError, match=name):
        SessionTasks(own={name: size})


def test_numbers_of_no_code_are_refused():
    life = life_of("easy/train/0/0")
    silent = next(number for number, one in life.statements.items() if not one.value)
    for number in (silent, 10_000):
        with pytest.raises(ValueError, match="that tells a code"):
            life_of(life.key, ((number, "x"),))


# ------------------------------------------------------------------ the law


def test_drawn_questions_follow_the_law():
    """Count questions of one day, drawn many times, by what they need."""
    life = next(life for index in range(50) if has_due(life := life_of(key_of("easy", "train", 1, {}, index))))
    store, day = FactStore(), len(life.sessions)
    for session in life.sessions:
        for statement in session.statements:
            store.add(statement)
    stated = {statement.key for statement in life.sessions[-1].statements}
    chances, free = demand_of(store, life.phase(day), day, stated).needed(store)
    assert sum(chances.values()) + free == pytest.approx(1.0)
    rng, draws, counts = Random(0), 6000, Counter[int]()
    for _ in range(draws):
        question = draw_question(store, life.phase(day), day, stated, life.people, 3, rng)
        needs = store.needs(question)
        for statement in needs:
            counts[statement.number] += 1 / len(needs)
        counts[-1] += not needs
    assert set(counts) <= {-1, *chances}
    for number, chance in {**chances, -1: free}.items():
        assert counts[number] / draws == pytest.approx(chance, abs=4 * (chance / draws) ** 0.5 + 1e-9)


def has_due(life: Life) -> bool:
    return life.sessions[-1].question.program == "due"
