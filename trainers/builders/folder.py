"""The run's folder, its lock, its files, and the checkpoint that the run resumes from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from textenvs.evaluate.records import lock

from ..checkpoints import Checkpoint, CheckpointError, Checkpoints, load
from ..command_line.load import render
from ..config.base import RunConfig
from ..config.running import RunSection, TrainerSection
from ..config.schema import PPOConfig, SFTConfig
from ..report.episodes import EpisodeFiles, Pieces
from ..report.loggers import METRICS_FILE, LoggedRun
from . import SetupError
from .environments import recorded_environments

LOCK_FILE = ".lock"
START = "start"  #: folder of the initial model for several ranks, if no other folder has it
CONFIG_FILE = "config.yaml"
_ELSEWHERE = "give this run a folder of its own (trainer.experiment_name=NAME, or another trainer.default_local_dir)"


def run_folder(section: RunSection) -> Path:
    if section.default_local_dir is not None:
        return Path(section.default_local_dir).expanduser()
    return Path("outputs") / section.project_name / section.experiment_name


def logged_run(config: PPOConfig | SFTConfig, folder: Path, first_step: int | None = 0) -> LoggedRun:
    section = config.trainer
    return LoggedRun(folder, section.project_name, section.experiment_name, config.model_dump(mode="json"), first_step)


def episode_files(config: PPOConfig, folder: Path, tokenizer: Any) -> EpisodeFiles:
    """Return the writer of the run's episodes; a validation alone leaves the run's folder unchanged."""
    section = config.trainer
    elsewhere = {name: getattr(section, name) for name in ("rollout_data_dir", "validation_data_dir")}
    keep = 0 if section.val_only else section.keep_rollouts
    return EpisodeFiles(folder, Pieces(tokenizer), keep, elsewhere, recorded_environments(config))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs, if the file system has locks. Create it if needed, and test writing."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a file system without locks
                try:
                    lock(descriptor)
                except BlockingIOError:
                    text = "another run is writing into this folder; wait for it, or"
                    raise SetupError(f"{folder}: {text} {_ELSEWHERE}") from None
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            os.fsync(descriptor)  # some disks report only here that they are full
        except OSError as error:
            text = f"the run's folder cannot be written ({error.strerror or error})"
            raise SetupError(f"{folder}: {text}; {_ELSEWHERE}") from error
        yield


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the resolved configuration into the run's folder; ``--config`` reads it back."""
    (folder / CONFIG_FILE).write_text(render(config), encoding="utf-8")


def refuse_ppo_folder(folder: Path) -> None:
    """Raise ``SetupError`` if a supervised run would truncate the metrics of a run with checkpoints."""
    if checkpoints := [*(folder / "checkpoints").glob("iteration_*"), *folder.glob("checkpoint-*")]:
        raise SetupError(
            f"{folder} is the folder of another kind of run ({checkpoints[0].name} is its checkpoint): {_ELSEWHERE}"
        )


def refuse_sft_folder(folder: Path) -> None:
    """Raise ``SetupError`` if a run would truncate the metrics of a supervised run, recognized by its metrics."""
    metrics = folder / METRICS_FILE
    if not metrics.is_file() or any((folder / "checkpoints").glob("iteration_*")):
        return
    with metrics.open(encoding="utf-8", errors="replace") as file:
        if '"sft/' in file.readline():
            raise SetupError(
                f"{folder} is the folder of a supervised run ({METRICS_FILE} has its losses): {_ELSEWHERE}"
            )


def checkpoint_to_resume(section: TrainerSection, saved: Checkpoints) -> Checkpoint | None:
    """Return the checkpoint that the run resumes from, if any; CheckpointError if it cannot be used.

    Raises SetupError if it is of another folder, and this one has checkpoints, which the run would replace.
    """
    if section.resume_mode != "resume_path":
        return saved.newest() if section.resume_mode == "auto" else None
    if section.resume_from_path is None:
        raise CheckpointError("trainer.resume_mode=resume_path needs trainer.resume_from_path")
    checkpoint, newest = load(Path(section.resume_from_path).expanduser()), saved.newest_path()
    elsewhere = checkpoint.path.resolve().parent != saved.folder.resolve()
    if newest is not None and elsewhere and not section.val_only:  # val_only saves nothing
        raise SetupError(would_replace(saved.folder, newest, checkpoint.path))
    return checkpoint


def would_replace(folder: Path, newest: Path, source: Path) -> str:
    """Return the error of a run that resumes from ``source``, of another folder, though this one has ``newest``."""
    return (
        f"{folder} has checkpoints of its own (up to {newest.name}), which a run that resumes from {source} would "
        f"replace: resume from them with trainer.resume_mode=auto, or {_ELSEWHERE}"
    )


def resume_advice(section: TrainerSection) -> str:
    """Return how to continue a run that ends early."""
    if not list((run_folder(section) / "checkpoints").glob("iteration_*")):
        return "start the same command again; it has no checkpoint yet"
    if section.resume_mode == "auto":
        return "start the same command again; it resumes from the last intact checkpoint"
    return (
        "start it again with trainer.resume_mode=auto; it resumes from the last intact checkpoint (with "
        f"trainer.resume_mode={section.resume_mode} it would not)"
    )
