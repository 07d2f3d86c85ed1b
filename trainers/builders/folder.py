"""Where a run writes, whose that folder is, and the checkpoint in there that the run resumes from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from textenvs.evaluate.records import lock

from ..checkpoints import Checkpoint, CheckpointError, Checkpoints, load
from ..config.base import RunConfig
from ..config.load import render
from ..config.running import RunSection, TrainerSection
from ..config.schema import PPOConfig, SFTConfig
from ..report.episodes import EpisodeFiles, Pieces
from ..report.loggers import METRICS_FILE, LoggedRun
from . import SetupError
from .environments import recorded_environments

LOCK_FILE = ".lock"
START = "start"  #: the model that several ranks begin with, where no other folder has it
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
    """Where the run's episodes are written; a validation alone leaves the run's folder as it is."""
    section = config.trainer
    elsewhere = {name: getattr(section, name) for name in ("rollout_data_dir", "validation_data_dir")}
    keep = 0 if section.val_only else section.keep_rollouts
    return EpisodeFiles(folder, Pieces(tokenizer), keep, elsewhere, recorded_environments(config))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder, where the file system has locks. It is made if need be, and tried."""
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
            os.fsync(descriptor)  # some disks say only now that they are full
        except OSError as error:
            text = f"the run's folder cannot be written ({error.strerror or error})"
            raise SetupError(f"{folder}: {text}; {_ELSEWHERE}") from error
        yield


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the resolved configuration into the run's folder; ``--config`` reads it back."""
    (folder / CONFIG_FILE).write_text(render(config), encoding="utf-8")


def refuse_ppo_folder(folder: Path) -> None:
    """Raise ``SetupError`` where a supervised run would cut the metrics of a run with checkpoints."""
    if found := [*(folder / "checkpoints").glob("iteration_*"), *folder.glob("checkpoint-*")]:
        raise SetupError(
            f"{folder} is the folder of another kind of run ({found[0].name} is its checkpoint): {_ELSEWHERE}"
        )


def refuse_sft_folder(folder: Path) -> None:
    """Raise ``SetupError`` where a run would cut the metrics of a supervised one: what that logged tells it."""
    metrics = folder / METRICS_FILE
    if not metrics.is_file() or any((folder / "checkpoints").glob("iteration_*")):
        return
    with metrics.open(encoding="utf-8", errors="replace") as file:
        if '"sft/' in file.readline():
            raise SetupError(
                f"{folder} is the folder of a supervised run ({METRICS_FILE} has its losses): {_ELSEWHERE}"
            )


def checkpoint_to_resume(section: TrainerSection, saved: Checkpoints) -> Checkpoint | None:
    """The checkpoint that the run resumes from, if any; CheckpointError where it cannot be used.

    SetupError: it is of another folder, and this one has checkpoints, which the run would replace by its own.
    """
    if section.resume_mode != "resume_path":
        return saved.newest() if section.resume_mode == "auto" else None
    if section.resume_from_path is None:
        raise CheckpointError("trainer.resume_mode=resume_path needs trainer.resume_from_path")
    given, mine = load(Path(section.resume_from_path).expanduser()), saved.newest_path()
    elsewhere = given.path.resolve().parent != saved.folder.resolve()
    if mine is not None and elsewhere and not section.val_only:  # which saves nothing
        raise SetupError(would_replace(saved.folder, mine, given.path))
    return given


def would_replace(folder: Path, newest: Path, given: Path) -> str:
    """What to say of a run that would resume from ``given``, of another folder, where there is ``newest`` already."""
    return (
        f"{folder} has checkpoints of its own (up to {newest.name}), which a run that resumes from {given} would "
        f"replace: resume from them with trainer.resume_mode=auto, or {_ELSEWHERE}"
    )
