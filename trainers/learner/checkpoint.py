"""Checkpoints that are whole or not there.

A checkpoint is a folder. It is written next to its final place, flushed to the disk, and renamed. To replace an
existing one, that is first renamed out of the way; a process killed between the two renames leaves it there, and
:func:`recover` puts it back. So whenever a process is killed, ``path`` is a whole checkpoint after ``recover``.

Tensors are written by torch.distributed.checkpoint: every rank writes what it holds, and another number of ranks can
read it.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor

from trainers.learner.fsdp import Ranks


def _aside(path: Path) -> tuple[Path, Path]:
    return path.parent / f".{path.name}.partial", path.parent / f".{path.name}.previous"


@contextmanager
def replace_folder(path: str | Path, ranks: Ranks) -> Iterator[Path]:
    """Write a folder that appears at ``path`` whole, or not at all.

    All ranks enter and leave together.

    Args:
        path: Where the folder will be; what is there is replaced.
        ranks: Who writes into it.

    Yields:
        An empty folder to write into.

    Raises:
        NotADirectoryError: ``path`` is a file.
    """
    path = Path(path).absolute()
    partial, previous = _aside(path)
    if ranks.first:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path} is a file; a checkpoint is a folder: choose another path")
        if partial.exists():  # of a process that was killed while it wrote
            shutil.rmtree(partial)
        partial.mkdir()
    ranks.wait()
    yield partial
    ranks.wait()
    if ranks.first:
        _flush(partial)
        if path.exists():
            path.rename(previous)
        partial.rename(path)
        _flush_entry(path.parent)
        if previous.exists():
            shutil.rmtree(previous)
    ranks.wait()


def recover(path: str | Path) -> None:
    """Finish a replacement of ``path`` that was interrupted. Harmless at any time, except while one is running."""
    path = Path(path).absolute()
    _, previous = _aside(path)
    if previous.exists():
        if path.exists():
            shutil.rmtree(previous)
        else:
            previous.rename(path)


def write_tensors(folder: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Write this rank's shards; all ranks write together."""
    with _without_advice():
        dcp.save(dict(tensors), checkpoint_id=folder, no_dist=ranks.count == 1)


def read_tensors(folder: Path, tensors: dict[str, Tensor], ranks: Ranks) -> None:
    """Read into ``tensors``, in place, whatever number of ranks wrote them; all ranks read together.

    Raises:
        torch.distributed.checkpoint.api.CheckpointException: A tensor is not there, or has another shape.
    """
    with _without_advice():
        dcp.load(dict(tensors), checkpoint_id=folder, no_dist=ranks.count == 1)


@contextmanager
def _without_advice() -> Iterator[None]:
    """Without torch's note that a single process writes alone, which is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is .*single process")
        yield


def _flush(folder: Path) -> None:
    """Make everything in a folder, and their names, survive a power cut."""
    for root, _, files in os.walk(folder):
        for name in files:
            _flush_entry(Path(root) / name)
        _flush_entry(Path(root))


def _flush_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
