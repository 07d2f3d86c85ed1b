"""Properties of all imported environments, over a scripted foreign episode."""

import pickle

import pytest

from textenvs.env import EnvironmentFailure
from textenvs.external import Answer, ExternalEnv
from textenvs.integrations.importers.seeds import Seeds, seed_of
from textenvs.messages import user
from textenvs.task import Task, TaskError

GO_ON = (user("Go on."),)
ANSWERS = {
    "on": {"messages": GO_ON, "reward": 0.25},
    "end": {"messages": (user("Well done."),), "reward": 1.0, "terminated": True, "stop": "won"},
    "cut": {"messages": (user("Time is up."),), "reward": 0.5, "cut": "truncated"},
    "terms": {"messages": GO_ON, "reward": 3.0, "terms": {"a": 1.0, "b": 2.0}, "metrics": {"m": 4.0}},
    "wrong terms": {"messages": GO_ON, "reward": 3.0, "terms": {"a": 1.0}},
    "nan": {"messages": GO_ON, "reward": float("nan")},
    "role": {"messages": ({"role": "assistant", "content": "I?"},), "reward": 0.0},
}


class Episode:
    """Counts how many there are; says what the reply asks for."""

    open = 0
    begun = 0
    fickle = False

    def __init__(self, seed):
        Episode.open += 1
        Episode.begun += 1
        self.closed = False
        self.opening = (user(f"Seed {Episode.begun if Episode.fickle else seed}."),)

    def reply(self, message):
        assert not self.closed
        if message["content"] == "fail":
            raise EnvironmentFailure("judge_failed", "told to")
        if message["content"] == "raise":
            raise OSError("told to")
        return Answer(**ANSWERS[message["content"]])

    def close(self):
        Episode.open -= not self.closed
        self.closed = True


class Foreign(ExternalEnv):
    def __init__(self, **kwargs):
        super().__init__(Seeds("foreign"), **kwargs)

    def begin(self, task):
        return Episode(seed_of(task))


@pytest.fixture(autouse=True)
def _counted():
    Episode.open = Episode.begun = 0
    Episode.fickle = False
    yield
    Episode.fickle = False


@pytest.fixture
def env():
    env = Foreign()
    env.reset(seed=0)
    return env


def test_ends_rewards_and_terms(env):
    *_, info = env.step("terms")
    assert (info["terms"], info["metrics"]) == ({"a": 1.0, "b": 2.0}, {"m": 4.0})
    conversation, reward, terminated, truncated, info = env.step("cut")
    assert (conversation[-1]["content"], reward, terminated, truncated) == ("Time is up.", 0.5, False, True)
    assert (info["stop"], info["user_turns"], env.state.return_so_far) == ("truncated", 2, 3.5)
    assert Episode.open == 0
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("end")
    assert (reward, terminated, truncated, info["stop"]) == (1.0, True, False, "won")


@pytest.mark.parametrize("nonsense", ["wrong terms", "nan", "role"])
def test_nonsense_fails_the_episode_and_is_no_reward(env, nonsense):
    _, reward, terminated, truncated, info = env.step(nonsense)
    assert (reward, terminated, truncated, info["stop"], info["failed"]) == (0.0, False, True, "tool_failed", True)
    assert "foreign" in info["failure"]
    assert Episode.open == 0


def test_an_exception_leaves_the_episode_as_it_was(env):
    env.step("on")
    with pytest.raises(OSError, match="told to"):
        env.step("raise")
    assert env.state.assistant_turns == 1
    *_, info = env.step("on")  # played again
    assert (info["assistant_turns"], Episode.begun, Episode.open) == (2, 2, 1)


def test_a_failure_of_the_source_is_one_here(env):
    *_, info = env.step("fail")
    assert (info["stop"], info["failed"], info["failure"]) == ("judge_failed", True, "told to")


def test_episode_is_replayed_only_when_missing(env):
    for _ in range(3):
        env.step("on")
    assert Episode.begun == 1
    fork, moved = env.fork(), pickle.loads(pickle.dumps(env))
    saved = env.snapshot()
    results = [environment.step("end") for environment in (env, fork, moved)]
    env.restore(saved)
    assert results == [env.step("end")] * 3
    assert Episode.begun == 4  # one each for the fork, the copy, and what was restored
    assert Episode.open == 0


def test_source_that_varies_cannot_fork(env):
    Episode.fickle = True
    env.step("on")
    *_, info = env.fork().step("on")
    assert info["failed"]
    assert "can neither be forked nor restored" in info["failure"]
    assert not env.step("on")[-1]["failed"]
    assert Episode.open == 1
    env.close()
    assert Episode.open == 0


def test_system_prompt_is_not_compared():
    env = Foreign(system_prompt="Be brief.")
    env.reset(seed=0)
    env.step("on")
    assert not env.fork().step("on")[-1]["failed"]


def test_seeds():
    sets = [Seeds("foreign", seed, split) for seed in (0, 1, 2**40) for split in ("train", "test")]
    seeds = [[tasks[index].extra["seed"] for index in range(50)] for tasks in sets]
    assert len({seed for drawn in seeds for seed in drawn}) == 6 * 50
    assert all(0 <= seed < 2**31 for drawn in seeds for seed in drawn)
    assert [{seed % 2 for seed in drawn} for drawn in seeds] == [{0}, {1}] * 3
    assert seeds[0][:2] == [867600840, 1639346026]  # on every machine
    with pytest.raises(ValueError, match="seed"):
        Seeds("foreign", seed=-1)
    with pytest.raises(TaskError, match=r"extra_info\.seed"):
        Foreign().reset(seed=0, options={"task": Task("key", "foreign", (user("?"),), None)})
