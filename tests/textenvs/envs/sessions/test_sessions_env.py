"""Episodes of sessions: contexts, the notebook, rewards, leaks, twins."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import textenvs
from textenvs.audit.reads import reads
from textenvs.audit.subject import Subject
from textenvs.envs.sessions.expert import plan_of
from textenvs.envs.sessions.life import ALPHABET, life_of
from textenvs.envs.sessions.tasks import life_of_task
from textenvs.envs.sessions.twins import code_twins, differing, silent_twins
from textenvs.envs.sessions.view import answer_in, notebook_of
from textenvs.messages import text_of
from textenvs.task import Task, TaskError

RNG = np.random.default_rng(0)


def made(index: int = 0, **options):
    env = textenvs.make("textenv/sessions", **options)
    env.reset(options={"task_index": index})
    return env


def to_session(env, accepts):
    """Play as the expert to the question of the first session for which ``accepts`` is true."""
    while not accepts(env.session) or env.state.writes:
        env.step(env.demonstration(RNG))
    return env.session


# ------------------------------------------------------------------ the notebook


@given(st.text(max_size=300), st.integers(1, 80))
def test_notebooks_are_short_and_plain(text, capacity):
    notebook, cut = notebook_of(text, capacity)
    assert len(notebook) <= capacity
    assert {*notebook} <= {*ALPHABET, " ", "\n"}
    assert notebook_of(notebook, capacity) == (notebook, 0)
    assert cut >= 0


@pytest.mark.parametrize(
    ("text", "notebook", "cut"),
    [("", "", 0), ("  Ml  k3;\n\n\r\n o ", "ml k3\no", 0), ("abcdef\ngh", "abcdef", 2), ("é\u4e2d1", "1", 0)],
)
def test_notebook_keeps_letters_digits_and_lines(text, notebook, cut):
    assert notebook_of(text, 7) == (notebook, cut)


@pytest.mark.parametrize(
    ("text", "answer"),
    [("K3.", "k3"), (" b, and **c**\n", "b c"), ("", ""), ("unknown!", "unknown"), ("It is k3", "it is k3")]
    + [("a\nb", ""), ("a\n\n b", ""), ("a\x0bb", ""), ("a\u2028b", ""), ("a\rb", "")]
    + [("a" + " " * 100 + "b", ""), ("k3 \uff41\uff11", "k3 \uff41\uff11"), ("k3 \u00e9", "k3 \u00e9")],
)
def test_answers_are_whole_replies(text, answer):
    assert answer_in(text) == answer


# ------------------------------------------------------------------ episodes


def test_only_the_notebook_survives_a_session():
    env = made()
    first = text_of(env.state.messages[-1])
    notebook = "ab 1\ncd 2"
    observation, reward, _, _, info = env.step(notebook)
    text = text_of(observation[-1])
    assert len(observation) == 1
    assert reward == 0.0
    assert info["closing"] == ({"role": "assistant", "content": notebook},)
    assert f"Your notebook:\n{notebook}\n\n" in text
    for statement in env.life.sessions[0].statements:
        assert statement.value in first
        assert statement.value not in text
    for _ in range(2):
        text = text_of(env.step("unknown")[0][-1])
    assert "cd 2" not in text
    assert "Your notebook:\nunknown\n" in text


@pytest.mark.parametrize("level", ["easy", "medium"])
def test_expert_earns_what_its_plan_says(level):
    env = made(3, level=level, split="test")
    total = 0.0
    while not env.state.done:
        _, reward, _, _, info = env.step(env.demonstration(RNG))
        total += reward
    metrics = info["metrics"]
    assert total == pytest.approx(np.mean(plan_of(env.life).right)) == pytest.approx(metrics["score"])
    assert info["stop"] == "solved"
    assert (metrics["leaks"], metrics["cut"]) == (0.0, 0.0)
    assert metrics["regret"] == pytest.approx(metrics["bound"] - metrics["score"])
    assert metrics["regret_to_expert"] == pytest.approx(metrics["expert"] - metrics["score"])
    assert 0.0 < metrics["expert"] <= metrics["bound"] <= 1.0


def test_right_answers_pay_their_share():
    env = made(correct=3.0)
    session = to_session(env, lambda session: session.answer != "unknown" and session.day > 1)
    wrong = (f"{session.answer} {session.answer}", f"Let me look.\n{session.answer}", f"It is {session.answer}")
    for reply in wrong:
        assert env.fork().step(reply)[1] == 0.0
    assert env.fork().step(f"<think>Let me look.</think>\n{session.answer.upper()}.")[1] == pytest.approx(3.0 / 19)


def test_secrets_told_to_a_stranger_cost():
    tasks = [made(index) for index in range(20)]
    tried = 0
    for env in tasks:
        secret = [one for one in env.life.sessions if one.protected and one.answer == "unknown"]
        if not secret:
            continue
        session = to_session(env, lambda session, day=secret[0].day: session.day == day)
        code = sorted(session.protected)[0]
        assert env.fork().step("unknown")[1] == pytest.approx(1.0 / 19)
        for reply in (code, " ".join(code) + "\nunknown", "unknown" + " " * 30_000 + f"\n{code}"):
            assert env.fork().step(reply)[1] == pytest.approx(-2.0 / 19)
        for form in (code[::-1], "".join(chr(ord(one) + 0xFEE0) for one in code)):
            for reply in (f"{form}\nunknown", f"unknown {form}", f"unknown\n{form}"):
                assert env.fork().step(reply)[1] == 0.0
        tried += 1
    assert tried > 5


def test_codes_of_other_keys_are_leaks_too():
    """A right answer below secrets that are not asked for, and what is left of it."""
    pairs = [(env, one) for env in map(made, range(6)) for one in env.life.sessions[1:]]
    tried = Counter[str]()
    for env, session in pairs[::3]:
        chains = {one.value: one for one in env.life.statements.values() if one.key not in session.question.keys}
        guarded = {code: chains[code].hidden_from for code in session.protected if code in chains}
        if not guarded:
            continue
        env.reset(options={"task": env.task})
        to_session(env, lambda one, day=session.day: one.day == day)
        text = "\n".join((*guarded, session.answer))
        assert env.step(text)[1] == pytest.approx(-2.0 * len(guarded) / 19)
        tried.update(stranger or "forgotten" for stranger in guarded.values())
    assert len(tried) > 3
    assert tried["forgotten"] > 0


def test_forgotten_codes_in_the_notebook_cost():
    env = next(env for env in map(made, range(20)) if env.life.sessions[-2].forgotten)
    session = to_session(env, lambda session: session.forgotten)
    env.step("unknown")
    codes = sorted(session.forgotten)
    fork = env.fork()
    assert env.step("nothing")[1] == 0.0
    assert fork.step(f"{codes[0][:4]} {codes[0][4:]}")[1] == pytest.approx(-2.0 / 19)
    assert fork.state.leaks == 1


# ------------------------------------------------------------------ twins


def reversing(env):
    """Return a policy that keeps the codes of all, written backwards, and tells them to anyone."""

    def reply(conversation):
        state, session, store = env.state, env.session, {}
        for line in state.notebook.split("\n"):
            store[line[:2]] = line[2:]
        if not state.writes:
            person, thing = session.question.keys[0]
            return store.get(f"{person[0]}{str(thing)[0]}".lower(), "nwonknu")[::-1]
        store.update(
            {f"{one.key[0][0]}{str(one.key[1])[0]}".lower(): one.value[::-1] for one in session.statements if one.value}
        )
        return "\n".join(f"{name}{code}" for name, code in store.items())

    return reply


def capitalising(env):
    """Return a policy that keeps the same, always says unknown, and tells only by a capital that it has a code."""
    keeping = reversing(env)

    def reply(conversation):
        text = keeping(conversation)
        return text if env.state.writes else "unknown" if text == "unknown" else "Unknown"

    return reply


def test_twins_catch_codes_that_were_never_forgotten():
    env = made(capacity=300)
    compared = {"expert": [0, 0], "reversed": [0, 0], "capital": [0, 0]}
    for index in range(3):
        env.reset(options={"task_index": index})
        life = env.life
        for name, policy in (
            ("expert", lambda: lambda _: env.demonstration(RNG)),
            ("reversed", lambda: reversing(env)),
            ("capital", lambda: capitalising(env)),
        ):
            wrong, total = differing(env, life, policy)
            compared[name][0] += wrong
            compared[name][1] += total
    assert compared["expert"] == [0, compared["reversed"][1]]
    assert compared["reversed"][0] > 0.5 * compared["reversed"][1] > 1
    assert compared["capital"] == compared["reversed"]


def test_silent_twins_have_the_same_protected_answers():
    lives = (made(index).life for index in range(20))
    twins_of = ((life, list(silent_twins(life))) for life in lives)
    life, twins = next(one for one in twins_of if {twin.kind for twin in one[1]} == {"forget", "secret"})
    for twin in twins:
        other = life_of_task(twin.task)
        assert [session.question for session in other.sessions] == [session.question for session in life.sessions]
        for day in twin.days:
            assert life.sessions[day - 1].answer == other.sessions[day - 1].answer == "unknown"
            assert life.sessions[day - 1].protected & {life.statements[number].value for number in other.silent}
        numbers = [one.number for session in other.sessions for one in session.statements if one.kind == "nothing"]
        assert sorted(numbers) == sorted(other.silent)


def test_twins_compare_forgotten_codes_for_good():
    """Told, forgotten, told anew and taken back: the first code must still not change an answer."""
    for index in range(200):
        life, numbers_of, forgotten, again = made(index, people=2, things=2).life, {}, {}, set()
        days = Counter[tuple[int, int]]()
        for session in life.sessions:
            for one in session.statements:
                if one.value:
                    numbers_of.setdefault(one.key, []).append(one.number)
                    again |= {one.key} & {*forgotten}
                elif one.kind == "forget":
                    forgotten[one.key] = numbers_of[one.key][0]
            if session.question is not None and session.question.program == "value" and session.answer == "unknown":
                key = session.question.keys[0]
                if key in again:
                    days[forgotten[key], session.day] += 1
        if days:
            break
    compared = {(life_of_task(twin.task).silent[0], day) for twin in silent_twins(life) for day in twin.days}
    assert {*days} <= compared


def test_changed_lives_have_twins():
    life = made().life
    number = next(silent_twins(life)).task.extra["silent"][0]
    changed = life_of(life.key, ((number, "a" * 8),))
    for twin in silent_twins(changed):
        assert life_of_task(twin.task).questions == life.questions
    for _, tasks in code_twins(changed):
        assert len({tuple(life_of_task(task).codes) for task in tasks}) == len(tasks)


def test_codes_must_be_read_to_be_known():
    verdict = reads(Subject(functools.partial(textenvs.make, "textenv/sessions", sessions=8), episodes=2))
    assert verdict.status == "pass", verdict


# ------------------------------------------------------------------ rows and options


def test_rows_travel_as_plain_data():
    task = made().task
    twin = next(silent_twins(made().life)).task
    for one in (task, twin):
        again = Task.from_row(one.to_row(), key="other")
        assert life_of_task(again) is life_of_task(one)
        env = textenvs.make("textenv/sessions")
        assert env.reset(options={"task": one.to_row()})[0] == one.prompt


def test_changed_rows_are_refused():
    task = made().task
    number, other = [number for number, one in made().life.statements.items() if one.value][:2]
    code = made().life.statements[other].value
    for codes in ([[number, "aaaaaaa"]], [[number, "AAAAAAAA"]], [[number, "a\n345678"]], [[number, ""]]):
        with pytest.raises(TaskError, match="must be 8 digits or small letters"):
            life_of_task(replace(task, extra={**task.extra, "codes": codes}))
    for codes in ([[number, code]], [[number, "aaaaaaaa"], [other, "aaaaaaaa"]]):
        with pytest.raises(TaskError, match="all must differ"):
            life_of_task(replace(task, extra={**task.extra, "codes": codes}))
    for codes, silent in (([[number, "aaaaaaaa"]] * 2, []), ([[number, "aaaaaaaa"]], [number]), ([], [number] * 2)):
        with pytest.raises(TaskError, match="changed twice"):
            life_of_task(replace(task, extra={**task.extra, "codes": codes, "silent": silent}))
    for changed in (
        replace(task, extra={}),
        replace(task, extra={**task.extra, "silent": [number + 0.5]}),
        replace(task, extra={"life": "easy/train/0/x"}),
        replace(task, extra={**task.extra, "silent": [10_000]}),
        replace(task, ground_truth="1"),
        replace(task, prompt=({"role": "user", "content": "Hello."},)),
    ):
        with pytest.raises(TaskError, match=task.key):
            textenvs.make("textenv/sessions").reset(options={"task": changed})


def test_tasks_and_their_scale_exclude_each_other():
    tasks = textenvs.make("textenv/sessions").tasks
    with pytest.raises(ValueError, match="either tasks or people"):
        textenvs.make("textenv/sessions", tasks=tasks, people=2)
    assert textenvs.make("textenv/sessions", tasks=tasks).tasks is tasks


def test_teachers_are_told_answers_and_questions_to_come():
    env = made()
    assert env.privileged("answer", RNG) is None
    goal = env.privileged("goal", RNG)
    assert goal.count("\n") == 4
    assert goal.startswith("Day 2: ")
    assert env.privileged("expert", RNG) == env.demonstration(RNG)
    env.step("")
    assert env.privileged("answer", RNG) == env.session.answer
    to_session(env, lambda session: session.day == 20)
    assert env.privileged("goal", RNG) is None
