"""A language model as the customer, against a service on this machine."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from textenvs.envs.service_desk import ServiceDesk, ServiceDeskTasks
from textenvs.envs.service_desk.cases import KINDS
from textenvs.envs.service_desk.llm_customer import goal_text
from textenvs.envs.service_desk.scenario import scenario_of
from textenvs.envs.service_desk.user import TOO_LONG
from textenvs.task import Rows
from textenvs.tools import FORMATS

sys.path.insert(0, str(Path(__file__).parents[2] / "chat"))
from fake_service import FakeService  # noqa: E402

pytest.importorskip("openai", reason="needs the extra 'chat'")

RNG = np.random.default_rng(0)
EVERY_KIND = [(level, kind) for level in KINDS for kind in KINDS[level]]


@pytest.fixture(scope="module")
def service():
    """One service for all tests of a kind: a client of its own for each would take longer than the talks."""
    with FakeService() as service:
        yield service


def tasks_of(level, kind, count=1):
    drawn = ServiceDeskTasks(level, kinds=[kind])
    return Rows(kind, [drawn[i] for i in range(count)])


def says(message, state="goes_on"):
    return {"thought": "hm", "message": message, "state": state}


def record(tasks, index, **options):
    """The expert's moves with the scripted customer, and what the customer said to those that it heard."""
    env = ServiceDesk(tasks, **options)
    env.reset(options={"task_index": index})
    moves, answers = [], []
    while not env.state.done:
        turns = env.state.caller.turns
        moves.append(env.demonstration(RNG))
        conversation, *_ = env.step(moves[-1])
        if env.state.caller.turns > turns:
            answers.append(conversation[-1]["content"])
    return moves, answers


def replay(env, index, moves):
    env.reset(options={"task_index": index})
    rewards = []
    for move in moves:
        *_, reward, _, _, info = env.step(move)
        rewards.append(reward)
    return rewards, info


def marks(info):
    return {name: info["metrics"][name] for name in ("db", "told", "policy")}


@pytest.mark.parametrize(("level", "kind"), EVERY_KIND[::2])
def test_model_customer_scores_as_scripted_customer(level, kind, service):
    tasks, call_format = tasks_of(level, kind), sorted(FORMATS)[len(kind) % len(FORMATS)]
    spec = {"model": "tiny", "base_url": service.url}
    env = ServiceDesk(tasks, user=spec, progress=0.5, call_format=call_format)
    moves, answers = record(tasks, 0, call_format=call_format)
    # A refused customer may well see no use in going on: that is no fault of the assistant's.
    end = "satisfied" if len(kind) % 2 else "gave_up"
    service.script(*map(says, answers[:-1]), says(answers[-1], end))
    rewards, info = replay(env, 0, moves)
    assert (marks(info), info["stop"]) == ({"db": 1.0, "told": 1.0, "policy": 1.0}, "solved")
    assert sum(rewards) == pytest.approx(1.5), "success, and all of the progress"


@pytest.mark.parametrize(("level", "kind"), EVERY_KIND[::4])
def test_waiting_for_the_end_earns_nothing(level, kind, service):
    env = ServiceDesk(tasks_of(level, kind), user={"model": "tiny", "base_url": service.url}, progress=1.0)
    service.answer = says("Goodbye.", "satisfied")
    for words in ("", "Done, all is done. Anything else?", "I cannot do that. Goodbye."):
        env.reset(options={"task_index": 0})
        _, reward, terminated, _, info = env.step(words)
        assert (reward, terminated, info["stop"]) == (0.0, True, "unsolved"), words


def test_change_without_a_yes_fails_policy():
    tasks = tasks_of("easy", "cancel")
    moves, answers = record(tasks, 0)
    assert answers[-2].startswith("Yes")
    for instead in ("No, not yet.", "Hm. How much do I get back?", "Yes, but wait a moment.", "OK, hold on."):
        with FakeService() as service:
            env = ServiceDesk(tasks, user={"model": "tiny", "base_url": service.url})
            service.script(*map(says, answers[:-2]), says(instead), says(answers[-1], "satisfied"))
            rewards, info = replay(env, 0, moves)
            assert (marks(info)["policy"], info["stop"], sum(rewards)) == (0.0, "unsolved", 0.0), instead


def test_forms_of_a_yes(service):
    tasks = tasks_of("easy", "cancel")
    moves, answers = record(tasks, 0)
    env = ServiceDesk(tasks, user={"model": "tiny", "base_url": service.url})
    for yes in (
        "yes",
        "**Yes**, please cancel it.",
        "Sure, go ahead!",
        "OK. I do not need it any more.",
        "I see. Yes.",
    ):
        service.script(*map(says, answers[:-2]), says(yes), says(answers[-1], "satisfied"))
        assert replay(env, 0, moves)[1]["stop"] == "solved", yes


def test_undisclosed_identity_fails_policy():
    tasks = tasks_of("easy", "cancel")
    moves, answers = record(tasks, 0)
    email = scenario_of(tasks[0]).persona.email
    with FakeService() as service:
        env = ServiceDesk(tasks, user={"model": "tiny", "base_url": service.url})
        service.script(*(says(answer.replace(email, "on my account")) for answer in answers[:-1]))
        service.script(says(answers[-1], "satisfied"))
        assert marks(replay(env, 0, moves)[1])["policy"] == 0.0


def test_refusal_needs_reason_and_look_up():
    tasks = tasks_of("easy", "return-too-late")
    moves, answers = record(tasks, 0)
    looks = [i for i, move in enumerate(moves) if "get_order" in str(move)]
    assert len(looks) == 1
    scripts = {
        "told": [*moves[:-1], "I am sorry, that is not possible."],
        "policy": [move for i, move in enumerate(moves) if i not in looks],
    }
    for missing, changed in scripts.items():
        with FakeService() as service:
            env = ServiceDesk(tasks, user={"model": "tiny", "base_url": service.url})
            service.script(*map(says, answers[:-1]), says(answers[-1], "satisfied"))
            info = replay(env, 0, changed)[1]
            assert {name for name, value in marks(info).items() if not value} == {missing}
            assert info["stop"] == "unsolved"


@pytest.mark.parametrize("call_format", ["hermes", "native"])
def test_model_reads_only_plain_text(call_format):
    tasks = tasks_of("medium", "return-electronics")
    moves, answers = record(tasks, 0, call_format=call_format)
    with FakeService(says("And now?")) as service:
        env = ServiceDesk(tasks, user={"model": "tiny", "base_url": service.url}, call_format=call_format)
        env.reset(options={"task_index": 0})
        for move in moves:
            if isinstance(move, str):
                move = f"<think>a secret thought</think>{move}"
            else:
                move = {**move, "content": f"<think>a secret thought</think>{move['content']}"}
            conversation, *_ = env.step(move)
        assert any("customer_id" in message["content"] for message in conversation[1:]), "results came back"
        assert len(service.requests) == len(answers)
        for request in service.requests:
            first, *talk = request["messages"]
            assert first["content"].count(goal_text(env.state.story)) == 1
            text = json.dumps(talk)
            assert "customer_id" not in text
            assert "secret thought" not in text
            assert not any(tool.name in text for tool in env.tools if "_" in tool.name)
            assert [message["role"] for message in talk] == ["user", *["assistant", "user"] * (len(talk) // 2)]
        assert talk[1]["content"] == tasks[0].prompt[-1]["content"], "the opening is the model's own"


@pytest.mark.parametrize("level", KINDS)
def test_goal_text_hides_right_outcome(level):
    tasks = ServiceDeskTasks(level)
    for index in range(12):
        scenario = scenario_of(tasks[index])
        goal = goal_text(scenario)
        amounts = [f"{int(f.value) / 100:.2f}" for w in scenario.chain for f in w.facts if f.kind == "amount"]
        answers = [f.value for w in scenario.chain for f in w.facts if f.kind != "amount"]
        for secret in (*amounts, *answers, tasks[index].ground_truth, "None", "  -  "):
            assert secret not in goal
        for wish in scenario.chain:
            assert wish.opening in goal


def test_too_long_reply_makes_no_request():
    with FakeService(says("And now?")) as service:
        env = ServiceDesk(user={"model": "tiny", "base_url": service.url})
        env.reset(seed=0)
        conversation, reward, *_ = env.step("a" * 5000)
        assert (conversation[-1]["content"], reward, service.requests) == (TOO_LONG, 0.0, [])


def test_user_option_is_checked_early():
    with pytest.raises(ValueError, match="user: .* did you mean 'base_url'"):
        ServiceDesk(user={"model": "tiny", "base_ur": "http://x"})
    env = ServiceDesk(user="tiny")
    env.reset(seed=0)
    for scripted in (env.demonstration, env.careless_reply):
        with pytest.raises(NotImplementedError, match="scripted customer"):
            scripted(RNG)
