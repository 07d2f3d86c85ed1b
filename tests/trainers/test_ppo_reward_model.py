"""PPO with a reward model, by its keys alone: scores stand in the terms of turns, and a lost worker changes nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from ppo_runs import episodes_of, in_process, training_of, up_to
from reward_models import save_model

from trainers.checkpoints import Checkpoints
from trainers.config.reward_model import ClassifierSection
from trainers.rewards.backends.classifier import Classifier
from trainers.rollout.group_scheduler import CollectionError, ConsecutiveErrorsError
from trainers.trajectory import Trajectory
from trainers.update import Update


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("judge"))


def options(folder: str, tmp_path: Path, *overrides: str) -> list[str]:
    return [
        *("reward_model.enable=true", f"reward_model.classifier.path={folder}", "reward_model.name=helpful"),
        *("trainer.total_iterations=2", f"trainer.rollout_data_dir={tmp_path}/episodes", "rollout.groups_per_batch=4"),
        *overrides,
    ]


def test_reward_model_name_clash_ends_the_run(tmp_path, folder):
    with pytest.raises(CollectionError, match=r"reward_models.luck is paid as the term 'luck', and program_envs:"):
        in_process(tmp_path / "run", *options(folder, tmp_path, "reward_model.name=luck"))


def by_hand(folder: str, conversations: list[Any]) -> list[float]:
    """Return the model's scores, computed here one at a time."""
    model = Classifier(ClassifierSection(path=folder), device="cpu")
    return [score for one in conversations for score in model.score([one]) if isinstance(score, float)]


def check(folder: str, episodes: list[Trajectory], weight: float, *, per_turn: bool, replace: bool) -> None:
    """Every turn is paid what the model says by hand, and what the environment said, or not."""
    scores, conversations = [], []
    for trajectory in episodes:
        for turn, terms in enumerate(trajectory.turn_terms):
            assert trajectory.turn_rewards[turn] == pytest.approx(sum(terms.values()))
            environment = terms["luck"] + terms["cost"]
            assert terms.get("environment_not_counted", 0.0) == pytest.approx(-environment if replace else 0.0)
            assert ("helpful" in terms) == (per_turn or turn == trajectory.num_turns - 1)
            if "helpful" in terms:
                scores.append(terms["helpful"])
                conversations.append(up_to(trajectory, turn))
    assert len(set(scores)) > 4, "the model tells replies apart"
    assert scores == [weight * score for score in by_hand(folder, conversations)], "to the last bit"


# test_credit_assignment.py and test_classifier.py have scores of whole episodes.
@pytest.mark.parametrize("per_turn", [pytest.param(False, marks=pytest.mark.slow), True])
def test_model_scores_are_recorded_as_terms(tmp_path, folder, per_turn):
    overrides = [f"reward_model.per_turn={str(per_turn).lower()}", "reward_model.weight=0.5"]
    overrides += ["reward_model.replace=false"] * per_turn + ["reward_model.classifier.replicas=2"] * per_turn
    overrides += ["reward_model.enable_resource_pool=true", "reward_model.n_gpus_per_node=2"] * (not per_turn)
    run = in_process(tmp_path, *options(folder, tmp_path, *overrides))
    check(folder, episodes_of(tmp_path / "episodes"), 0.5, per_turn=per_turn, replace=not per_turn)
    rows = training_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["reward/helpful_requests"] > 0
        assert row["reward/helpful_unscored"] == row["reward/helpful_lost_workers"] == 0
        assert 0 <= row["reward/helpful_overlap"] <= 1
        assert "train/terms/helpful" in row
    assert run.reward_models is not None
    assert not run.reward_models.pools["helpful"]._ready, "the workers ended with the run"


def test_estimator_sees_moved_rewards_reports_do_not(tmp_path, folder, monkeypatch):
    (tmp_path / "mine.py").write_text("def first(t): return [t.total_reward] + [0.0] * (t.num_turns - 1)\n")
    seen: list[Trajectory] = []
    prepare = Update.prepare
    monkeypatch.setattr(
        Update,
        "prepare",
        lambda *args, **options: seen.extend(episode.credited for episode in args[1]) or prepare(*args, **options),
    )
    in_process(tmp_path, *options(folder, tmp_path, f"algorithm.reward_credit={tmp_path}/mine.py:first"))
    reported = episodes_of(tmp_path / "episodes")
    assert len(reported) == len(seen) > 8
    for earned, moved in zip(reported, seen, strict=True):
        assert moved.turn_rewards[0] == pytest.approx(earned.total_reward)
        assert not moved.turn_rewards[1:].any()
        assert [sum(terms.values()) for terms in moved.turn_terms] == pytest.approx(moved.turn_rewards.tolist())
        assert dataclasses.replace(moved, turn_rewards=earned.turn_rewards, turn_terms=earned.turn_terms) == earned
    assert any(trajectory.turn_rewards[1:].any() for trajectory in reported)


def crediting(tmp_path: Path, function: str) -> list[str]:
    (tmp_path / "mine.py").write_text(function)
    return [f"algorithm.reward_credit={tmp_path}/mine.py:mine", "rollout.groups_per_batch=2"]


def test_uncreditable_episodes_are_dropped(tmp_path, caplog):
    overrides = crediting(tmp_path, "def mine(t):\n    assert t.turn_rewards[0] < 0.8\n    return t.turn_rewards")
    overrides += [f"trainer.rollout_data_dir={tmp_path}/episodes", "trainer.total_iterations=3", "rollout.retries=9"]
    in_process(tmp_path, *overrides)
    rows = training_of(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    failed = sum(row.get("rollout/cause_error_reward_credit", 0) for row in rows)
    assert failed == sum(row.get("rollout/episodes_error_reward", 0) for row in rows) > 0
    assert failed <= rows[-1]["rollout/retries"], "each was played again"
    episodes = episodes_of(tmp_path / "episodes")
    assert len(episodes) == 12
    assert all(episode.turn_rewards[0] < 0.8 for episode in episodes)
    (line,) = [record.message for record in caplog.records if "error_reward_credit" in record.message]
    assert "mine.py:mine, episode 'g" in line
    assert "assert t.turn_rewards[0] < 0.8" in line


def test_late_credit_failure_keeps_learned_weights(tmp_path, caplog):
    """Use a function that fails on later weights; once fixed, the run resumes where it failed."""
    late = "def mine(t):\n    if t.weight_version.max() > 1: raise KeyError('user')\n    return t.turn_rewards"
    overrides = [*crediting(tmp_path, late), "trainer.total_iterations=3", "trainer.save_freq=-1"]
    overrides += ["rollout.max_consecutive_errors=3"]
    with pytest.raises(ConsecutiveErrorsError, match=r"(?s)mine\.py:mine, episode 'g.*KeyError: 'user'"):
        in_process(tmp_path, *overrides)
    newest = Checkpoints(tmp_path / "checkpoints", 2).newest()
    assert newest is not None
    assert newest.iteration == 2
    assert "what was learned in 2 iterations is saved" in caplog.text
    (tmp_path / "mine.py").write_text("def mine(t): return t.turn_rewards")
    in_process(tmp_path, *overrides)
    assert [row["step"] for row in training_of(tmp_path)] == [1, 2, 3]


def test_credit_failure_while_learning_keeps_batch(tmp_path):
    """With staleness, collecting may be over before the batch at hand is learned: that one counts."""
    overrides = crediting(
        tmp_path, "def mine(t):\n    if t.episode_id[1] > '1': raise KeyError\n    return t.turn_rewards"
    )
    overrides += ["rollout.staleness=1", "trainer.total_iterations=4", "rollout.max_consecutive_errors=1"]
    with pytest.raises(ConsecutiveErrorsError):
        in_process(tmp_path, *overrides, "trainer.save_freq=-1")
    newest = Checkpoints(tmp_path / "checkpoints", 2).newest()
    steps = [row["step"] for row in training_of(tmp_path)]
    assert newest is not None
    assert steps == list(range(1, newest.iteration + 1)), "what is saved is what was reported"
    (tmp_path / "mine.py").write_text("def mine(t): return t.turn_rewards")
    in_process(tmp_path, *overrides)
    assert [row["step"] for row in training_of(tmp_path)] == [1, 2, 3, 4]
