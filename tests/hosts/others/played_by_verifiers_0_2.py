"""Tests that run under verifiers 0.2, in a process that test_verifiers_older.py starts."""

import asyncio
import json
import os
import subprocess
import sys
import time

import adapter_kit
import fragile_env
import gymnasium
import pytest
import verifiers as vf
from fake_service import FakeService
from verifiers.types import Response, ResponseMessage, ToolCall

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations.spec import SpecError
from textenvs.integrations.verifiers_multiturn import EpisodeFailed, TextMultiTurnEnv, load_environment


class Scripted(vf.Client):
    """A model's client that says what it is told to: texts, messages, or errors to raise."""

    def __init__(self, *replies):
        super().__init__(None)
        self.replies = list(replies)
        self.prompts = []

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        self.prompts.append(prompt)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def raise_from_native_response(self, response):
        pass

    async def from_native_response(self, response):
        fields = response if isinstance(response, dict) else {"content": response}
        message = ResponseMessage(**fields, finish_reason="stop", is_truncated=False)
        return Response(id="0", created=0, model="tiny", message=message)

    async def close(self):
        pass


def row_of(env, number=0):
    return env.get_dataset()[number]


async def scored(env, row, client):
    """A rollout and its score, as verifiers has them together."""
    state = await env.rollout(row, client, "tiny", {})
    await env.rubric.score_rollout(state)
    return state


def play(env, *replies, row=None):
    return asyncio.run(scored(env, row or row_of(env), Scripted(*replies)))


def plain(messages):
    return [message.model_dump(exclude_none=True) for message in messages]


@pytest.fixture
def fragile():
    with fragile_env.registered():
        yield load_environment(fragile_env.ID, count=1)


def how_many_are_open():
    return fragile_env.Fragile.open


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_an_episode_is_the_episode(env_id):
    env, ends = load_environment(env_id, count=8), set()
    assert isinstance(env, vf.MultiTurnEnv)
    for number, each in enumerate(adapter_kit.episodes(env_id, 8)):
        client = Scripted(*each.replies)
        state = asyncio.run(scored(env, row_of(env, number), client))
        assert state["error"] is None
        assert client.replies == []
        assert plain(state["prompt"]) == list(each.opening)
        said = []
        for reply, answer in zip(each.replies, each.said, strict=True):
            said += [{"role": "assistant", "content": reply}, *answer]
        assert plain(state["completion"]) == said  # what is said after the last reply included
        assert [step["reward"] for step in state["trajectory"]] == each.rewards
        assert [sum(step["extras"]["textenvs"]["terms"].values()) for step in state["trajectory"]] == pytest.approx(
            each.rewards
        )
        record = state["textenvs"]
        assert record["turn_rewards"] == each.rewards
        assert (record["terminated"], record["truncated"], record["stop"]) == (
            each.terminated,
            each.truncated,
            each.stop,
        )
        assert state["is_truncated"] == each.truncated
        assert state["stop_condition"] == ("environment_truncated" if each.truncated else "environment_terminated")
        assert state["reward"] == pytest.approx(sum(each.rewards))
        terms = [value for name, value in state["metrics"].items() if name.startswith("term/")]
        assert sum(terms) == pytest.approx(sum(each.rewards))
        assert state["metrics"]["num_turns"] == len(each.replies)
        ends.add(each.stop)
    assert len(ends) > 1


def test_the_hosts_own_generation():
    """Rollouts of a group at once, with verifiers' scores of groups, as its evaluations and trainers have them."""
    played = adapter_kit.episodes("textenv/clarify", 2)
    env = vf.load_environment("textenvs_verifiers", env="textenv/clarify", count=2)
    assert env.env_id == "textenvs_verifiers"
    replies = {str(each.opening[-1]["content"]): each.replies for each in played}

    class ByPrompt(Scripted):
        async def get_native_response(self, prompt, *args, **kwargs):
            asked = [message for message in prompt if message.role == "assistant"]
            opening = next(each for each in replies if each in [message.content for message in prompt])
            return replies[opening][len(asked)]

    rows = [row for row in env.get_dataset().to_list() for _ in range(2)]
    results = asyncio.run(env.generate(rows, ByPrompt(), "tiny", state_columns=["textenvs", "trajectory"]))
    assert len(results["outputs"]) == 4
    json.dumps([output["textenvs"] for output in results["outputs"]])
    for output in results["outputs"]:
        each = played[output["example_id"]]
        assert output["reward"] == pytest.approx(sum(each.rewards))
        assert output["textenvs"]["turn_rewards"] == each.rewards
        assert [step["reward"] for step in output["trajectory"]] == each.rewards
        assert any(name.startswith("term/") for name in output["metrics"])


def test_the_hosts_own_command(tmp_path):
    """Which plays in a server process that loads the environment by its name."""
    with FakeService("#### 7") as service:
        done = subprocess.run(
            [sys.executable, "-m", "verifiers.scripts.eval", "textenvs_verifiers", "-a", '{"env": "textenv/clarify"}']
            + ["-m", "tiny", "-b", service.url, "-k", "SOME_KEY", "-n", "2", "-r", "1"],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "SOME_KEY": "x", "HOME": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    assert "episode_return: avg" in done.stdout
    assert "environment_terminated: 1.000" in done.stdout


def test_a_failed_simulator_is_an_error_and_not_a_reward(fragile):
    state = play(fragile, "hm", "fail")
    assert isinstance(state["error"], EpisodeFailed)
    assert isinstance(state["error"], vf.InfraError)  # which verifiers' retries go by
    assert "user_failed: gone" in str(state["error"])
    assert state["stop_condition"] == "has_error"
    assert state["reward"] == 0.0
    assert not any(name.startswith("term/") for name in state["metrics"])
    assert state["textenvs"]["stop"] == "user_failed"
    assert how_many_are_open() == 0


def test_a_failed_rollout_is_tried_again(fragile):
    client = Scripted("fail", "hm", "end")
    output = asyncio.run(fragile.run_rollout(row_of(fragile), client, "tiny", {}, max_retries=1))
    assert (output["error"], output["reward"]) == (None, 1.0)
    assert how_many_are_open() == 0


def test_a_simulator_that_fails_in_the_opening_is_an_error():
    class Mute(Clarify):
        quiet = False

        def opening(self, task):
            if Mute.quiet:
                raise EnvironmentFailure("user_failed", "no first words")
            return super().opening(task)

    gymnasium.register("test/mute", entry_point=Mute, disable_env_checker=True)
    env = load_environment("test/mute", count=1)
    row = row_of(env)
    Mute.quiet = True
    state = play(env, row=row)
    assert "no first words" in str(state["error"])
    assert (state["reward"], state["trajectory"]) == (0.0, [])


def test_a_bug_of_the_environment_is_no_secret_and_leaves_nothing_behind(fragile):
    with pytest.raises(ZeroDivisionError):
        play(fragile, "crash")
    assert how_many_are_open() == 0


def test_a_model_that_fails_is_an_error(fragile):
    state = play(fragile, "hm", ValueError("no answer"))
    assert isinstance(state["error"], vf.ModelError)
    assert state["textenvs"]["turn_rewards"] == [0.5]
    assert how_many_are_open() == 0


def test_a_limit_of_the_host_ends_the_rollout_and_keeps_the_rewards():
    with fragile_env.registered():
        env = load_environment(fragile_env.ID, count=1, max_turns=2)
        state = play(env, "hm", "hm", "hm")
        assert state["stop_condition"] == "max_turns_reached"
        assert state["reward"] == 1.0
        assert [step["reward"] for step in state["trajectory"]] == [0.5, 0.5]
        record = state["textenvs"]
        assert (record["turn_rewards"], record["terminated"], record["truncated"], record["stop"]) == (
            [0.5, 0.5],
            False,
            False,
            None,
        )
        assert how_many_are_open() == 0
        # The last reply that the host allows may be the one that ends the episode.
        assert play(env, "hm", "end")["stop_condition"] == "environment_terminated"


def test_a_deadline_of_the_host_releases_the_session():
    class Slow(Scripted):
        async def get_native_response(self, *args, **kwargs):
            if len(self.replies) == 1:
                await asyncio.sleep(60)
            return await super().get_native_response(*args, **kwargs)

    with fragile_env.registered():
        env = load_environment(fragile_env.ID, count=1, timeout_seconds=0.5)
        row, began = row_of(env), time.monotonic()
        state = asyncio.run(scored(env, row, Slow("hm", "hm")))
        assert time.monotonic() - began < 30
        assert (state["stop_condition"], state["reward"]) == ("timeout_reached", 0.5)
        assert how_many_are_open() == 0


def test_a_deadline_while_a_reply_is_judged_leaves_the_reply_out():
    class Thoughtful(fragile_env.Fragile):
        async def respond(self, reply):
            if reply["content"] == "think":
                await asyncio.sleep(60)
            return super().respond(reply)

    with fragile_env.registered():
        gymnasium.registry[fragile_env.ID].entry_point = Thoughtful
        env = load_environment(fragile_env.ID, count=1, timeout_seconds=0.5)
        state = play(env, "hm", "think")
        assert (state["stop_condition"], state["reward"]) == ("timeout_reached", 0.5)
        # Without a reward of its own, verifiers would give it the whole episode's.
        assert [step["reward"] for step in state["trajectory"]] == [0.5]
        assert how_many_are_open() == 0


def test_a_reply_with_tool_calls_arrives_as_a_message():
    call = {"id": "c", "type": "function", "function": {"name": "calc_gsm8k_reward", "arguments": '{"answer": 7}'}}
    direct = textenvs.make("textenv/gsm8k-tool")
    direct.reset(seed=0)
    expected = direct.step({"role": "assistant", "content": "", "tool_calls": (call,)})
    env = load_environment("textenv/gsm8k-tool", count=1, max_turns=2)
    first = {"content": None, "tool_calls": [ToolCall(id="c", **call["function"])]}
    client = Scripted(first, "#### 1")
    state = asyncio.run(scored(env, row_of(env), client))
    assert state["textenvs"]["turn_rewards"][0] == expected[1]
    assert plain(client.prompts[1])[-1] == expected[0][-1]


def test_parts_of_a_reply_are_one_text(fragile):
    state = play(fragile, {"content": [{"type": "text", "text": "e"}, {"type": "text", "text": "nd"}]})
    assert state["textenvs"]["stop"] == "solved"


def test_rows_are_episodes():
    env = load_environment("textenv/clarify", env_kwargs={"max_user_turns": 1}, first_seed=5, count=2)
    specs = [json.loads(row["info"]["textenvs"]) for row in env.get_dataset()]
    assert [(spec["env"], spec["seed"]) for spec in specs] == [("textenv/clarify", 5), ("textenv/clarify", 6)]
    with pytest.raises(SpecError, match="count"):
        load_environment("textenv/clarify", count=0)
    with pytest.raises(gymnasium.error.NameNotFound):
        load_environment("textenv/clarfy", count=1).get_dataset()


def test_a_row_of_another_version_is_refused(fragile):
    env = load_environment("textenv/clarify", count=2)
    with pytest.raises(ValueError, match="opens otherwise here"):
        play(env, row={**row_of(env, 0), "prompt": row_of(env, 1)["prompt"]})
    with pytest.raises(SpecError, match="row 0"):
        play(env, row={**row_of(env), "info": {}})
    with pytest.raises(ValueError, match="opens otherwise here"):
        play(fragile, row={**row_of(fragile), "prompt": []})
    assert how_many_are_open() == 0


def test_a_system_prompt_of_the_hosts_stands_before_the_opening(fragile):
    env = load_environment(fragile_env.ID, count=1, system_prompt="Be brief.")
    client = Scripted("end")
    state = asyncio.run(scored(env, row_of(env), client))
    assert state["error"] is None
    assert [message.role for message in client.prompts[0]] == ["system", "user"]


def test_among_the_environments_of_a_group(fragile):
    group = vf.EnvGroup([fragile, load_environment("textenv/clarify", count=1)], env_names=["one", "two"])
    rows = group.get_dataset().to_list()
    state = asyncio.run(scored(group, rows[0], Scripted("hm", "end")))
    assert (state["reward"], state["textenvs"]["stop"]) == (1.0, "solved")
    assert isinstance(group.envs[0], TextMultiTurnEnv)
