"""verifiers, the real package: its episodes are the environment's."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import adapter_kit
import gymnasium
import pytest
import verifiers.v1 as vf
from fake_service import FakeService, Reply
from verifiers.v1.utils.loaders import default_harness_id, resolve_env_config

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations import SpecError
from textenvs.integrations.verifiers import TextTaskset, TextTasksetConfig, load_environment

ROOT = Path(__file__).parents[3]


class Failing(Clarify):
    """Clarify with a simulator that gives up on request."""

    closed = 0

    def respond(self, reply):
        if reply["content"] == "fail":
            raise EnvironmentFailure("user_failed", "told to")
        return super().respond(reply)

    def cleanup(self):
        Failing.closed += 1


gymnasium.register("test/failing-verifiers", entry_point=f"{__name__}:Failing")


def context(url):
    return vf.ModelContext(model="tiny", client=vf.EvalClientConfig(base_url=url, api_key_var="NO_SUCH_KEY"))


async def play_all(env, played):
    """The episodes of ``played``, with its replies given by a chat service."""
    tasks = {task.data.episode["seed"]: task for task in env.taskset}
    episodes = []
    async with env.serving():
        for episode in played:
            with FakeService() as service:
                service.script(*episode.replies)
                episodes.append(await env.run_episode(tasks[episode.spec.seed], context(service.url)))
                assert len(service.requests) == len(episode.replies)
    return episodes


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        ("textenv/clarify", {"compact": {"tokens": 50}}, "summarised"),
        ("toy_envs:Talk", {}, r"several roles \(solver, critic, judge\)"),
    ],
)
def test_several_conversations_are_refused_by_the_taskset(env, options, words):
    taskset = TextTaskset(TextTasksetConfig(env=env, env_kwargs=options))
    with pytest.raises(SpecError, match=f"{words}.*plays one conversation an episode"):
        next(iter(taskset))


def plain(messages):
    return [message.model_dump(exclude_none=True) for message in messages]


def conversation(played):
    messages = list(played.opening)
    for reply, answer in zip(played.replies, played.observations, strict=True):
        messages += [{"role": "assistant", "content": reply}, *answer]
    return messages


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_episode_is_episode(env_id):
    played = [one for one in adapter_kit.episodes(env_id, 8) if "" not in one.replies]
    episodes = asyncio.run(play_all(load_environment(env_id, count=8), played))
    ends = set()
    for direct, episode in zip(played, episodes, strict=True):
        (trace,) = episode.traces
        assert episode.ok, episode.errors or trace.errors
        record = trace.info["textenvs"]
        assert record["turn_rewards"] == direct.rewards
        assert [sum(terms.values()) for terms in record["turn_terms"]] == pytest.approx(direct.rewards)
        assert trace.reward == pytest.approx(sum(direct.rewards))
        assert (record["terminated"], record["truncated"], record["stop"]) == (
            direct.terminated,
            direct.truncated,
            direct.stop,
        )
        assert trace.is_truncated == direct.truncated
        assert trace.stop_condition == ("max_turns" if direct.truncated else direct.stop)
        # Up to the last reply: what is said after it reaches no model.
        expected = conversation(direct)[: len(conversation(direct)) - len(direct.observations[-1])]
        assert plain(trace.messages) == expected
        assert [trace.nodes[number].message.content for number in record["turn_nodes"]] == direct.replies
        assert trace.task.data.episode == direct.spec.to_row()
        ends.add(direct.stop)
    assert len(ends) > 1


def test_taskset_is_lazy_and_counts_its_seeds():
    endless = TextTaskset(TextTasksetConfig(env="textenv/clarify", first_seed=5))
    assert not endless.bounded
    assert [task.data.episode["seed"] for task in endless.take(3)] == [5, 6, 7]
    few = TextTaskset(TextTasksetConfig(env="textenv/clarify", count=2))
    assert few.bounded
    one, two = few
    assert len({one.key, two.key}) == 2
    assert [one.key, two.key] == [task.key for task in few]
    with pytest.raises(ValueError, match="needs an environment's id"):
        TextTaskset(TextTasksetConfig())
    with pytest.raises(gymnasium.error.NameNotFound):
        list(TextTaskset(TextTasksetConfig(env="textenv/clarfy", count=1)))


def run_one(env, *replies, task=None, answer="ok"):
    async def run():
        async with env.serving():
            with FakeService(answer) as service:
                service.script(*replies)
                return await env.run_episode(task or next(iter(env.taskset)), context(service.url))

    return asyncio.run(run())


def test_failed_episode_is_error_and_not_reward():
    before = Failing.closed
    episode = run_one(load_environment("test/failing-verifiers", count=1), "hm", "fail")
    assert not episode.ok
    (trace,) = episode.traces
    assert not trace.ok
    assert "user_failed: told to" in trace.last_error.message
    assert trace.rewards == {}
    assert Failing.closed > before  # the session was closed


def test_model_that_fails_is_error():
    episode = run_one(load_environment("textenv/clarify", count=1), answer=lambda body: None)
    assert not episode.traces[0].ok


def test_limit_of_host_ends_episode_early():
    episode = run_one(load_environment("textenv/clarify", count=1, player={"max_turns": 1}), "hm", "hm")
    (trace,) = episode.traces
    assert trace.stop_condition == "max_turns"
    record = trace.info["textenvs"]
    assert (len(record["turn_rewards"]), record["terminated"], record["truncated"], record["stop"]) == (
        1,
        False,
        False,
        None,
    )


def test_task_of_another_version_is_refused():
    env = load_environment("textenv/clarify", count=2)
    one, two = env.taskset
    episode = run_one(env, task=one.with_data(prompt=two.data.prompt))
    assert not episode.ok
    assert "opens otherwise here" in episode.errors[0].message
    episode = run_one(env, task=one.with_data(episode={"env": "textenv/clarify"}))
    assert SpecError.__name__ in episode.errors[0].message


def test_verifiers_finds_plugin_by_its_id():
    config = resolve_env_config({"taskset": {"id": "textenvs_verifiers", "env": "textenv/clarify", "count": 3}})
    assert len(list(vf.load_environment(config).taskset)) == 3
    assert default_harness_id("textenvs_verifiers") == "textenvs_verifiers"


@pytest.mark.slow  # test_examples_of_hosts.py evaluates with verifiers, and above it finds the plugin by its id
def test_hosts_own_command(tmp_path):
    command = [Path(sys.executable).with_name("vf-eval"), "textenvs_verifiers", "-m", "tiny", "-r", "1", "-o", tmp_path]
    taskset = ["--env.taskset.env", "textenv/clarify", "--env.taskset.count", "2"]
    inside = {name: value for name, value in os.environ.items() if not name.startswith("PRIME")}
    with FakeService("#### 7") as service:
        client = ["--client.base-url", service.url, "--client.api-key-var", "NO_SUCH_KEY"]
        done = subprocess.run(
            [*command, *taskset, *client],
            capture_output=True,
            text=True,
            timeout=100,
            env={**inside, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("traces.jsonl")
    traces = [trace for line in file.read_text().splitlines() for trace in _traces(json.loads(line))]
    assert len(traces) == 2
    assert all(len(trace["info"]["textenvs"]["turn_rewards"]) == 1 for trace in traces)


def _traces(record):
    return record.get("traces", [record])


def test_reply_with_tool_calls_arrives_as_message():
    call = {"id": "c", "type": "function", "function": {"name": "calc_gsm8k_reward", "arguments": '{"answer": 7}'}}
    direct = textenvs.make("textenv/gsm8k-tool")
    direct.reset(seed=0)
    expected = direct.step({"role": "assistant", "content": "", "tool_calls": (call,)})
    episode = run_one(
        load_environment("textenv/gsm8k-tool", count=1, player={"max_turns": 2}),
        Reply(None, tool_calls=[call]),
        "#### 1",
    )
    (trace,) = episode.traces
    assert trace.info["textenvs"]["turn_rewards"][0] == expected[1]
    assert plain(trace.messages)[3] == expected[0][-1]


def test_system_prompt_of_host_replaces_environments(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Be brief.")
    env = load_environment("textenv/gsm8k-tool", count=1, player={"max_turns": 1})
    env.taskset.system_prompt = file.read_text()
    (trace,) = run_one(env, "hm").traces
    assert [(message.role, message.content) for message in trace.messages[:2]][0] == ("system", "Be brief.")
    assert [message.role for message in trace.messages] == ["system", "user", "assistant"]
