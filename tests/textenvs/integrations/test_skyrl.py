"""Environments in SkyRL-Gym, through its own registry."""

import os
import subprocess
import sys
from pathlib import Path

import adapter_kit
import fragile_env
import pytest
import skyrl_gym
from fragile_env import Fragile

from textenvs.env import EnvironmentFailure
from textenvs.integrations import EpisodeSpec, SpecError
from textenvs.integrations.rows import episode_rows
from textenvs.integrations.session import SeveralContextsError
from textenvs.integrations.skyrl import register
from textenvs.registry import list_environments


@pytest.fixture(autouse=True)
def registered():
    before = dict(skyrl_gym.registry)
    register()
    yield
    skyrl_gym.registry.clear()
    skyrl_gym.registry.update(before)


def made(spec, **extras):
    """Make it of a row as SkyRL's generator does."""
    row = next(episode_rows("skyrl", [spec]))
    prompt, env_class = row.pop("prompt"), row.pop("env_class")
    return skyrl_gym.make(env_class, env_config={}, extras={**row, "max_turns": 50, **extras}), prompt


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_an_episode_is_the_environments(env_id):
    ends = set()
    for played in adapter_kit.episodes(env_id, 8):
        env, prompt = made(played.spec)
        opening, info = env.init(prompt)
        assert tuple(opening) == played.opening
        assert info["task_key"]
        steps = [env.step(reply) for reply in played.replies]
        assert [tuple(step["observations"]) for step in steps] == played.observations
        assert [step["reward"] for step in steps] == played.rewards
        assert [step["done"] for step in steps] == [False] * (len(steps) - 1) + [True]
        last = steps[-1]["metadata"]
        assert (last["stop"], last["terminated"], last["truncated"]) == (
            played.stop,
            played.terminated,
            played.truncated,
        )
        for step in steps:
            assert sum(step["metadata"]["terms"].values()) == pytest.approx(step["reward"])
        metrics = env.get_metrics()
        assert metrics["turns"] == len(steps)
        assert metrics["return"] == sum(played.rewards)
        ends.add(played.stop)
    assert len(ends) > 1


def test_every_environment_is_registered_once():
    assert set(list_environments()) <= set(skyrl_gym.registry)
    register()
    register("textenv/clarify")


def test_row_options_apply_when_registered_later():
    row = {"textenv": EpisodeSpec("textenv/math-python", 0, {"sandbox": {"backend": "namespaces"}}).to_row()}
    env_id = "textenv/math-python"
    with pytest.raises(SpecError, match="a row may not set 'sandbox'"):
        skyrl_gym.make(env_id, env_config={}, extras=row)
    register(environments={env_id: {"sandbox": {"backend": "namespaces"}}})  # after the fixture's register()
    assert skyrl_gym.make(env_id, env_config={}, extras=row).episode.env == env_id
    register()
    assert skyrl_gym.make(env_id, env_config={}, extras=row).episode.env == env_id, "they stay"
    register("textenv/gsm8k", environments={"module:their/own": {}})
    assert "module:their/own" in skyrl_gym.registry


def test_max_turns_truncates_after_judging():
    played = next(p for p in adapter_kit.episodes("textenv/gsm8k-interact", 12) if len(p.replies) > 2)
    env, prompt = made(played.spec, max_turns=2)
    env.init(prompt)
    steps = [env.step(reply) for reply in played.replies[:2]]
    assert [step["reward"] for step in steps] == played.rewards[:2]
    assert steps[0]["done"] is False
    assert steps[1]["done"] is True
    last = steps[1]["metadata"]
    assert (last["stop"], last["terminated"], last["truncated"]) == ("max_turns", False, True)
    with pytest.raises(RuntimeError, match="no episode to step in"):
        env.step("more")


@pytest.fixture
def fragile():
    with fragile_env.registered():
        register(fragile_env.ID)
        env, prompt = made(EpisodeSpec(fragile_env.ID, 0))
        Fragile.open = 0  # the row's own is gone
        env.init(prompt)
        yield env


@pytest.mark.parametrize(("word", "error"), [("fail", EnvironmentFailure), ("crash", ZeroDivisionError), ("end", None)])
def test_what_it_holds_is_released_without_close(word, error, fragile):
    assert Fragile.open == 1
    fragile.step("more")
    if error is None:
        assert fragile.step(word)["done"] is True
    else:
        with pytest.raises(error):
            fragile.step(word)
    assert Fragile.open == 0
    fragile.close()
    fragile.close()
    assert Fragile.open == 0
    assert fragile.get_metrics()["turns"] >= 1


def test_abandoned_episode_is_released_on_collection():
    with fragile_env.registered():
        register(fragile_env.ID)
        env, prompt = made(EpisodeSpec(fragile_env.ID, 0))
        Fragile.open = 0
        env.init(prompt)
        env.step("more")
        assert Fragile.open == 1
        del env
        assert Fragile.open == 0


def test_several_conversations_are_refused_in_words():
    """By `textenvs rows skyrl` (test_session); and where rows come from elsewhere, before the first reply."""
    own = {"textenv/clarify": {"compact": {"tokens": 50}}, "toy_envs:Talk": {}, "toy_envs:Contexts": {}}
    register(environments=own)
    try:
        for env_id, words in (
            ("textenv/clarify", "summarised"),
            ("toy_envs:Talk", r"several roles \(solver, critic, judge\)"),
        ):
            spec = EpisodeSpec(env_id, 0, own[env_id])
            env = skyrl_gym.make(env_id, env_config={}, extras={"textenv": spec.to_row()})
            with pytest.raises(SeveralContextsError, match=f"{words}.*plays one conversation an episode"):
                env.init([])
        env = skyrl_gym.make("toy_envs:Contexts", extras={"textenv": EpisodeSpec("toy_envs:Contexts", 0).to_row()})
        env.init([])
        assert not env.step("more")["done"]
        with pytest.raises(SeveralContextsError, match="begun another conversation"):
            env.step("anew")
    finally:
        for env_id in own:
            skyrl_gym.registry.pop(env_id)
        register()


def test_mistakes_are_named():
    spec = EpisodeSpec("textenv/clarify", 0)
    env, _ = made(spec)
    with pytest.raises(RuntimeError, match=r"init\(\) begins one"):
        env.step("Hello")
    with pytest.raises(SpecError, match="is not what textenv/clarify opens with at seed 0"):
        env.init([{"role": "user", "content": "Hello"}])
    row = {"textenv": spec.to_row()}
    with pytest.raises(SpecError, match="no column 'textenv'.*`textenvs rows skyrl textenv/clarify`"):
        skyrl_gym.make("textenv/clarify", env_config={}, extras={})
    with pytest.raises(SpecError, match="env_class is 'textenv/gsm8k', and its episode one of 'textenv/clarify'"):
        skyrl_gym.make("textenv/gsm8k", env_config={}, extras=row)
    with pytest.raises(ValueError, match=r"options for it \(\['feedback'\]\), and nothing would read them"):
        skyrl_gym.make("textenv/clarify", env_config={"feedback": "hint"}, extras=row)


def test_the_example():
    root = Path(__file__).resolve().parents[3]
    script = root / "examples/skyrl/play.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'#### 1': reward +1.00, done=True, stop solved" in done.stdout
    assert "'#### 1': reward -0.35, done=True, stop max_assistant_turns" in done.stdout
    compile((root / "examples/skyrl/train.py").read_text(), "train.py", "exec")  # what it imports is not here
