"""Where a run writes, and the checkpoint in there that it goes on from."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints import Checkpoint, CheckpointError, Checkpoints, load
from ..config.running import RunSection, TrainerSection


def run_folder(section: RunSection) -> Path:
    """Where the run writes."""
    if section.default_local_dir is not None:
        return Path(section.default_local_dir).expanduser()
    return Path("outputs") / section.project_name / section.experiment_name


def checkpoint_to_resume(section: TrainerSection, saved: Checkpoints) -> Checkpoint | None:
    """The checkpoint that the run goes on from, if any.

    Raises:
        CheckpointError: The one that was asked for cannot be used.
    """
    if section.resume_mode == "disable":
        return None
    if section.resume_mode == "resume_path":
        if section.resume_from_path is None:
            raise CheckpointError("trainer.resume_mode=resume_path needs trainer.resume_from_path")
        return load(Path(section.resume_from_path).expanduser())
    return saved.newest()
