"""No cheap policy comes near the expert: the contract of every family's attacks, level by level."""

import functools

import pytest
from playable import PLAYABLE

import textenvs
from textenvs import TextEnv
from textenvs.attack import COMMON
from textenvs.audit.earnings import judge_attack
from textenvs.audit.subject import Verdict, mean
from textenvs.evaluate.baselines import play_attack, play_script
from textenvs.sandbox import SandboxUnavailable

EPISODES = 200  # of `make test-slow`, and where an attack was lucky in few
FEW = 60


def probe(env_id: str) -> TextEnv | None:
    try:
        return textenvs.make(env_id)
    except SandboxUnavailable:
        return None  # the contract's test says what is missing


ENVS = {env_id: env for env_id in PLAYABLE if (env := probe(env_id)) is not None}
SANDBOXED = ("textenv/collab-code", "textenv/math-python")  # slow: each episode runs programs
LEVELS = [(env_id, level) for env_id, env in ENVS.items() for level in env.levels or (None,)]
CASES = [
    *((env_id, level, FEW) for env_id, level in LEVELS if env_id not in SANDBOXED),
    *((env_id, ENVS[env_id].levels[0], 15) for env_id in SANDBOXED if env_id in ENVS),
    *(pytest.param(env_id, level, EPISODES, marks=pytest.mark.slow) for env_id, level in LEVELS),
]


@pytest.mark.parametrize("env_id", ENVS)
def test_a_family_lists_attacks_of_its_own(env_id):
    env = ENVS[env_id]
    names = [attack.name for attack in env.attacks()]
    assert len(set(names)) == len(names)
    assert set(names) - {attack.name for attack in COMMON}, "what is the cheapest reply that earns its reward?"
    assert env.attack_margin >= 0.1


def failures(env_id: str, level: str | None, episodes: int) -> list[Verdict]:
    make = functools.partial(textenvs.make, env_id, **({} if level is None else {"level": level}))
    experts, randoms = (play_script(make, script, episodes) for script in ("expert", "random"))
    assert mean(experts) > mean(randoms)
    env = ENVS[env_id]
    played = ((attack, play_attack(make, attack, episodes)) for attack in env.attacks())
    verdicts = [judge_attack(env, attack, records, experts, randoms) for attack, records in played]
    return [verdict for verdict in verdicts if verdict.failed]


@pytest.mark.parametrize(("env_id", "level", "episodes"), CASES)
@pytest.mark.timeout(900)
def test_attacks_stay_below_the_expert(env_id, level, episodes):
    found = failures(env_id, level, episodes)
    if found and episodes < EPISODES:  # in few episodes an attack may be lucky
        found = failures(env_id, level, EPISODES)
    assert not found
