"""No cheap policy comes near the expert: the contract of every family's attacks, level by level."""

import functools

import pytest

import textenvs
from textenvs import TextEnv
from textenvs.attack import COMMON
from textenvs.audit.subject import judge_attack, mean
from textenvs.evaluate.baselines import play_attack, play_script
from textenvs.sandbox import SandboxUnavailable

EPISODES = 200


def probe(env_id: str) -> TextEnv | None:
    try:
        return textenvs.make(env_id)
    except SandboxUnavailable:
        return None  # the contract's test says what is missing


ENVS = {env_id: env for env_id in textenvs.list_environments() if (env := probe(env_id)) is not None}
LEVELS = [(env_id, level) for env_id, env in ENVS.items() for level in env.levels or (None,)]
ATTACKS = [(env_id, level, attack.name) for env_id, level in LEVELS for attack in ENVS[env_id].attacks()]


def maker(env_id: str, level: str | None):
    return functools.partial(textenvs.make, env_id, **({} if level is None else {"level": level}))


@functools.cache
def mean_of(env_id: str, level: str | None, script: str) -> float:
    return mean(play_script(maker(env_id, level), script, EPISODES))


@pytest.mark.parametrize("env_id", ENVS)
def test_a_family_lists_attacks_of_its_own(env_id):
    env = ENVS[env_id]
    names = [attack.name for attack in env.attacks()]
    assert len(set(names)) == len(names)
    assert set(names) - {attack.name for attack in COMMON}, "what is the cheapest reply that earns its reward?"
    assert env.attack_margin >= 0.1


@pytest.mark.parametrize(("env_id", "level", "name"), ATTACKS)
def test_an_attack_stays_below_the_expert(env_id, level, name):
    env = ENVS[env_id]
    (attack,) = [attack for attack in env.attacks() if attack.name == name]
    records = play_attack(maker(env_id, level), attack, EPISODES)
    expert, floor = mean_of(env_id, level, "expert"), mean_of(env_id, level, "random")
    assert expert > floor
    verdict = judge_attack(env, attack, records, expert, floor)
    assert not verdict.failed, verdict
