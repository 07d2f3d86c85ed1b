"""An OpenEnv server as a text environment; what went out through OpenEnv comes back as it was."""

import gc
import json
import pickle
import socket
import threading
import time

import gymnasium
import numpy as np
import pytest
import websockets
from gymnasium.utils.env_checker import check_env
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State
from openenv_kit import served

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations.importers.openenv import OpenEnv
from textenvs.integrations.openenv import create_app


class Failing(Clarify):
    def respond(self, reply):
        if reply["content"] == "fail":
            raise EnvironmentFailure("judge_failed", "told to")
        return super().respond(reply)


gymnasium.register("test/failing-import", entry_point=f"{__name__}:Failing")


class GuessAction(Action):
    guess: str


class GuessObservation(Observation):
    hint: str
    attempts: int = 0


class Guess(Environment[GuessAction, GuessObservation, State]):
    """Somebody else's environment: one field a side, no seeds, and it remembers nothing between sessions."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    games = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        Guess.games += 1
        self.attempts = 0
        return GuessObservation(hint=f"Guess. This is game {Guess.games}.")

    def step(self, action, timeout_s=None, **kwargs):
        self.attempts += 1
        if action.guess == "break":
            raise OSError("broken")
        won = action.guess == "7"
        return GuessObservation(hint="No.", attempts=self.attempts, reward=1.0 if won else None, done=won)

    @property
    def state(self):
        return State()


@pytest.fixture(scope="module")
def url():
    with served(create_app("textenv/clarify")) as address:
        yield address


@pytest.fixture(scope="module")
def guess():
    with served(create_fastapi_app(Guess, GuessAction, GuessObservation, 8)) as address:
        yield address


@pytest.fixture
def env(url):
    env = OpenEnv(url)
    yield env
    env.close()


SAME = ("terms", "metrics", "stop", "failed", "assistant_turns", "user_turns")


def seen(result):
    conversation, reward, terminated, truncated, info = result
    return conversation, reward, terminated, truncated, {name: info[name] for name in SAME}


def test_round_trip_is_identity(env):
    ends = set()
    for index in range(10):
        rng = np.random.default_rng(index)
        direct = textenvs.make("textenv/clarify")
        seed = env.tasks[index].extra["seed"]
        assert env.reset(options={"task_index": index})[0] == direct.reset(seed=seed)[0]
        while not direct.state.done:
            draw = rng.random()
            script = direct.demonstration if draw < 0.2 else direct.careless_reply
            reply = script(rng) if draw < 0.4 else "hm \ud800"
            assert seen(env.step(reply)) == seen(direct.step(reply))
        ends.add((direct.state.terminated, direct.state.stop))
    assert len(ends) > 2
    assert {True, False} == {terminated for terminated, _ in ends}, "no truncated episode was among them"


def test_gymnasiums_checker(env):
    check_env(env, skip_render_check=True)


def test_forks_snapshots_and_copies_play_on_alike(env):
    env.reset(seed=0, options={"task_index": 5})
    env.step("hm")
    fork, saved, moved = env.fork(), env.snapshot(), pickle.loads(pickle.dumps(env))
    fork.fork().step("another future")
    results = []
    for copy in (fork, moved, env):
        results.append([copy.step("What else?"), copy.step("#### 1")])
        copy.close()
    env.restore(saved)
    results.append([env.step("What else?"), env.step("#### 1")])
    assert results == [results[0]] * 4


def test_foreign_environment(guess):
    env = OpenEnv(guess, observation_field="hint", max_assistant_turns=4)
    conversation, _ = env.reset(seed=0)
    assert conversation[0]["content"].startswith("Guess.")
    conversation, reward, terminated, truncated, info = env.step("<think>7</think>6")
    assert (conversation[-1]["content"], reward, terminated, truncated) == ("No.", 0.0, False, False)
    conversation, reward, terminated, truncated, info = env.step("7")
    assert (reward, terminated, info["stop"], info["terms"]) == (1.0, True, "done", {"reward": 1.0})
    assert [message["role"] for message in conversation] == ["user", "assistant", "user", "assistant"]
    env.reset(seed=0)
    for _ in range(4):
        *_, truncated, info = env.step("1")
    assert (truncated, info["stop"]) == (True, "max_assistant_turns")
    env.close()


def test_observation_without_field_is_json(guess):
    env = OpenEnv(guess)
    assert '"attempts": 0' in env.reset(seed=0)[0][0]["content"]
    env.close()
    with pytest.raises(EnvironmentFailure, match="no 'clue'; it has"):
        OpenEnv(guess, observation_field="clue").reset(seed=0)


def test_unreplayable_episode_is_an_error(guess):
    env = OpenEnv(guess, observation_field="hint")
    env.reset(seed=0)
    env.step("1")
    *_, truncated, info = env.fork().step("2")
    assert (truncated, info["failed"]) == (True, True)
    assert "it can neither be forked nor restored" in info["failure"]
    assert not env.step("2")[-1]["failed"]  # the episode itself runs on
    env.close()


def test_server_that_breaks_fails_episode(guess):
    env = OpenEnv(guess, observation_field="hint")
    env.reset(seed=0)
    *_, reward, terminated, truncated, info = env.step("break")
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert "broken" in info["failure"]
    env.close()


def test_forgotten_fork_releases_connection():
    with served(create_app("textenv/clarify", max_concurrent_envs=2)) as address:
        env = OpenEnv(address)
        for _ in range(4):
            env.reset(seed=0)
            env.step("hm")
            deadline = time.monotonic() + 60
            while True:  # the connection of the last one is closed in its own time
                fork = env.fork()
                failed = fork.step("hm")[-1]["failed"]
                del fork
                gc.collect()
                if not failed:
                    break
                assert time.monotonic() < deadline
                time.sleep(0.02)
        env.close()


def test_failed_episode_stays_one():
    with served(create_app("test/failing-import")) as address:
        env = OpenEnv(address)
        env.reset(seed=0)
        *_, info = env.step("fail")
        assert (info["stop"], info["failed"], info["failure"]) == ("judge_failed", True, "told to")
        env.close()


class Rude:
    """A server that answers a step with the reply as the frame, and hangs up after one that says bye."""

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            body = {"name": "rude", "action": {"properties": {"text": {}}, "required": ["text"]}}
            start = {"status": 200, "headers": [(b"content-type", b"application/json")]}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})
        elif scope["type"] == "websocket":
            await receive()  # the connection
            await send({"type": "websocket.accept"})
            while (event := await receive())["type"] != "websocket.disconnect":
                request = json.loads(event["text"])
                reply = '{"data": {"observation": {"text": "Go."}}}'
                if request.get("type") == "step":
                    reply = request["data"]["text"]
                if reply == "late":
                    continue  # no answer
                await send({"type": "websocket.send", "text": reply})
                if "bye" in reply:
                    await send({"type": "websocket.close"})
                    return


@pytest.fixture(scope="module")
def rude():
    with served(Rude()) as address:
        yield address


def frame(observation=None, **fields):
    return json.dumps({"data": {"observation": observation or {"text": "On."}, "reward": 0.5, **fields}})


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        ("late", "did not answer within 1 s"),
        ("no JSON", "JSONDecodeError"),
        ("[1]", "AttributeError"),
        (frame(["text"]), "AttributeError"),
        (frame(reward=[1.0]), "TypeError"),
        (frame({"text": "On.", "info": {"terms": [1.0]}}), "AttributeError"),
        (frame({"text": "On.", "info": {"metrics": {"accuracy": None}}}), "TypeError"),
    ],
)
def test_nonsense_of_server_fails_episode(rude, answer, failure):
    env = OpenEnv(rude, timeout=60.0)
    env.reset(seed=0)
    if answer == "late":
        env.timeout = env._live[2].client.async_client._message_timeout = 1.0
    *_, reward, terminated, truncated, info = env.step(answer)
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert failure in info["failure"]
    env.close()


def test_messages_with_nulls_are_messages(rude):
    env = OpenEnv(rude)
    env.reset(seed=0)
    message = {"role": "user", "content": "On.", "name": None, "tool_calls": None}
    conversation, *_ = env.step(frame({"messages": [message], "text": "user: On."}))
    assert conversation[-1] == {"role": "user", "content": "On."}
    env.close()


def test_lost_connection_fails_only_its_episode(rude):
    """OpenEnv's client opens another connection by itself: a new session, which knows nothing of this episode."""
    env = OpenEnv(rude)
    env.reset(seed=0)
    assert env.step(frame(bye=True))[1] == 0.5
    running = env._live[2]
    deadline = time.monotonic() + 60
    while running.client.async_client._ws.state is not websockets.State.CLOSED:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    *_, reward, _, truncated, info = env.step(frame())
    assert (reward, truncated, info["failed"]) == (0.0, True, True)
    assert "the connection was lost, and the episode with it" in info["failure"]
    env.close()


def test_refusals(guess):
    with pytest.raises(ConnectionError, match="no OpenEnv server"):
        OpenEnv("http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            connection, _ = other.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-Server\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConnectionError, match="no OpenEnv server"):
            OpenEnv(f"http://127.0.0.1:{other.getsockname()[1]}")
    with pytest.raises(ValueError, match="no field 'text'; it has guess"):
        OpenEnv(guess, action_field="text")
