"""Turn rewards reach the gradient of the tokens that earned them: the whole trainer on a task of three turns.

At a crossroads a sign says which of two words the first reply must be. Two more turns follow, whose replies never
matter. The policy starts from a few supervised steps on random words, so it knows the words and nothing else.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from ppo_runs import MODEL

from trainers.command_line import load_config
from trainers.ppo import train
from trainers.report.loggers import read_jsonl
from trainers.rollout.batch import roots_and_forks
from trainers.run import Run, assemble
from trainers.trajectory import Trajectory
from trainers.update import Update

CROSSROADS = [
    *("env.id=program_envs:tests/crossroads", "env.val_kwargs={}", "data.val_size=200", "validation.n=1"),
    *MODEL,
    *("warm_start.demonstrations=256", "warm_start.steps=60", "warm_start.lr=0.01", "warm_start.batch_size=32"),
    *("warm_start.mistake_rate=0", "warm_start.careless_steps=0"),
    *("actor.lr_schedule=constant", "actor.lr_warmup_steps=0"),
    *("engine.max_slots=64", "engine.max_context=64", "engine.threads=1", "trainer.threads=1", "trainer.logger=jsonl"),
    *("rollout.groups_per_batch=8", "rollout.n=8", "rollout.max_response_length=3", "actor.mini_batches=2"),
    *("actor.lr=0.002", "actor.entropy_coeff=0.005", "trainer.test_freq=-1"),
]


def learned(folder: Path, *overrides: str, iterations: int = 50) -> tuple[float, float]:
    """The share of right first replies on validation, before and after."""

    async def go() -> None:
        where = (f"trainer.default_local_dir={folder}", f"trainer.total_iterations={iterations}")
        async with assemble(load_config([*CROSSROADS, *where, *overrides])[0]) as run:
            await train(run)

    asyncio.run(go())
    rewards = [row["val/reward"] for _, row in read_jsonl(folder / "metrics.jsonl") if "val/reward" in row]
    assert len(rewards) == 2
    return rewards[0], rewards[1]


# The advantages are compared below, a table as policy learns by them in test_algorithms_learning.py, and the whole
# trainer learns in test_user_training.py.
@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [
        "turn_gae critic.lr=0.003",
        "gae critic.lr=0.003",
        "turn_grpo actor.lr=0.004 trainer.total_iterations=60",
        "turn_grpo actor.policy_loss=cispo actor.clip_ratio_low=1.0",
    ],
)
def test_first_turn_reward_is_learned(tmp_path, estimator):
    before, after = learned(tmp_path, *f"algorithm.adv_estimator={estimator}".split(" "))
    assert 0.35 < before < 0.65
    assert after > 0.9


@pytest.mark.slow  # a table as policy shows it in test_algorithms_learning.py
def test_reward_on_last_turn_is_not_learned(tmp_path):
    """The control: it is paid at the last turn, and ``gamma=0`` keeps it there, with words that did not earn it."""
    overrides = ["algorithm.adv_estimator=turn_grpo", "algorithm.gamma=0.0", "env.kwargs.paid_at=2"]
    before, after = learned(tmp_path, *overrides)
    assert 0.35 < before < 0.65
    assert after < 0.65


# One worker assembles the run of these.
crossroads_group = pytest.mark.xdist_group("crossroads")


@pytest.fixture(scope="module")
def crossroads(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Trajectory]]:
    """A run with a critic that still says 0 everywhere, and a batch of its episodes."""

    async def go() -> tuple[Run, list[Trajectory]]:
        argv = [*CROSSROADS, f"trainer.default_local_dir={tmp_path_factory.mktemp('run')}", "warm_start.steps=30"]
        async with assemble(load_config([*argv, "algorithm.adv_estimator=gae"])[0]) as run:
            return run, (await run.collector.next_batch()).trajectories

    return asyncio.run(go())


def advantages_by_turn(run: Run, trajectories: list[Trajectory], *options: str) -> NDArray[np.float64]:
    """Each episode's advantages ``[episodes, turns]`` (all tokens of a turn must have the same)."""
    config = load_config([*CROSSROADS, "algorithm.norm_adv=false", *options])[0]
    flat = Update(config).prepare(roots_and_forks(trajectories), run.learner).columns["advantages"]
    episodes = np.split(flat, np.cumsum([t.action_mask.sum() for t in trajectories])[:-1])
    turns = [t.turn_id[t.action_mask] for t in trajectories]
    by_turn = [np.array([a[k == i].mean() for i in range(3)]) for a, k in zip(episodes, turns, strict=True)]
    for advantages, means, number in zip(episodes, by_turn, turns, strict=True):
        assert np.allclose(advantages, means[number], atol=1e-12)
    return np.array(by_turn)


@crossroads_group
@pytest.mark.parametrize("estimator", ["turn_gae", "gae", "bilevel_gae", "turn_grpo"])
def test_only_words_that_earned_reward_are_credited(crossroads, estimator):
    overrides = [f"algorithm.adv_estimator={estimator}"] + ["algorithm.baseline=group"] * (estimator == "turn_grpo")
    run, trajectories = crossroads
    credited = advantages_by_turn(run, trajectories, *overrides)
    earned = np.array([t.turn_rewards for t in trajectories])
    assert set(earned[:, 0]) == {0.0, 1.0}
    assert not earned[:, 1:].any()
    assert not credited[:, 1:].any()
    if estimator == "turn_grpo":
        groups = [
            [i for i, t in enumerate(trajectories) if t.group_id == name] for name in {t.group_id for t in trajectories}
        ]
        for group in groups:
            for i in group:
                sibling_mean = np.mean([earned[j, 0] for j in group if j != i])
                assert credited[i, 0] == pytest.approx(earned[i, 0] - sibling_mean)
    else:
        assert np.array_equal(credited[:, 0], earned[:, 0])


@crossroads_group
@pytest.mark.parametrize(("gamma", "reaches"), [(1.0, [True, True, True]), (0.0, [False, False, True])])
def test_late_reward_reaches_earlier_turns(crossroads, gamma, reaches):
    run, trajectories = crossroads
    late = [replace(t, turn_rewards=t.turn_rewards[::-1], turn_terms=t.turn_terms[::-1]) for t in trajectories]
    advantages = advantages_by_turn(run, late, "algorithm.adv_estimator=turn_gae", f"algorithm.gamma={gamma}")
    assert advantages.any(axis=0).tolist() == reaches


@crossroads_group
def test_episode_estimator_credits_irrelevant_words(crossroads):
    """GRPO gives every turn the episode's advantage: the contrast to the above."""
    credited = advantages_by_turn(*crossroads, "algorithm.adv_estimator=grpo")
    assert credited.any(axis=1).mean() > 0.5, "all but the groups that are tied"
    assert np.array_equal(credited[:, 0], credited[:, 2])
