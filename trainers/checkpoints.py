"""A run's checkpoints: folders that are there whole or not at all.

``checkpoints/iteration_000050/`` holds ``state.json`` (where the run stands) and whatever its writers put beside it. It
is written under another name, synced and renamed; one that is to go is renamed before it is deleted. So a kill at any
moment leaves the last good one, and never half a one. Names that start with a dot are no checkpoints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .learner.checkpoint import Background

_NAME = re.compile(r"iteration_(\d{6,})")
_STATE = "state.json"


class CheckpointError(ValueError):
    """A checkpoint is missing or cannot be used; the message says which and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint.

    Args:
        path: Its folder.
        iteration: Iterations done.
        state: What was given to :meth:`Checkpoints.save`.
    """

    path: Path
    iteration: int
    state: Mapping[str, Any]


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: Made when the first one is saved.
        keep: So many of the newest stay.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = folder
        self.keep = keep
        self._background = Background()

    def save(self, iteration: int, state: Mapping[str, Any], *writers: Callable[[Path], None]) -> Path:
        """Write a checkpoint, then delete the oldest beyond ``keep``.

        Those of later iterations are deleted as well: an earlier run left them in this folder, or this run has gone
        back. If they stayed, they would be taken for the newest.

        Args:
            iteration: Iterations done.
            state: JSON.
            writers: Each is called with the folder and writes its own part.

        Returns:
            The checkpoint's folder.
        """
        final = self.folder / f"iteration_{iteration:06d}"
        partial = self.folder / f".{final.name}.partial"
        previous = self.folder / f".{final.name}.previous"
        self._finish_replacing()
        for leftover in self.folder.glob(".iteration_*"):  # of a process that was killed
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        for write in writers:
            write(partial)
        (partial / _STATE).write_text(json.dumps(dict(state), indent=1), encoding="utf-8")
        _sync(partial)
        if final.exists():  # left by a run that was started afresh in the same folder
            final.rename(previous)
        partial.rename(final)
        _sync_folder(self.folder)
        if previous.exists():
            shutil.rmtree(previous)
        found = self._all()
        kept = [path for number, path in found if number <= iteration][-self.keep :]
        for _, path in found:
            if path not in kept:
                _delete(path)
        return final

    def save_in_background(self, iteration: int, state: Mapping[str, Any], *writers: Callable[[Path], None]) -> None:
        """As :meth:`save`, in a thread; returns at once, or when the save before this one is done.

        Args:
            iteration: Iterations done.
            state: JSON, as it is now.
            writers: What they write must not change any more.

        Raises:
            Exception: What went wrong in the save before this one; this one is not started.
        """
        state = json.loads(json.dumps(dict(state)))  # as it is now
        self._background.start(lambda: self.save(iteration, state, *writers), "checkpoint")

    def amend(self, iteration: int, more: Mapping[str, Any]) -> None:
        """Put more into the state of a checkpoint, if it is there; its file is replaced in one go."""
        path = self.folder / f"iteration_{iteration:06d}" / _STATE
        if not path.is_file():
            return
        state = json.loads(path.read_text(encoding="utf-8")) | dict(more)
        fresh = path.with_name(f".{_STATE}.new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(state, indent=1))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def wait(self) -> None:
        """Until a save in the background is done.

        Raises:
            Exception: What went wrong in it; once.
        """
        self._background.wait()

    def newest(self) -> Checkpoint | None:
        """The newest complete checkpoint, or ``None``.

        Raises:
            CheckpointError: Its state is damaged.
        """
        self._finish_replacing()
        found = self._all()
        return load(found[-1][1]) if found else None

    def _finish_replacing(self) -> None:
        """Put back what :meth:`save` had moved aside when it was killed between its two renames."""
        for aside in self.folder.glob(".iteration_*.previous"):
            original = aside.with_name(aside.name.removeprefix(".").removesuffix(".previous"))
            if not original.exists():
                aside.rename(original)

    def _all(self) -> list[tuple[int, Path]]:
        if not self.folder.is_dir():
            return []
        matches = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match and (path / _STATE).is_file())


def load(path: Path) -> Checkpoint:
    """Read the state of one checkpoint.

    Raises:
        CheckpointError: It is not a checkpoint, or its state is damaged.
    """
    match = _NAME.fullmatch(path.name)
    if match is None or not (path / _STATE).is_file():
        raise CheckpointError(
            f"{path} is not a checkpoint: expected a folder named iteration_NNNNNN with a {_STATE} in it"
        )
    try:
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
        if not isinstance(state, dict):
            raise ValueError(f"a {type(state).__name__}, not an object")
    except ValueError as error:
        raise CheckpointError(
            f"{path / _STATE} cannot be read ({error}); move {path.name} away to go on from the checkpoint before it"
        ) from error
    return Checkpoint(path, int(match[1]), state)


def _delete(path: Path) -> None:
    """Delete a folder that must not be seen half deleted."""
    going = path.with_name(f".{path.name}.deleted")
    path.rename(going)
    shutil.rmtree(going)


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
