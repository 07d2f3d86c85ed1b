"""Recomputing an iteration: equality without a change, and the place of a planted change."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import program_envs
import pytest
import yaml
from ppo_runs import in_process

from textenvs import Turn
from textenvs.records import open_run
from textenvs.viewer.branches import environment_of
from trainers.algorithms.estimators import turn_grpo
from trainers.algorithms.losses import ppo
from trainers.config.engine import EngineSection
from trainers.learner.optim import Optimizer
from trainers.replay import again as replaying
from trainers.replay.__main__ import main
from trainers.replay.again import replay
from trainers.replay.compare import STAGES, ReplayError, Report
from trainers.rewards import credit_assignment
from trainers.trajectory import read_parquet

SAVED = [
    *("trainer.total_iterations=3", "trainer.save_freq=1", "trainer.keep_last_n=2", "trainer.test_freq=-1"),
    *("rollout.groups_per_batch=3", "rollout.max_running=1"),
]
PLAIN = ["algorithm.adv_estimator=turn_grpo", "algorithm.reward_credit=discounted", "actor.ppo_epochs=2"]
FORKED = [
    *("algorithm.adv_estimator=fork", "algorithm.norm_adv=false", "actor.loss_agg_mode=seq-mean-token-sum"),
    *("actor.mini_batches=1", "trainer.total_iterations=1"),
]

# One worker plays the run that is recomputed.
pytestmark = pytest.mark.xdist_group("replay")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints of iterations 2 and 3."""
    folder = tmp_path_factory.mktemp("run")
    in_process(folder, *SAVED, *PLAIN)
    return folder


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="trainers")  # put back after the test: loggers are the whole process's


def test_episodes_of_several_roles_are_refused(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("textarena", reason="needs the extra 'textarena'")
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    path = copy / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["env"] |= {"id": "textenv/textarena", "kwargs": {"game": "TicTacToe-v0", "opponent": "self"}}
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(ReplayError, match="several roles .player-0, player-1 of textenv/textarena. cannot be played"):
        again(copy)


def again(folder: Path, iteration: int = 3, group: str | None = None) -> Report:
    return asyncio.run(replay(open_run(folder), iteration, group))


def test_nothing_differs_to_last_bit(folder: Path) -> None:
    report = again(folder)
    assert report.first is None
    assert set(report.notes) == set(STAGES)
    assert "6 episodes" in report.notes["environment"]
    assert "to the last bit" in report.notes["sampling"]
    assert report.notes["gradient"] == "4 optimizer steps: the same"
    assert not [note for note in report.notes.values() if "left out" in note]


def test_missing_checkpoint_skips_model_stages(folder: Path) -> None:
    report = again(folder, 2)
    assert report.first is None, "\n".join(report.lines())
    assert "6 episodes: the same" in report.notes["reward"]
    assert "tokens: the same" in report.notes["advantage"]
    assert (
        "iteration_000001, which does not exist; iterations that began from one that is: 3. trainer.save_freq=1"
        in report.notes["sampling"]
    )
    assert report.notes["loss"] == report.notes["gradient"] == "left out, as sampling is"


def changed_turn(patch: pytest.MonkeyPatch, change: Callable[[Turn], Turn]) -> None:
    before = program_envs.Bytes.respond
    patch.setattr(program_envs.Bytes, "respond", lambda self, reply: change(before(self, reply)))


def changed_message(patch: pytest.MonkeyPatch) -> None:
    changed_turn(patch, lambda turn: replace(turn, messages=tuple({**m, "content": "More!"} for m in turn.messages)))


def changed_reward(patch: pytest.MonkeyPatch) -> None:
    changed_turn(patch, lambda turn: replace(turn, terms={**turn.terms, "cost": -0.2}, reward=None))


def changed_credit(patch: pytest.MonkeyPatch) -> None:
    before = credit_assignment.discounted
    patch.setattr(credit_assignment, "discounted", lambda rewards, decay: before(rewards, decay / 2))


def changed_estimator(patch: pytest.MonkeyPatch) -> None:
    before = turn_grpo.mean_baseline
    patch.setattr(turn_grpo, "mean_baseline", lambda *args: before(*args) + 1e-9)


def changed_loss(patch: pytest.MonkeyPatch) -> None:
    before = ppo.weighed
    patch.setattr(ppo, "weighed", lambda loss, *rest, **stats: before(1.25 * loss, *rest, **stats))


def changed_gradient(patch: pytest.MonkeyPatch) -> None:
    def step(self: Any, what: str) -> dict[str, float]:
        next(iter(self.names.values())).grad.mul_(1.5)
        return before(self, what)

    before = Optimizer.step
    patch.setattr(Optimizer, "step", step)


@pytest.mark.parametrize(
    ("plant", "stage", "what"),
    [
        (changed_message, "environment", "the message"),
        (changed_reward, "reward", "the term 'cost'"),
        (changed_credit, "credit", "the turn's reward"),
        (changed_estimator, "advantage", "baseline"),
        pytest.param(changed_loss, "loss", "loss", marks=pytest.mark.slow),  # of the same replayed update as the next
        (changed_gradient, "gradient", "actor/grad_norm"),
    ],
)
def test_changed_line_is_located(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], stage: str, what: str
) -> None:
    plant(monkeypatch)
    report = again(folder, 3 if stage in ("loss", "gradient") else 2)
    first = report.first
    assert first is not None
    assert first.stage == stage, "\n".join(report.lines())
    assert what in first.what
    assert first.expected != first.got
    episodes = {trajectory.episode_id: trajectory for trajectory in read_parquet(open_run(folder).iteration(3).path)}
    if stage in ("loss", "gradient"):
        assert first.step == 0
    if stage == "loss":
        assert first.episode is not None
        episode = episodes[first.episode]
        assert episode.turn_id[first.token] == first.turn
        assert first.got == pytest.approx(1.25 * first.expected, rel=0.05)
    if stage in ("environment", "reward", "credit"):
        assert first.turn is not None
    assert list(report.differences)[:1] == [stage] or stage == "gradient"


def test_inexact_learner_reports_greatest_difference(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On several ranks, or on a GPU, numbers are not exact."""
    monkeypatch.setattr(replaying, "is_exact", lambda config: False)
    report = again(folder)
    assert report.first is None, "\n".join(report.lines())
    near = "4 optimizer steps: the same within 0.001 (at most apart: "
    assert report.notes["log-probability"].startswith(f"{near}learner_logprobs ")
    assert report.notes["gradient"] == f"{near}actor/grad_norm 0)"
    monkeypatch.setattr(EngineSection, "base_urls", property(lambda _: ("http://there",)))
    changed_loss(monkeypatch)
    report = again(folder)
    assert report.notes["sampling"].startswith("left out: http://there may serve others")
    assert report.first is not None
    assert (report.first.stage, report.first.step) == ("loss", 0)


def test_mixture_groups_replay_in_their_component(tmp_path: Path) -> None:
    bytes_, parts = "program_envs:tests/bytes", ("two", "three")
    mixture = [f"env.mixture.{name}.id={bytes_}" for name in parts] + ["env.mixture.three.kwargs.tasks=3"]
    in_process(tmp_path, *SAVED, "trainer.total_iterations=1", "env.id=textenv/gsm8k-interact", *mixture)
    iteration = open_run(tmp_path).iteration(1)
    assert {*iteration.info["components"].values()} == {*parts}
    assert environment_of({}, iteration.info, "g0")[0] == bytes_
    report = again(tmp_path, 1)
    assert report.first is None, "\n".join(report.lines())
    assert report.notes["environment"] == "6 episodes: the same"


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "run")
    return tmp_path / "run"


def rewritten(folder: Path, iteration: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change columns of a file of episodes, as lists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = open_run(folder).iteration(iteration).path
    table = pq.read_table(path)
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    change(columns)
    pq.write_table(pa.table(columns, schema=table.schema), path)


def test_changed_token_is_located_in_sampling(copied: Path) -> None:
    where: list[int] = []

    def change(columns: dict[str, Any]) -> None:
        last = max(n for n, sampled in enumerate(columns["action_mask"][2]) if sampled)
        columns["token_ids"][2][last] = (columns["token_ids"][2][last] + 1) % 256
        where.append(last)

    rewritten(copied, 3, change)
    difference = again(copied).differences["sampling"]
    assert (difference.what, difference.token) == ("the sampled token", where[0])


def test_learner_checksums_are_compared(copied: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["checksums"][0] = [(n, v + (n == "learner_logprobs")) for n, v in columns["checksums"][0]]

    rewritten(copied, 3, change)
    first = again(copied).first
    assert first is not None
    assert (first.stage, first.token) == ("log-probability", None)
    assert "digits that the file does not keep" in first.what


def test_single_group_is_compared_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = read_parquet(open_run(folder).iteration(3).path)
    group = episodes[-1].group_id
    report = again(folder, 3, group)
    assert report.notes["environment"] == "2 episodes: the same"
    assert main([str(folder), "--iteration", "3", "--group", "g99"]) == 1
    output = capsys.readouterr().err
    assert "has no group g99" in output
    assert group in output
    changed_reward(monkeypatch)
    assert main([str(folder), "--iteration", "2"]) == 1
    output = capsys.readouterr().out
    assert "reward           DIFFERS" in output
    assert "first difference: reward, episode" in output


def test_missing_iteration_names_existing_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "--iteration", "9"]) == 1
    assert "has no episodes of train 9; those that are there: 1, 2, 3" in capsys.readouterr().err


def test_forks_are_played_after_their_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(tmp_path, *SAVED, *FORKED)
    episodes = read_parquet(open_run(tmp_path).iteration(1).path)
    report = again(tmp_path, 1)
    assert any(episode.forked_from for episode in episodes)
    assert report.notes["environment"] == f"{len(episodes)} episodes: the same"
    assert report.first is None, "\n".join(report.lines())
    values = [record.fork_value for record in open_run(tmp_path).iteration(1).episodes()]
    assert np.isfinite(np.concatenate([value for value in values if value is not None])).any()
    changed_reward(monkeypatch)
    assert again(tmp_path, 1).first is not None
