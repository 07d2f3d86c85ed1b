"""OpenEnv, the real package: its server and its client give what the environment gives."""

import asyncio
import json
import urllib.error
import urllib.request

import adapter_kit
import gymnasium
import pytest
import websockets
from openenv.core import GenericEnvClient
from openenv_kit import served
from toy_envs import Contexts

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations.openenv import TextAction, TextEnvClient, TextEnvironment, create_app
from textenvs.integrations.openenv.__main__ import main
from textenvs.messages import assistant

CALL = {"id": "call_0", "type": "function", "function": {"name": "calc_gsm8k_reward", "arguments": '{"answer": 7}'}}


class Failing(Clarify):
    """Clarify with a simulator that gives up on request."""

    def respond(self, reply):
        if reply["content"] == "fail":
            raise EnvironmentFailure("user_failed", "told to")
        return super().respond(reply)


gymnasium.register("test/failing", entry_point=f"{__name__}:Failing")


@pytest.fixture(scope="module")
def urls():
    with (
        served(create_app("textenv/clarify")) as clarify,
        served(create_app("textenv/gsm8k-tool")) as tool,
        served(create_app("textenv/gsm8k-interact")) as interact,
    ):
        yield {"textenv/clarify": clarify, "textenv/gsm8k-tool": tool, "textenv/gsm8k-interact": interact}


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_client_sees_episode(env_id, urls):
    ends = set()
    with TextEnvClient(base_url=urls[env_id]).sync() as client:
        for played in adapter_kit.episodes(env_id, 8):
            opening = client.reset(seed=played.spec.seed).observation
            assert tuple(opening.messages) == played.opening
            assert opening.info["task_key"]
            results = [client.step(reply) for reply in played.replies]
            assert [tuple(result.observation.messages) for result in results] == played.observations
            assert [result.reward for result in results] == played.rewards
            last = results[-1]
            assert (last.observation.terminated, last.observation.truncated) == (played.terminated, played.truncated)
            assert [result.done for result in results] == [False] * (len(results) - 1) + [True]
            assert last.observation.info["stop"] == played.stop
            assert [sum(result.observation.info["terms"].values()) for result in results] == pytest.approx(
                played.rewards
            )
            state = client.state()
            assert (state.turn_rewards, state.stop, state.step_count) == (played.rewards, played.stop, len(results))
            ends.add(played.stop)
    assert len(ends) > 1


def test_contexts_and_roles_are_whole_observations():
    environment, plain = TextEnvironment("toy_envs:Contexts"), Contexts()
    observation, _ = plain.reset(seed=3)
    assert tuple(environment.reset(seed=3).messages) == observation
    for reply in ("more", "answered", "back 0"):
        shown, before = environment.step(TextAction(text=reply)), observation
        observation, *_ = plain.step(reply)
        whole = shown.context or [*before, assistant(reply), *shown.messages]
        assert tuple(whole) == observation
    environment.close()
    environment = TextEnvironment("toy_envs:Talk")
    environment.reset(seed=0)
    first = environment.step(TextAction(text="critic"))
    assert (first.context[-1]["content"], first.info["role"]) == ("news 0", "critic")
    second = environment.step(TextAction(text="end"))
    assert (second.reward, second.info["earlier"]) == (3.0, {0: {"paid": 1.0}})
    environment.close()


def test_pages_in_browsers_are_refused(urls):
    """Browsers let a page of any site open a WebSocket to this machine, and name the site."""
    url, page = urls["textenv/clarify"], "https://elsewhere.example"

    async def opened(origin):
        async with websockets.connect(f"{url.replace('http', 'ws')}/ws", origin=origin):
            return True

    assert asyncio.run(opened(None))
    with pytest.raises(websockets.InvalidStatus, match="403"):
        asyncio.run(opened(page))
    with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(f"{url}/health", headers={"Origin": page}), timeout=60)


def test_independent_client(urls):
    played = adapter_kit.direct(adapter_kit.EpisodeSpec("textenv/clarify", 3))
    with GenericEnvClient(base_url=urls["textenv/clarify"]).sync() as client:
        observation = client.reset(seed=3).observation
        assert observation["text"] == played.opening[-1]["content"]
        rewards = [client.step({"text": reply}).reward for reply in played.replies]
    assert rewards == played.rewards


def test_task_by_its_index_and_whole_message(urls):
    direct = textenvs.make("textenv/gsm8k-tool")
    opening, _ = direct.reset(options={"task_index": 4}, seed=0)
    reply = assistant("", [CALL])
    after = direct.step(reply)
    with TextEnvClient(base_url=urls["textenv/gsm8k-tool"]).sync() as client:
        assert tuple(client.reset(seed=0, task_index=4).observation.messages) == opening
        result = client.step(reply)
    assert tuple(result.observation.messages) == after[0][len(opening) + 1 :]
    assert result.reward == after[1]


def test_sessions_side_by_side(urls):
    episodes = adapter_kit.episodes("textenv/gsm8k-interact", 4)

    async def play(played):
        async with TextEnvClient(base_url=urls["textenv/gsm8k-interact"]) as client:
            await client.reset(seed=played.spec.seed)
            rewards = []
            for reply in played.replies:
                rewards.append((await client.step(TextAction(text=reply))).reward)
                await asyncio.sleep(0)
            return rewards

    async def play_all():
        return await asyncio.gather(*map(play, episodes))

    assert asyncio.run(play_all()) == [played.rewards for played in episodes]


def test_server_has_limit_of_sessions():
    with served(create_app("textenv/clarify", max_concurrent_envs=1)) as url:
        with TextEnvClient(base_url=url).sync() as one, TextEnvClient(base_url=url).sync() as two:
            one.reset(seed=0)
            with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                two.reset(seed=0)
        with TextEnvClient(base_url=url).sync() as three:
            three.reset(seed=0)


def test_server_refusals(urls):
    with TextEnvClient(base_url=urls["textenv/clarify"]).sync() as client:
        with pytest.raises(RuntimeError, match="not started; call reset"):
            client.step("hello")
        with pytest.raises(RuntimeError, match=r"no arguments \['sed'\]"):
            client.reset(sed=3)
        with pytest.raises(RuntimeError, match="task_index"):
            client.reset(task_index=-1)
        opening = client.reset(seed=3).observation
        client._async._step_payload = lambda action: {"text": "a", "message": {"role": "assistant", "content": "b"}}
        with pytest.raises(RuntimeError, match="text must be the content"):
            client.step("hello")
        assert client.state().messages == opening.messages
    with pytest.raises(gymnasium.error.NameNotFound):
        create_app("textenv/clarfy")


def test_failed_episode_is_error_and_not_reward():
    with served(create_app("test/failing")) as url, TextEnvClient(base_url=url).sync() as client:
        client.reset(seed=0)
        with pytest.raises(RuntimeError, match=r"failed \(user_failed\): told to"):
            client.step("fail")
        client.reset(seed=0)
        assert client.step("hm").reward < 0


def test_idle_session_is_over():
    environment = TextEnvironment("textenv/clarify")
    environment.reset(seed=0)
    environment.close()  # as OpenEnv does after session_timeout
    with pytest.raises(RuntimeError, match="idle for too long"):
        environment.step(TextAction(text="hello"))
    environment.close()


def test_server_metadata(urls):
    def get(path):
        with urllib.request.urlopen(f"{urls['textenv/clarify']}/{path}") as response:
            return json.load(response)

    assert get("metadata")["version"] == str(textenvs.describe("textenv/clarify").version)
    schema = get("schema")
    assert schema["action"]["required"] == ["text"]  # one field: clients that only have a text know where it goes
    assert {"text", "messages", "truncated", "terminated", "info"} <= set(schema["observation"]["properties"])
    assert {"turn_rewards", "stop"} <= set(schema["state"]["properties"])


@pytest.mark.parametrize(
    ("arguments", "match"), [(["--env-kwargs", "{"], "not JSON"), (["--env-kwargs", "[1]"], "a JSON object")]
)
def test_command_line(arguments, match, capsys):
    with pytest.raises(SystemExit):
        main(["textenv/clarify", *arguments])
    assert match in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["textenv/clarity"], "no environment has the id 'textenv/clarity'"),
        (["textenv/clarify", "--env-kwargs", '{"max_user_turns": 0}'], "max_user_turns"),
        (["textenv/clarify", "--env-kwargs", '{"colour": 1}'], "colour"),
        (["textenv/clarify", "--session-timeout", "0"], "session_timeout Input should be greater than 0"),
        (["textenv/clarify", "--session-timeout", "nan"], "session_timeout Input should be greater than 0"),
        (["textenv/clarify", "--max-sessions", "0"], "max_concurrent_envs Input should be greater than or equal to 1"),
        (["textenv/clarify", "--port", "65536"], "--port must be from 0 to 65535, not 65536"),
    ],
)
def test_unservable_environment_is_reported_in_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: pytest.fail("it is served"))
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    output = capsys.readouterr().err
    assert ended.value.code == 2
    assert output.startswith("python -m textenvs.integrations.openenv: ")
    assert output.count("\n") == 1
    assert message in output
