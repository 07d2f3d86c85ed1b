"""A verifiers environment as a text environment; what went out through verifiers comes back as it was."""

import gc
import pickle

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import textenvs
from textenvs.integrations.importers.verifiers import Verifiers, _engines
from textenvs.messages import assistant, user

CHAT = {"agent": {"harness": {"id": "textenvs_verifiers"}, "runtime": {"type": "subprocess"}}}


def own_taskset(count=16):
    return Verifiers("textenvs_verifiers", config={"taskset": {"env": "textenv/clarify", "count": count}})


def test_messages_returns_and_ends_survive_round_trip():
    env, ends = own_taskset(), set()
    for index in range(4):
        rng = np.random.default_rng(index)
        direct = textenvs.make("textenv/clarify")
        assert env.reset(seed=0, options={"task_index": index})[0] == direct.reset(seed=index)[0]
        while not direct.state.done:
            draw = rng.random() if index else 1.0  # the first runs out of turns
            reply = direct.demonstration(rng) if draw < 0.3 else direct.careless_reply(rng) if draw < 0.6 else "hm"
            before = (*direct.state.messages, {"role": "assistant", "content": reply})
            expected, result = direct.step(reply), env.step(reply)
            # What is said after the last reply reaches no model, and so does not come back.
            assert result[0] == (before if direct.state.done else expected[0])
            assert result[2:4] == expected[2:4]
        assert env.state.return_so_far == pytest.approx(direct.state.return_so_far)
        ends.add(direct.state.terminated)
    assert ends == {True, False}
    env.close()


def test_foreign_taskset():
    env = Verifiers("toy_taskset", config=CHAT)
    assert env.tasks.size == 3
    conversation, info = env.reset(seed=0, options={"task_index": 1})
    assert [(message["role"], message["content"]) for message in conversation] == [
        ("system", "Be short."),
        ("user", "2 + 2?"),
    ]
    assert info["data_source"] == "verifiers/toy_taskset"
    conversation, reward, terminated, truncated, info = env.step("It is 4.")
    assert (reward, terminated, truncated) == (1.5, True, False)
    assert info["terms"] == {"right": 1.0, "short": 0.5}
    assert info["metrics"] == {"length": 8.0}
    env.reset(seed=0, options={"task_index": 0})
    assert env.step("It is certainly 3.")[1] == 0.0
    env.close()


def test_harness_streams_and_rewrites_its_history():
    env = Verifiers("toy_taskset", config={"agent": {**CHAT["agent"], "harness": {"id": "toy_harness"}}})
    observation, _ = env.reset(seed=0, options={"task_index": 1})
    first = (*observation, assistant("Is it 3?"))
    second, *_ = env.step("Is it 3?")
    assert second == (user("Check: Is it 3?"),)
    third, *_ = env.fork().step("No.")
    assert env.step("No.")[0] == third == (user("So far: No."), assistant("Is it 3?"), user("Well?"))
    fourth, *_ = env.step("Hm.")
    assert fourth == (*first, user("Sure?"))
    assert env.state.contexts == ((*second, assistant("No.")), (*third, assistant("Hm.")))
    _, reward, terminated, _, info = env.step("It is 4.")
    assert (reward, terminated, info["terms"]) == (1.5, True, {"right": 1.0, "short": 0.5})
    env.close()


def test_each_trace_pays_its_own_reply():
    env = Verifiers("toy_taskset", config={**CHAT, "id": "best-of-n", "n": 3})
    observation, _ = env.reset(seed=0, options={"task_index": 1})
    for reply in ("It is certainly 3.", "It is 4."):
        following, reward, *_ = env.step(reply)
        assert (following, reward) == (observation, 0.0)
    _, reward, terminated, _, info = env.step("It is surely 4.")
    assert info["earlier"] == {0: {"right": 0.0, "short": 0.0}, 1: {"right": 1.0, "short": 0.5}}
    assert (info["terms"], reward, terminated) == ({"right": 2.0, "short": 0.5}, 2.5, True)
    assert info["metrics"]["best"] == pytest.approx(1 / 3)
    env.close()


def test_error_of_environment_fails_episode():
    env = Verifiers("toy_taskset", config=CHAT)
    env.reset(seed=0, options={"task_index": 2})
    *_, reward, terminated, truncated, info = env.step("2")
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert "the scorer is broken" in info["failure"]
    env.close()


def test_forks_snapshots_and_copies_play_on_alike():
    env = own_taskset()
    env.reset(seed=0, options={"task_index": 5})
    env.step("hm")
    fork, saved, moved = env.fork(), env.snapshot(), pickle.loads(pickle.dumps(env))
    results = []
    for copy in (fork, moved, env):
        results.append([copy.step("What else?"), copy.step("#### 1")])
        copy.close()
    env.restore(saved)
    results.append([env.step("What else?"), env.step("#### 1")])
    assert results == [results[0]] * 4
    env.close()


def test_gymnasiums_checker():
    env = own_taskset()
    check_env(env, skip_render_check=True)
    env.close()


def test_abandoned_episode_leaves_nothing():
    env = own_taskset()
    env.reset(seed=0)
    (engine,) = [engine for engine in _engines.values() if engine.sessions]
    under_way = len(engine.sessions)
    env.reset(seed=1)
    assert len(engine.sessions) == under_way
    fork = env.fork()
    fork.step("hm")
    assert len(engine.sessions) == under_way + 1
    del fork
    gc.collect()
    assert len(engine.sessions) == under_way
    env.close()
    assert len(engine.sessions) == under_way - 1


def test_refusals():
    with pytest.raises(ModuleNotFoundError, match="no_such_taskset"):
        Verifiers("no_such_taskset")
    with pytest.raises(ValueError, match="needs an environment's id"):
        Verifiers("textenvs_verifiers")
    with pytest.raises(ValueError, match="size"):
        Verifiers("toy_taskset", size=0)
    with pytest.raises(ValueError, match="as in JSON"):
        Verifiers("toy_taskset", config={"agent": object()})
