"""Ownership of a run's folder: one run at a time writes there, and all its files are of that run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ppo_runs import MODEL, QUICK, arguments, in_process, refused

from trainers import sft
from trainers.builders import SetupError
from trainers.builders.folder import LOCK_FILE, held, resume_advice
from trainers.checkpoints import Checkpoints
from trainers.command_line import resolve
from trainers.config.running import TrainerSection
from trainers.config.schema import SFTConfig

SFT = [*MODEL, "sft.demonstrations=8", "sft.steps=2", "sft.batch_size=2", "sft.max_context=256", "trainer.logger=jsonl"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_second_run_in_folder_is_refused(tmp_path, capsys):
    (tmp_path / "checkpoints/.iteration_000001.partial").mkdir(parents=True)  # as if it were saving
    (tmp_path / "metrics.jsonl").write_text('{"step": 3}\n')
    before = contents(tmp_path)
    with held(tmp_path):
        message = refused(capsys, arguments(tmp_path, *QUICK, "trainer.resume_mode=disable"))
        assert sft.main([*SFT, f"trainer.default_local_dir={tmp_path}"]) == 1
        for output in (message, capsys.readouterr().err):
            assert f"{tmp_path}: another run is writing into this folder" in output
            assert "trainer.experiment_name=" in output
    assert contents(tmp_path) == before
    assert (tmp_path / "checkpoints/.iteration_000001.partial").is_dir()


def test_run_holds_its_folder_to_its_end(tmp_path):
    def look(run):
        with pytest.raises(SetupError, match="another run"), held(run.folder):
            pass

    in_process(tmp_path, "trainer.total_iterations=1", look=look)
    with held(tmp_path):
        pass


@pytest.mark.parametrize(
    ("mode", "words"), [("auto", "start the same command again; it resumes"), ("disable", "trainer.resume_mode=auto;")]
)
def test_full_disk_advice_matches_resume_mode(tmp_path, mode, words):
    trainer = TrainerSection(default_local_dir=str(tmp_path), resume_mode=mode)
    assert resume_advice(trainer) == "start the same command again; it has no checkpoint yet"
    Checkpoints(tmp_path / "checkpoints", 2).save(3, {})
    assert words in resume_advice(trainer)


def test_killed_process_releases_its_folder(tmp_path):
    # The lock alone: importing what a run needs takes seconds.
    code = "import sys; from textenvs.evaluate.records import lock; file = open(sys.argv[1], 'w'); lock(file.fileno());"
    code += "print('held', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / LOCK_FILE], **pipes) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(SetupError, match="another run"), held(tmp_path):
            pass
        process.kill()
        process.wait()
    with held(tmp_path):
        pass


def test_file_system_without_locks_goes_without(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("trainers.builders.folder.lock", none)
    with held(tmp_path), held(tmp_path):
        pass


def test_sft_and_ppo_refuse_each_others_folders(tmp_path, capsys):
    assert resolve([])[0].trainer.experiment_name != resolve([], schema=SFTConfig)[0].trainer.experiment_name
    supervised, ppo = tmp_path / "sft", tmp_path / "ppo"
    assert sft.main([*SFT, f"trainer.default_local_dir={supervised}"]) == 0
    in_process(ppo, "trainer.total_iterations=1")
    before = contents(tmp_path)
    refused(capsys, arguments(supervised, *QUICK), "is the folder of a supervised run", "trainer.experiment_name=")
    assert sft.main([*SFT, f"trainer.default_local_dir={ppo}"]) == 1
    assert "is the folder of another kind of run" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_uncreatable_folder_is_refused(tmp_path, capsys, where):
    (tmp_path / "file").write_text("mine")
    refused(capsys, arguments(tmp_path / where, *QUICK), str(tmp_path / where), "the run's folder cannot be written")
    assert sft.main([*SFT, f"trainer.default_local_dir={tmp_path / where}"]) == 1
    assert "the run's folder cannot be written" in capsys.readouterr().err
