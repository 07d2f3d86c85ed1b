"""Every environment can be solved and is worth learning, and no cheap policy comes near its expert."""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from playable import PLAYABLE

import textenvs
from textenvs import TextEnv
from textenvs.attack import COMMON, Attack
from textenvs.audit.earnings import judge_attack
from textenvs.audit.subject import SILENCE, Verdict
from textenvs.evaluate.baselines import has_script, play_attack, play_script
from textenvs.sandbox import SandboxUnavailable

EPISODES = 200  # of `make test-slow`, at every level, and where an attack was lucky in few
FEW = 30  # at the first level and at the last
# At the first alone: each episode runs programs, or many turns with a long search or a large database.
FEWER = {
    **{"textenv/agent": 10, "textenv/collab-code": 10, "textenv/math-python": 10, "textenv/math-expression": 10},
    **{"textenv/search-qa": 10, "textenv/service-desk": 10, "textenv/collab-document": 10, "textenv/terminal": 3},
    **{"textenv/worlds": 10, "textenv/worlds-web": 10, "textenv/textarena": 10, "textenv/gsm8k-tool": 10},
    **{"textenv/sessions": 10},
}
REHEARSED = 40  # of the expert's episodes, where an attack asks for hundreds: all of them in `make test-slow`
every_id = pytest.mark.parametrize("env_id", PLAYABLE)


def made(env_id: str) -> TextEnv:
    try:
        return textenvs.make(env_id)
    except SandboxUnavailable:
        pytest.skip("no sandbox here")  # the contract's test looks at the remedy


@every_id
def test_a_family_lists_attacks_of_its_own(env_id):
    env = made(env_id)
    names = [attack.name for attack in env.attacks()]
    assert len(set(names)) == len(names)
    assert set(names) - {attack.name for attack in COMMON}, "what is the cheapest reply that earns its reward?"
    assert env.attack_margin >= 0.1


def failures(
    env: TextEnv,
    level: str | None,
    episodes: int,
    attacks: Sequence[Attack],
    compared: Sequence[str] = ("expert", "random", "careless"),
) -> list[tuple[Attack, Verdict]]:
    """Return the attacks that come too near to the expert; the scripts are checked, too."""
    make = functools.partial(textenvs.make, env.spec.id, **({} if level is None else {"level": level}))
    scripts = [script for script in compared if has_script(env, script)]
    played = {script: play_script(make, script, episodes) for script in scripts}
    totals = {script: np.array([record.total for record in records]) for script, records in played.items()}
    assert not [record.failure for records in played.values() for record in records if record.failed]
    assert all(record.success for record in played["expert"])
    most = totals.pop("expert")
    for script, share in (("random", 0.2), ("careless", 0.75)):
        if script in totals:
            assert totals[script].mean() < share * most.mean(), (script, level)
            assert totals[script].max() <= most.max() + 1e-9, (script, level)
    silence = play_attack(make, SILENCE, episodes)
    attacked = ((attack, play_attack(make, attack, episodes)) for attack in attacks)
    judged = ((attack, judge_attack(env, attack, records, played["expert"], silence)) for attack, records in attacked)
    return [(attack, verdict) for attack, verdict in judged if verdict.failed]


@every_id
@pytest.mark.timeout(900)
def test_attacks_stay_below_the_expert(env_id):
    env = made(env_id)
    levels = env.levels or (None,)
    for level in dict.fromkeys((levels[0],) if env_id in FEWER else (levels[0], levels[-1])):
        attacks = tuple(replace(attack, rehearse=min(attack.rehearse, REHEARSED)) for attack in env.attacks())
        successes = failures(env, level, FEWER.get(env_id, FEW), attacks)
        for episodes in (100, EPISODES):  # in few an attack may be lucky
            if successes:
                successes = failures(env, level, episodes, [attack for attack, _ in successes], ["expert"])
        assert not successes, level


@pytest.mark.slow
@every_id
@pytest.mark.timeout(3600)
def test_attacks_earn_less_than_the_expert(env_id):
    env = made(env_id)
    for level in env.levels or (None,):
        assert not failures(env, level, EPISODES, env.attacks()), level
