"""Runs without a learning signal change nothing, and report it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from estimating import estimate
from hypothesis import given
from hypothesis import strategies as st
from ppo_runs import QUICK, SMALL, each_batch, in_process, training_of
from trajectories import action_batch, trajectory_of

from trainers.algorithms.estimators import ESTIMATORS, normalize
from trainers.command_line import load_config, resolve
from trainers.ppo import train
from trainers.report.diagnosis import START
from trainers.report.metrics import groups_tied
from trainers.rollout.batch import Batch
from trainers.run import Run, assemble
from trainers.trajectory import Trajectory, tied
from trainers.update import over_steps

TURN_GRPO = ("algorithm.adv_estimator=turn_grpo", "trainer.save_freq=-1")


# ------------------ a tie is a tie


@given(st.floats(-1e6, 1e6), st.integers(1, 4), st.integers(2, 9), st.booleans())
def test_equal_rewards_give_exactly_zero_advantage(reward, groups, size, normalized):
    """Rounding would be enough: AdamW divides what it left of a gradient by its own size."""
    count = groups * size
    batch = action_batch(
        [[2, 1]] * count,
        np.tile([reward, 0.0], count),
        np.repeat(np.arange(groups), size),
        anchor=np.tile([0, 1], count),
        solved=np.ones(count, np.bool_),
        greedy=np.full(count, reward),
        role_baseline=np.full(count, reward),
        terms=np.tile([reward, 0.0], (count, 1)),
        score_norms=np.linspace(0.0, 2.0, 3 * count),
    )
    ways: list[tuple[str, dict[str, Any]]] = [
        (name, {}) for name, kind in ESTIMATORS.items() if "critic" not in kind.needs
    ]
    baselines = ("mixed", "shrunk", "optimal_token")
    ways += [(name, {"baseline": kind}) for name in ("rloo", "turn_grpo") for kind in baselines]
    ways += [("passk", {"pass_k": k}) for k in (1, 2, 3)]
    ways += [("turn_grpo", {"zero_pad": True}), ("turn_grpo", {"norm_by_std": True, "outcome_mix": 0.3})]
    assert {name for name, _ in ways} >= {"remax", "gigpo"}
    for name, options in ways:
        result = estimate(name, batch, **options)
        if name == "reinforce_pp":  # it compares turns with each other, too
            continue
        scaled = (normalize(result) if normalized else result).advantages
        assert not scaled.any(), (name, options)


# ------------------ runs


def tied_episode(episode: Trajectory) -> Trajectory:
    """All earn .1, with the first turn."""
    rewards = np.zeros(episode.num_turns)
    rewards[:1] = 0.1
    return replace(episode, turn_rewards=rewards, turn_terms=tuple({"r": float(r)} for r in rewards))


def changed(batch: Batch, change: Callable[[Trajectory], Trajectory]) -> Batch:
    return replace(batch, episodes=[e.changed(change(e.trajectory)) for e in batch.episodes])


tie = each_batch(lambda batch: changed(batch, tied_episode))


# One worker makes the run whose model they are given.
with_given_model = pytest.mark.xdist_group("learning signal")


@pytest.fixture(scope="module")
def given_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    in_process(folder, "trainer.total_iterations=1", *TURN_GRPO)
    return next(folder.glob("checkpoints/iteration_*/model"))


def trained(
    model: Path, folder: Path, look: Callable[[Run], None], *overrides: str
) -> tuple[dict[str, torch.Tensor], ...]:
    """The weights of a given model before and after two iterations."""
    argv = [*SMALL, *QUICK, *TURN_GRPO, f"model.path={model}", f"trainer.default_local_dir={folder}"]
    argv = [argument for argument in argv if not argument.startswith(("warm_start.mistake", "warm_start.careless"))]

    async def go() -> tuple[dict[str, torch.Tensor], ...]:
        async with assemble(load_config([*argv, "trainer.total_iterations=2", *overrides])[0]) as run:
            look(run)
            before = run.learner.weights()
            await train(run)
            return before, run.learner.weights()

    return asyncio.run(go())


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before)


# A deviation of 0 divides only where advantages are normalised.
@pytest.mark.parametrize("norm_adv", [pytest.param("false", marks=pytest.mark.slow), "true"])
@with_given_model
def test_model_without_signal_stays_bit_identical(given_model, tmp_path, norm_adv):
    assert not moved(*trained(given_model, tmp_path, tie, f"algorithm.norm_adv={norm_adv}"))
    rows = training_of(tmp_path)
    assert [row["actor/grad_norm"] for row in rows] == [0.0, 0.0]
    assert [row["train/groups_tied"] for row in rows] == [1.0, 1.0]


@with_given_model
def test_only_configured_terms_move_signal_free_model(given_model, tmp_path):
    assert moved(*trained(given_model, tmp_path / "entropy", tie, "actor.entropy_coeff=0.01"))
    before, after = trained(given_model, tmp_path / "decay", tie, "actor.weight_decay=0.1")
    decay = (1 - 0.003 * 0.1) ** 4  # actor.lr, and four optimizer steps
    for name in before:
        expected = before[name] * (decay if before[name].ndim > 1 else 1.0)
        torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=0)


@with_given_model
def test_entropy_target_acts_below_target(given_model, tmp_path):
    assert not moved(*trained(given_model, tmp_path / "above", tie, "actor.entropy_target=1e-6"))
    assert moved(*trained(given_model, tmp_path / "below", tie, "actor.entropy_target=99", "actor.entropy_step=0.1"))
    assert [row["actor/entropy_coeff"] for row in training_of(tmp_path / "below")] == [0.0, 0.1]


@with_given_model
def test_entropy_bonus_defaults_to_scratch_models(given_model):
    path = f"model.path={given_model}"
    expected = {(): 0.01, (path,): 0.0, (path, "actor.entropy_coeff=0.02"): 0.02, ("actor.entropy_coeff=0",): 0.0}
    assert {arguments: resolve(arguments)[0].actor.entropy_coeff for arguments in expected} == expected


def test_missing_signal_is_reported_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "trainers"):
        in_process(tmp_path, *TURN_GRPO, f"trainer.total_iterations={START + 2}", look=tie)
    (message,) = [record.message for record in caplog.records if "no signal" in record.message]
    for words in (
        "all episodes earned the same",
        "mean reward 0.1",
        "task/",
        "env.kwargs",
        "rollout.temperature",
        "rollout.n",
    ):
        assert words in message


def test_clip_outliers_are_counted_before_first_step(tmp_path):
    """An engine whose log-probabilities are off by 1 for every other token: their ratio is 2.7."""
    shares: list[float] = []

    def off(episode: Trajectory) -> Trajectory:
        wrong = episode.action_mask & (np.arange(len(episode.token_ids)) % 2 == 0)
        return replace(episode, logprobs=(episode.logprobs - wrong).astype(np.float32))

    def mismatched(batch: Batch) -> Batch:
        made = changed(batch, off)
        wrong = [e.logprobs != t.logprobs for e, t in zip(made.trajectories, batch.trajectories, strict=True)]
        shares.append(sum(int(w.sum()) for w in wrong) / sum(int(e.action_mask.sum()) for e in made.trajectories))
        return made

    options = ("actor.mini_batches=1", "actor.ppo_epochs=2", "trainer.total_iterations=1")
    in_process(tmp_path, *TURN_GRPO, *options, look=each_batch(mismatched))
    (row,) = training_of(tmp_path)
    assert row["actor/outside_clip_first"] == pytest.approx(shares[0])
    assert 0.2 < shares[0] < 0.8


def test_tied_groups_have_equal_rewards():
    def groups(*rewards: list[float]) -> list[list[Trajectory]]:
        return [[_episode(reward) for reward in group] for group in rewards]

    assert groups_tied(groups([1.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.5, 0.5])) == 0.75
    assert groups_tied(groups([1.0], [1.0])) == 1.0, "one episode each: they are compared with each other"
    assert groups_tied(groups([1.0], [0.0])) == 0.0


def test_groups_of_equal_sums_differ_by_their_terms():
    one, other = (replace(_episode(1.0), turn_terms=({name: 1.0},)) for name in "ab")
    assert (groups_tied([[one, other]]), groups_tied([[one, other]], by_term=True)) == (1.0, 0.0)
    assert tied([one, replace(one, turn_terms=({"a": 1.0, "b": 0.0},))], by_term=True), "a term of 0 is no difference"


def _episode(reward: float) -> Trajectory:
    return trajectory_of([0], [reward])


def test_step_metrics_average_and_memory_takes_maximum() -> None:
    steps = [{"actor/loss": 1.0, "actor/peak_gib": 2.0}, {"actor/loss": 4.0, "actor/peak_gib": 6.0, "critic/loss": 3.0}]
    assert over_steps(steps) == {"actor/loss": 2.5, "actor/peak_gib": 6.0, "critic/loss": 3.0}
