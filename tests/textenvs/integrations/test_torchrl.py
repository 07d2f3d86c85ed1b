"""TorchRL, the real package: what its environments give is what ours give."""

import adapter_kit
import gymnasium
import numpy as np
import pytest
import torch
from tensordict import NonTensorStack
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, GymWrapper, SerialEnv
from torchrl.envs.utils import check_env_specs
from toy_envs import Contexts, Talk

import textenvs
from textenvs.env import EnvironmentFailure
from textenvs.envs.clarify.env import Clarify
from textenvs.integrations.torchrl import TextGymWrapper, drop_failed
from textenvs.messages import assistant
from textenvs.wrappers import TextObservation


def scripted(replies):
    """A policy that gives these replies, one after another."""
    remaining = iter(replies)

    def policy(td):
        td["action"] = next(remaining)
        return td

    return policy


def test_contexts_and_roles_are_whole_observations():
    env, plain = TextGymWrapper(Contexts()), Contexts()
    start, replies = env.reset(seed=3), ["more", "answered", "back 0", "end"]
    rollout = env.rollout(9, scripted(replies), auto_reset=False, tensordict=start)
    observation, _ = plain.reset(seed=3)
    for step, reply in enumerate(replies):
        assert rollout[step]["observation"] == observation
        observation, *_ = plain.step(reply)
    env = TextGymWrapper(Talk())
    start = env.reset(seed=0)
    rollout = env.rollout(9, scripted(["critic", "end"]), auto_reset=False, tensordict=start)
    assert [rollout[step]["observation"][-1]["content"] for step in range(2)] == ["Begin.", "news 0"]
    assert rollout[0]["next", "info"]["role"] == "critic"
    assert rollout[1]["next", "info"]["earlier"] == {0: {"paid": 1.0}}
    assert rollout["next", "reward"].sum() == 3.0


class Failing(Clarify):
    """Clarify with a simulator that gives up on request."""

    def respond(self, reply):
        if reply["content"] == "fail":
            raise EnvironmentFailure("user_failed", "told to")
        return super().respond(reply)


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_a_rollout_is_the_episode(env_id):
    ends = set()
    for played in adapter_kit.episodes(env_id, 8):
        env = TextGymWrapper(played.spec.make())
        start = env.reset(seed=played.spec.seed, options=played.spec.options)
        assert start["observation"] == played.opening
        rollout = env.rollout(len(played.replies) + 5, scripted(played.replies), auto_reset=False, tensordict=start)
        count = len(played.replies)
        assert rollout.shape == (count,)
        conversation = played.opening
        for step, (reply, answer) in enumerate(zip(played.replies, played.observations, strict=True)):
            assert rollout[step]["observation"] == conversation
            conversation = (*conversation, {"role": "assistant", "content": reply}, *answer)
            assert rollout[step]["next", "observation"] == conversation
        assert np.array_equal(rollout["next", "reward"].squeeze(-1).numpy(), np.float32(played.rewards))
        assert rollout["next", "terminated"].flatten().tolist() == [False] * (count - 1) + [played.terminated]
        assert rollout["next", "truncated"].flatten().tolist() == [False] * (count - 1) + [played.truncated]
        assert rollout["next", "done"].flatten().tolist() == [False] * (count - 1) + [True]
        assert not rollout["next", "failed"].any()
        infos = list(rollout["next", "info"])
        assert [sum(info["terms"].values()) for info in infos] == pytest.approx(played.rewards)
        assert infos[-1]["stop"] == played.stop
        ends.add(played.stop)
        env.close()
    assert len(ends) > 1


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_torchrls_own_checker(env_id):
    check_env_specs(TextGymWrapper(env_id))
    check_env_specs(GymWrapper(gymnasium.make(env_id)))  # with our spaces alone
    check_env_specs(GymEnv(env_id))
    check_env_specs(GymWrapper(TextObservation(gymnasium.make(env_id))))


CALL = {"id": "call_0", "type": "function", "function": {"name": "submit", "arguments": '{"answer": "7"}'}}


@pytest.mark.parametrize("message", [assistant("Which size?"), assistant("", [CALL])])
def test_a_reply_may_be_a_whole_message(message):
    env = TextGymWrapper("textenv/gsm8k-tool")
    direct = textenvs.make("textenv/gsm8k-tool")
    opening, _ = direct.reset(seed=3)
    td = env.reset(seed=3)
    td["action"] = message  # which becomes a TensorDict here
    after = env.step(td)
    expected = direct.step(message)
    assert after["next", "observation"] == expected[0]
    assert after["next", "reward"].item() == np.float32(expected[1])


def test_arguments_of_the_environment():
    assert TextGymWrapper("textenv/clarify", env_kwargs={"max_user_turns": 2})._env.max_user_turns == 2
    with pytest.raises(TypeError, match="a SerialEnv"):
        TextGymWrapper(gymnasium.make_vec("textenv/clarify", num_envs=2))
    with pytest.raises(gymnasium.error.NameNotFound, match="textenv/clarify"):
        TextGymWrapper("textenv/clarfy")


def test_several_side_by_side():
    envs = SerialEnv(2, lambda: TextGymWrapper("textenv/clarify"), use_buffers=False)

    def policy(td):
        td["action"] = NonTensorStack("#### 7", "What size?")
        return td

    rollout = envs.rollout(4, policy, break_when_any_done=False)
    assert rollout.shape == (2, 4)
    for row, reply in enumerate(("#### 7", "What size?")):
        assert all(reply in [message["content"] for message in texts] for texts in rollout[row]["next", "observation"])
    envs.close()


def test_failed_episodes_are_marked_and_dropped():
    env = TextGymWrapper(Failing())
    replies = ["hm", "fail", "hm", "hm", "fail", "#### -1", "hm"]
    rollout = env.rollout(7, scripted(replies), break_when_any_done=False)
    assert rollout["next", "failed"].flatten().tolist() == [reply == "fail" for reply in replies]
    assert rollout["next", "truncated"].flatten().tolist()[:2] == [False, True]
    assert list(drop_failed(rollout)["action"]) == ["#### -1", "hm"]
    stacked = torch.stack([rollout, rollout])
    assert list(drop_failed(stacked)["action"]) == ["#### -1", "hm"] * 2


def test_a_collector_and_what_it_calls_trajectories():
    replies = ["fail", "#### -1"] * 4  # the collector tries the policy out before it begins
    collector = Collector(lambda: TextGymWrapper(Failing()), scripted(replies), frames_per_batch=4, total_frames=4)
    (batch,) = list(collector)
    collector.shutdown()
    assert batch["next", "failed"].flatten().tolist() == [reply == "fail" for reply in batch["action"]]
    assert list(drop_failed(batch)["action"]) == ["#### -1", "#### -1"]
