"""The trainer `ppo` by its name."""

from functools import partial

import pytest
from ppo_runs import MODEL, QUICK, SMALL, WARM, check_trainer

import trainers
from trainers.__main__ import main
from trainers.command_line import resolve

USUAL = [*MODEL, *WARM, *SMALL, *QUICK, "algorithm.adv_estimator=turn_grpo", "trainer.total_iterations=2"]


def test_named_trainer_trains_evaluates_and_resumes(tmp_path):
    check_trainer(partial(trainers.make, "ppo"), USUAL, tmp_path)


async def test_ppo_runs_inside_running_event_loop(tmp_path):
    config = resolve([*USUAL, f"trainer.default_local_dir={tmp_path}", "trainer.total_iterations=1"])[0]
    assert trainers.make("ppo", config).fit().iterations == 1


@pytest.mark.slow  # test_ppo_resuming.py validates alone from a checkpoint, and keeps the metrics
def test_validation_alone_trains_nothing(tmp_path, capsys):
    def only(folder, *overrides):
        return [*USUAL, f"trainer.default_local_dir={tmp_path}/{folder}", "trainer.val_only=true", *overrides]

    assert main(["ppo", *only("new")]) == 0
    assert "val/reward" in (output := capsys.readouterr().out)
    assert "model:" not in output
    assert not (tmp_path / "new/checkpoints").exists()
    trained = trainers.make("ppo", [*USUAL, f"trainer.default_local_dir={tmp_path}/trained"]).fit()
    resuming = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={trained.checkpoint}"]
    for arguments in (only("elsewhere", *resuming), only("trained", "trainer.total_iterations=9")):
        result = trainers.make("ppo", arguments).fit()
        assert (result.iterations, result.model, result.checkpoint) == (2, trained.model, trained.checkpoint)
        assert result.metrics["val/reward"] == pytest.approx(trained.metrics["val/reward"], abs=1e-6)
        assert "train/reward" not in result.metrics
    afresh = trainers.make("ppo", only("trained", "trainer.resume_mode=disable")).fit()
    assert (afresh.iterations, afresh.model, afresh.checkpoint) == (0, None, None)
