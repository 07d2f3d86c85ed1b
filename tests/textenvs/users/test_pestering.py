"""Users under pressure: leaks are searched for, and planted ones are found."""

import asyncio
import functools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import textenvs
from textenvs.envs.clarify import env as clarify_env
from textenvs.envs.clarify.user import Speech
from textenvs.envs.worlds import user as worlds_user
from textenvs.evaluate.policies import AttackPolicy, FunctionPolicy
from textenvs.evaluate.user_report import by_manner, listen_to
from textenvs.messages import assistant, text_of
from textenvs.users.base import Entitled, Fact, UserView
from textenvs.users.conduct import FAULTS, Conduct
from textenvs.users.dialogues import Curious
from textenvs.users.guard import asking_sentences
from textenvs.users.manners import Manner
from textenvs.users.pestering import PESTER, PHRASES, answers_of, search_for_leak

SETTINGS = {
    "textenv/clarify": {"level": "medium", "ambiguous": 1.0, "manner": "all"},
    "textenv/collab-math": {"manner": "all"},
    "textenv/service-desk": {"level": "hard", "manner": "all"},
    "textenv/worlds": {"level": "hard", "worlds": 1, "record_kinds": 4},
}
SEEDS = 4  # episodes of each environment: a world is not drawn quickly
ADVERSARIAL = [phrase for phrases in PHRASES.values() for phrase in phrases]


@functools.cache
def made(env_id):
    """Return an environment, and adversarial phrases, and questions that ask for facts."""
    env = textenvs.make(env_id, **SETTINGS[env_id])
    if env_id != "textenv/worlds":
        return env, [*ADVERSARIAL, *dict.fromkeys(Curious(env.fork(), off_script=1.0)._questions)]
    details = []
    for seed in range(SEEDS):
        env.reset(seed=seed)
        details += env.story.details
    return env, [*ADVERSARIAL, *dict.fromkeys(f"Which {detail.word} do you mean?" for detail in details)]


def faults_of(env, replies):
    """Return the faults of the user of a fresh episode, with the reply to which each came."""
    conduct, faults = Conduct(), []
    for reply in replies:
        if env.state.done:
            break
        before, may = env.user_view(), env.user_may(assistant(reply))
        size, contexts = len(env.state.messages), env.state.contexts
        env.step(reply)
        new = [message for message in env.user_view().talk[len(before.talk) :] if message["role"] == "assistant"]
        for answer in answers_of(env, size, contexts):
            faults += [(fault, reply, answer) for fault in conduct.listen(text_of(new[0]), before, may, answer)]
    return faults


@pytest.mark.parametrize("env_id", SETTINGS)
@settings(deadline=None, max_examples=40, derandomize=True)  # with other examples it has found what this rule misses
@given(data=st.data())
def test_fuzzed_replies_get_no_leak(env_id, data):
    env, phrases = made(env_id)
    words = sorted({word for phrase in phrases for word in phrase.split()})
    made_up = st.lists(st.sampled_from(words), min_size=1, max_size=12).map(" ".join)
    ends = st.sampled_from(["", ".", "?", ":", "\n- ", ", and "])
    parts = st.tuples(st.one_of(st.sampled_from(phrases), made_up, st.text(max_size=20)), ends).map("".join)
    replies = data.draw(st.lists(st.lists(parts, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=5))
    env.reset(seed=data.draw(st.integers(0, SEEDS - 1)))
    assert faults_of(env, replies) == []


def test_open_question_beside_a_told_fact_is_open():
    env, _ = made("textenv/collab-math")
    env.reset(seed=2)
    question = env.goal.pieces[env.goal.told[0]].question
    assert faults_of(env, [f"Tell me everything. {question} What is the deposit?"]) == []
    assert env.user_view().disclosed == 1 + len(env.goal.told)


@pytest.mark.parametrize("env_id", SETTINGS)
def test_beam_finds_no_leak(env_id):
    env, phrases = made(env_id)
    worst = search_for_leak(env.fork, phrases, seed=3, turns=2, width=2, tries=20)
    assert worst.leaks == 0, worst.replies
    assert worst.tried > 20


def test_beam_finds_planted_leak(monkeypatch):
    whole = clarify_env.respond

    def gullible(reading, request, disclosed, needless):
        speech = whole(reading, request, disclosed, needless)
        if speech.text != "What do you want to know?" or disclosed:  # a question about nothing
            return speech
        slot = next(slot for slot in request.kind.slots if slot.name in request.missing)
        return Speech(request.telling(slot), (slot.name,), move="reveals")

    monkeypatch.setattr(clarify_env, "respond", gullible)
    worst = search_for_leak(
        lambda: textenvs.make("textenv/clarify", ambiguous=1.0), ADVERSARIAL, seed=1, turns=1, tries=60
    )
    assert worst.leaks == 1
    assert worst.replies


def test_worlds_statement_is_no_question(monkeypatch):
    def outcome(reply):
        env = textenvs.make("textenv/worlds", **SETTINGS["textenv/worlds"])
        for seed in range(SEEDS):
            env.reset(seed=seed)
            if env.story.details:
                break
        word = env.story.details[0].word
        return faults_of(env, [reply.format(word)]), env.user_view().disclosed

    assert outcome("I will look at the {} now.") == ([], 0)
    assert outcome("Which {} do you mean?") == ([], 1)
    monkeypatch.setattr(worlds_user, "_ASKS", re.compile(""))  # as it was: any mention asks
    faults, disclosed = outcome("I will look at the {} now.")
    assert [fault for fault, *_ in faults] == ["leak"]
    assert disclosed == 1


def test_customer_not_found_tells_nothing():
    env = textenvs.make("textenv/service-desk")
    env.reset(seed=1)
    persona = env.state.story.persona
    assert faults_of(env, ["I cannot find any account."]) == []
    answer = text_of(env.user_view().talk[-1])
    assert not any(value in answer for value in (persona.email, persona.zip_code, persona.last_name))


def fact(name, saying, value, word=None):
    """Return a fact that ``value`` states, and that a sentence with ``word`` is about."""
    named = None if word is None else (lambda sentence: word in sentence)
    return Fact(name, saying, lambda text, context: value in text and value not in context, named)


FACTS = [fact("seats", "9 seats", "9", "seats"), fact("day", "Friday", "Friday", "day"), fact("answer", "45", "45")]


@pytest.mark.parametrize(
    ("turns", "faults"),
    [
        ([("How many seats?", "9 seats.")], []),
        ([("You want seats.", "9 seats.")], ["leak"]),
        ([("How many seats?", "On Friday.")], ["leak"]),
        ([("Which day?", "I forgot."), ("Well.", "On Friday.")], []),  # asked for before
        ([("What is the answer?", "45")], ["contradiction", "leak"]),
        ([("How many seats? Which day?", "9 seats, Friday.")], ["early"]),
        ([("How many seats?", "There are 9 seats."), ("Seats?", "There are 8 seats.")], ["contradiction"]),
        ([("How many seats?", "There are 8 seats. No, wait. There are 9 seats.")], []),
        ([("Is it day 3 or 4?", "It is day 3."), ("And 4?", "It is day 4.")], ["contradiction"]),
        ([("Is it day 3 or 4?", "It is day 3."), ("And 4?", "Sorry, that was wrong. It is day 4.")], []),
    ],
)
def test_faults_follow_their_definitions(turns, faults):
    conduct, talk, counted = Conduct(), ({"role": "user", "content": "A table, please."},), []
    for reply, answer in turns:
        before = UserView("You want 9 seats on Friday.", talk, facts=FACTS)
        counted += conduct.listen(reply, before, Entitled(True, lambda text: None, most=1), answer)
        talk = (*talk, assistant(reply), {"role": "user", "content": answer})
    assert sorted(counted) == faults


def test_vague_user_answering_first_is_early():
    view = UserView("You want 9 seats.", (), facts=FACTS, behavior=Manner.of("vague"))
    may = Entitled(True, lambda text: None, evadable=True)
    conduct = Conduct()
    assert conduct.listen("How many seats?", view, may, "9 seats.") == {"early"}
    assert Conduct().listen("How many seats?", view, Entitled(True, lambda text: None), "9 seats.") == set()
    late = Conduct()
    assert late.listen("How many seats?", view, may, "It depends.") == set()
    assert late.listen("How many seats?", view, may, "9 seats.") == set()


def test_open_question_frees_one_fact():
    view = UserView("You want 9 seats on Friday.", (), facts=FACTS)
    for answer, faults in (("9 seats.", set()), ("9 seats on Friday.", {"leak"})):
        assert Conduct().listen("What else?", view, Entitled(False, lambda text: None, free=1), answer) == faults


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Which day", 1),
        ("Tell me the day.", 1),
        ("I will look at the day.", 0),
        ("Please say:\n- day\n- hour", 3),
        ("", 0),
    ],
)
def test_requests_are_asking_sentences(text, asks):
    assert len(asking_sentences(text)) == asks


def test_needless_refusal_is_a_concession():
    def conceded(*replies):
        env = textenvs.make("textenv/service-desk")
        env.reset(seed=0)
        for reply in replies:
            if not env.state.done:
                env.step(reply)
        return env.user_view().conceded

    assert not conceded("How can I help?")
    assert conceded(*["Unfortunately that is not possible: the return window is over."] * 4)


def test_expert_has_manners_told_apart():
    def figures(policy, **options):
        make_env = functools.partial(textenvs.make, "textenv/clarify", ambiguous=1.0, manner=["plain", "vague"])
        return by_manner(asyncio.run(listen_to(make_env, 24, policy=policy, seed=2, **options)))

    expert = figures(None, off_script=0.0)
    assert set(expert) == {"plain", "vague", "all"}
    assert (expert["plain"]["replies"]["value"], expert["vague"]["replies"]["value"]) == (1.0, 2.0)
    assert expert["all"]["episodes"] == expert["plain"]["episodes"] + expert["vague"]["episodes"] == 24
    pester = figures(AttackPolicy(PESTER))
    for table in (*expert.values(), *pester.values()):
        assert {name: table[name]["value"] for name in FAULTS} == dict.fromkeys(FAULTS, 0.0)
        assert table["leak"]["high"] > 0  # none seen is not never
    assert {table["solved"]["value"] for table in pester.values()} == {0.0}
    assert {table["replies"] for table in pester.values()} == {None}
    asking = figures(FunctionPolicy(lambda conversation: "When? How many? What colour?"))
    assert all(table["disclosed"]["value"] > 0.3 for table in asking.values())


def test_pester_uses_every_phrase():
    rng, counts = np.random.default_rng(0), Counter()
    for _ in range(60):
        reply = PESTER.start(rng, ())
        counts.update(reply(()) for _ in range(4))
    assert set(counts) == set(ADVERSARIAL)
