"""Contents of a run's folder for its reader: configuration, conversations, and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ppo_runs import MODEL, QUICK, arguments, in_process, main, refused

from trainers import make
from trainers.checkpoints import Checkpoints, changes
from trainers.command_line import render, resolve
from trainers.models import tiny

ONE = ("trainer.total_iterations=1", "algorithm.adv_estimator=rloo")


def given_model(folder: Path) -> str:
    tokenizer = tiny.build_tokenizer(["a b"])
    tiny.save(folder, tiny.build_model(len(tokenizer), hidden=16, layers=1), tokenizer)
    return str(folder)


def of_a_given_model(tmp_path: Path, *overrides: str) -> list[str]:
    return [*without_model(tmp_path / "run"), f"model.path={given_model(tmp_path / 'model')}", *overrides]


def without_model(folder: Path) -> list[str]:
    """Return a run's arguments without those that make a model."""
    argv = arguments(folder, *QUICK, *ONE)
    return [argument for argument in argv if argument not in MODEL and not argument.startswith("warm_start.")]


def test_saved_configuration_and_validation_conversations_read_back(tmp_path):
    options = ("env.id=textenv/gsm8k-interact", "warm_start.enable=true", "trainer.val_before_train=true")
    run = in_process(tmp_path, *ONE, *options)
    again, _ = resolve(["--config", str(tmp_path / "config.yaml")])
    assert again == run.config
    assert render(again) == (tmp_path / "config.yaml").read_text()
    files = sorted((tmp_path / "conversations").iterdir())
    assert [path.name for path in files] == ["000000.txt", "000001.txt"]
    text = files[1].read_text()
    for words in ("validation, iteration 1, 1/", "user: ", "reward"):
        assert words in text


def checkpoints_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("*"))


def test_given_model_is_not_copied(tmp_path, monkeypatch):
    """Nothing is saved before something was learned, except where the model was made or warmed up here."""
    saved: list[int] = []
    save = Checkpoints.save

    def noted(self: Checkpoints, iteration: int, *rest: Any) -> Path:
        saved.append(iteration)
        return save(self, iteration, *rest)

    monkeypatch.setattr(Checkpoints, "save", noted)
    assert main(of_a_given_model(tmp_path)) == 0
    assert saved == [1]
    in_process(tmp_path / "made", *ONE)
    assert saved == [1, 0, 1]


def test_untrained_given_model_has_no_result(tmp_path, monkeypatch):
    """Stopped before the first iteration ended: there is no checkpoint, and that is no error."""
    import trainers.ppo

    async def nothing(work: Any, stop: Any, beside: Any) -> None:
        work.close()
        stop.set()

    monkeypatch.setattr(trainers.ppo, "until_stopped", nothing)
    with make("ppo", of_a_given_model(tmp_path)) as trainer:
        result = trainer.fit()
    assert (result.iterations, result.model, result.checkpoint) == (0, None, None)
    assert checkpoints_of(tmp_path / "run") == []


@pytest.mark.parametrize("background", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_weights_only_checkpoint_is_only_a_model(tmp_path, capsys, background):
    alone = ("trainer.save_weights_only=true", f"trainer.async_save={background}", "trainer.save_freq=1")
    run = in_process(tmp_path, *ONE, *alone)
    (checkpoint,) = list((tmp_path / "checkpoints").glob("*1"))
    assert sorted(path.name for path in checkpoint.iterdir()) == ["model", "state.json"]
    argv = arguments(tmp_path, *QUICK, *ONE, *alone, "trainer.total_iterations=2")
    refused(capsys, argv, "has the model alone (trainer.save_weights_only)", f"model.path={checkpoint}/model")
    # It can be looked at, and it can be where another run begins.
    assert main([*argv, "trainer.val_only=true"]) == 0
    assert main([*without_model(tmp_path / "other"), f"model.path={checkpoint}/model"]) == 0
    assert run.iteration == 1


def test_resumed_run_reports_changed_keys(tmp_path, capsys):
    in_process(tmp_path, *ONE, "actor.lr=0.001")
    argv = arguments(tmp_path, *QUICK, *ONE, "actor.lr=0.002", "rollout.n=3", "trainer.total_iterations=2")
    assert main([*argv, "trainer.logger=console"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for change in ("actor.lr: 0.001 -> 0.002", "rollout.n: 2 -> 3", "trainer.total_iterations: 1 -> 2"):
        assert f"the configuration differs from the checkpoint's: {change}" in output
    assert "rollout.temperature:" not in output
    assert resolve(["--config", str(tmp_path / "config.yaml")])[0].actor.lr == 0.002


def test_changes_are_keys_that_both_have():
    before = resolve(["env.kwargs.level=easy", "rollout.n=4"])[0].model_dump(mode="json")
    now = resolve(["env.kwargs={level: easy, max_assistant_turns: 3}", "actor.lr=0.5"])[0].model_dump(mode="json")
    del before["actor"]["lr"]  # as if an older version had not had it
    before["actor"]["gone"] = 1
    assert list(changes(before, now)) == [
        "env.kwargs: {level: easy} -> {level: easy, max_assistant_turns: 3}",
        "rollout.n: 4 -> 8",
    ]
    assert list(changes(now, now)) == []
