"""Errors of a run: their messages, and what they leave."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace

import pytest
from ppo_runs import QUICK, arguments, finite, in_process, refused, training_of
from safetensors import SafetensorError
from transformers import PreTrainedModel

from trainers import checkpoints
from trainers.algorithms.batch import TermsError
from trainers.builders.environments import other_validation
from trainers.command_line import resolve
from trainers.engines.base import EngineDeadError
from trainers.ppo import warn

ROW = {"question": "2 + 2?", "answer": "4\n#### 4"}


def test_train_files_alone_report_validation_tasks(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    assert "not on rows of data.train_files" in other_validation(resolve([f"data.train_files={path}"])[0])[0]
    assert not other_validation(resolve([f"data.train_files={path}", f"data.val_files={path}"])[0])


def test_unavailable_learner_is_refused_before_training(tmp_path, capsys):
    overrides = ["model.attn_implementation=flash_atention_2"]
    refused(capsys, arguments(tmp_path, *QUICK, *overrides), "the learner:", "flash_atention_2")


def test_foreign_checkpoint_is_refused_without_loss(tmp_path, capsys):
    in_process(tmp_path, "trainer.total_iterations=2")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*") if path.is_file()}
    assert {"metrics.jsonl", "config.yaml"} <= {path.name for path in before}
    quick = arguments(tmp_path, *QUICK, "trainer.total_iterations=4")
    refused(capsys, [*quick, "trainer.seed=1"], "trainer.seed was 0 and is now 1", "trainer.resume_mode=disable")
    newest = checkpoints.Checkpoints(tmp_path / "checkpoints", 2).newest().path
    (newest / "state.json").write_text("{")
    back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={newest}"]
    refused(capsys, [*quick, *back], "state.json cannot be read")
    back = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}"]
    refused(capsys, [*quick, *back], "is not a checkpoint")
    assert before == {path: path.read_bytes() for path in before}


def test_full_disk_during_model_write_is_reported(tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    refused(capsys, arguments(tmp_path, *QUICK), "[Errno 28]", "make room and start the same command again")


def test_unwritable_folder_is_reported(tmp_path, capsys, monkeypatch):
    def denied(run):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "checkpoints"))

    monkeypatch.setattr("trainers.ppo.save", denied)
    refused(capsys, arguments(tmp_path, *QUICK), "Permission denied", "see to it that the run's folder can be written")


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("state", "gone", "cut", "export"))]
)
def test_damaged_newest_checkpoint_resumes_from_previous(tmp_path, capsys, caplog, damage):
    in_process(tmp_path, "trainer.total_iterations=2", "trainer.save_freq=1")
    before, newest = sorted((tmp_path / "checkpoints").iterdir())
    (file,) = (newest / "learner" / "tensors").glob("*.safetensors")
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "flipped":
        content = bytearray(file.read_bytes())
        content[-2] ^= 0x40
        file.write_bytes(content)
    elif damage == "export":
        file = newest / "model" / "tokenizer.json"
        file.write_text(file.read_text().replace("9", "8"))
    else:
        file = newest / "state.json"
        file.write_text("{}")
    caplog.clear()
    in_process(tmp_path, "trainer.total_iterations=3", "trainer.save_freq=1")
    (message,) = [record.getMessage() for record in caplog.records if "instead" in record.getMessage()]
    assert message.startswith(str(file))
    assert message.endswith("using iteration_000001 instead")
    assert [row["step"] for row in training_of(tmp_path)] == [1, 2, 3]
    for path in (tmp_path / "checkpoints").iterdir():
        (path / "learner" / "learner.json").unlink()
    refused(capsys, arguments(tmp_path, *QUICK), "no checkpoint in", "learner.json is missing", "resume_mode=disable")


def test_damaged_metrics_are_named_first(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step"\n{"step": 1}\n')
    refused(capsys, arguments(tmp_path, *QUICK), "metrics.jsonl, line 2: not a line of metrics", "move the file away")


def test_constant_rewards_stop_filtered_run(tmp_path, capsys):
    overrides = ["env.kwargs.constant=true", "rollout.filter_zero_variance=true", "rollout.max_consecutive_filtered=3"]
    refused(
        capsys,
        arguments(tmp_path, *QUICK, *overrides),
        *("error: 4 groups in a row had no difference in reward", "Change the difficulty"),
    )


def test_constant_rewards_do_not_stop_unfiltered_run(tmp_path):
    """With nothing to learn from, a step changes the policy by its entropy bonus alone, and no number breaks."""
    overrides = ["env.kwargs.constant=true", "algorithm.adv_estimator=grpo", "trainer.total_iterations=1"]
    in_process(tmp_path, *overrides, "actor.entropy_coeff=0")
    (row,) = training_of(tmp_path)
    assert finite(row)
    assert row["actor/grad_norm"] == row["actor/advantage_abs_max"] == 0.0


def test_breaking_environment_stops_run_with_cause(tmp_path, capsys):
    overrides = ["env.kwargs.broken=true", "rollout.max_consecutive_errors=3", "trainer.total_iterations=1"]
    refused(capsys, arguments(tmp_path, *QUICK, *overrides), "3 episodes in a row", "error_env", "the database is gone")


def test_unscored_validation_fails_with_reason(tmp_path, capsys, caplog):
    overrides = ["env.val_kwargs.broken=true", "trainer.val_only=true"]
    refused(
        capsys, arguments(tmp_path, *QUICK, *overrides), "error: 3 of 3 validation episodes", "the database is gone"
    )
    assert "3 of 3 validation episodes could not be scored: error_env: " in caplog.text


def test_retried_episodes_are_reported_as_share(tmp_path):
    """The reward function fails for the first episode that asks."""
    (tmp_path / "reward.py").write_text(
        "seen = []\ndef compute_score(**row):\n    seen.append(1)\n    return 1.0 / (len(seen) - 1)\n"
    )
    overrides = [f"custom_reward_function.path={tmp_path}/reward.py", "custom_reward_function.workers=1"]
    in_process(tmp_path, *overrides, "trainer.total_iterations=2")
    first, second = training_of(tmp_path)
    assert first["train/episodes"] == second["train/episodes"] == 4
    assert first["train/left_out"] == first["train/status/error_reward"] == pytest.approx(1 / 5)
    assert second["train/left_out"] == 0


def test_lost_engine_keeps_learned_weights(tmp_path):
    def dies(run):
        take = run.collector.next_batch

        async def next_batch():
            if run.iteration == 2:
                raise EngineDeadError("its process ended")
            return await take()

        run.collector.next_batch = next_batch

    with pytest.raises(EngineDeadError, match="its process ended"):
        in_process(tmp_path, "trainer.total_iterations=3", "trainer.save_freq=-1", look=dies)
    assert checkpoints.Checkpoints(tmp_path / "checkpoints", 2).newest().iteration == 2
    in_process(tmp_path, "trainer.total_iterations=3", "trainer.save_freq=-1")
    assert [row["step"] for row in training_of(tmp_path)] == [1, 2, 3]


# Both reach the same handler.
@pytest.mark.parametrize("error", [FloatingPointError, pytest.param(TermsError, marks=pytest.mark.slow)])
def test_failing_batch_keeps_learned_weights(tmp_path, error):
    def fails(run):
        update = run.learner.update_actor

        def update_actor(*args, **kwargs):
            if run.iteration == 2:
                raise error("the gradient's norm is nan")
            return update(*args, **kwargs)

        run.learner.update_actor = update_actor

    overrides = ["trainer.total_iterations=3", "trainer.save_freq=-1"]
    with pytest.raises(error, match="norm is nan"):
        in_process(tmp_path, *overrides, look=fails)
    assert checkpoints.Checkpoints(tmp_path / "checkpoints", 2).newest().iteration == 2
    run = in_process(tmp_path, *overrides)
    assert [row["step"] for row in training_of(tmp_path)] == [1, 2, 3]
    assert run.collector.frontier()["slots"]["batches"] == 4, "the batch that failed is not played again"


def test_environment_error_is_excerpted_and_printable(caplog):
    """A ground truth of 10 MB in a message, and escapes of a terminal."""
    run = SimpleNamespace(warned=set())
    batch = SimpleNamespace(problems={"step_raised": "KeyError: \x1b[2J\x1b]0;title\x07" + "9" * 10**7})
    warn(run, batch)
    warn(run, batch)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("an episode ended as step_raised: KeyError: \\x1b[2J")
    assert "\x1b" not in message
    assert "\x07" not in message
    assert len(message) < 6000
