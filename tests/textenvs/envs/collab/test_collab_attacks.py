"""Precise questions earn more than any attack, under all formulas, even if the attack could solve everything.

Most attacks cannot work a problem out. So that asking is what is measured, each says the goal's own delivery as soon as
the user has told everything.
"""

import numpy as np
import pytest
from collab_cases import IDS, every_id

import textenvs
from textenvs.attack import COMMON
from textenvs.envs.collab.attacks import ATTACKS
from textenvs.scoring.conversation import FORMULAS


def mean_return(env, attack, episodes):
    """Return an attack's mean return; with ``None``, the expert's."""
    earned = []
    vague = (index for index in range(1000) if not env.family.goal(env.tasks[index]).told)
    for seed, index in zip(range(episodes), vague, strict=False):
        env.reset(seed=seed, options={"task_index": index})
        rng = np.random.default_rng(seed)
        reply = None if attack is None else attack.start(rng, ())
        total = 0.0
        while not env.state.done:
            knows = not env.user.untold(env.state.memory)
            text = env.demonstration(rng) if reply is None or knows else reply(env.state.messages)
            total += env.step(text)[1]
        earned.append(total)
    return np.mean(earned)


@pytest.mark.parametrize(
    ("env_id", "level", "formula"),
    [
        *(pytest.param(*case.values, level, "linear", marks=case.marks) for case in IDS for level in ("easy", "hard")),
        # What each formula gives is compared with its source in scoring/ and in test_lookahead.py.
        *(
            pytest.param("textenv/collab-math", "hard", name, marks=pytest.mark.slow)
            for name in sorted(FORMULAS.keys() - {"linear"})
        ),
    ],
)
def test_only_precise_questions_pay(env_id, level, formula):
    env = textenvs.make(env_id, level=level, formula=formula)
    episodes = 3 if env.family.domain == "code" else 10
    expert = mean_return(env, None, episodes)
    assert expert > 0.9
    for attack in (*COMMON, *ATTACKS):
        assert mean_return(env, attack, episodes) < expert / 2, attack.name


@every_id
def test_silence_pays_with_volunteering_user(env_id):
    """The control of the experiment, and the fault of version 1."""
    env = textenvs.make(env_id, level="hard", user_volunteers=True)
    (filler,) = [attack for attack in COMMON if attack.name == "filler"]
    episodes = 3 if env.family.domain == "code" else 10
    assert mean_return(env, filler, episodes) > mean_return(env, None, episodes) - 0.01
