"""Checkpoints that are whole or not there.

A checkpoint is a folder. It is written next to its final place, flushed to the disk, and renamed. To replace an
existing one, that is first renamed out of the way; a process killed between the two renames leaves it there, and
:func:`recover` puts it back. So whenever a process is killed, ``path`` is a whole checkpoint after ``recover``.

It has a list of its files' checksums (:mod:`trainers.learner.checksums`). Where writing fails, nothing is left of it.
"""

from __future__ import annotations

import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from trainers.learner.checksums import seal
from trainers.learner.fsdp import Ranks
from trainers.learner.tensors import write_tensors


def _aside(path: Path) -> tuple[Path, Path]:
    return path.parent / f".{path.name}.partial", path.parent / f".{path.name}.previous"


@contextmanager
def replace_folder(path: str | Path, ranks: Ranks, seal: Callable[[Path], object] = seal) -> Iterator[Path]:
    """Write a folder that appears at ``path`` whole, or not at all, in place of an existing one.

    All ranks enter and leave together; they get an empty folder to write into. ``seal`` is called with it when all else
    is written, and writes its list of checksums. Raises NotADirectoryError: ``path`` is a file; OSError: it cannot be
    written, for example because the disk is full; OtherRankError: another rank failed. The old folder stays then.
    """
    path = Path(path).absolute()
    partial, previous = _aside(path)

    def prepare() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        recover(path)
        if path.exists() and not path.is_dir():
            raise NotADirectoryError(f"{path} is a file; a checkpoint is a folder: choose another path")
        if partial.exists():  # of a process that was killed while it wrote
            shutil.rmtree(partial)
        partial.mkdir()

    def finish() -> None:
        seal(partial)
        _flush(partial)
        if path.exists():
            path.rename(previous)
        partial.rename(path)
        _flush_entry(path.parent)
        if previous.exists():
            shutil.rmtree(previous)

    ranks.first_does(prepare)
    try:
        try:
            yield partial
        except BaseException as error:
            ranks.agree(error)
        else:
            ranks.agree()
        ranks.first_does(finish)
    except Exception:
        if ranks.first:
            shutil.rmtree(partial, ignore_errors=True)
            recover(path)
        raise


def recover(path: str | Path) -> None:
    """Finish a replacement of ``path`` that was interrupted. Harmless at any time, except while one is running."""
    path = Path(path).absolute()
    _, previous = _aside(path)
    if previous.exists():
        if path.exists():
            shutil.rmtree(previous)
        else:
            previous.rename(path)


class LinkedTensors:
    """Tensors that never change, written once: each further checkpoint gets hard links to the files of the one before.

    Every checkpoint is whole without the others, because a file lives as long as one name of it does. The folder that
    was written last is known by an open descriptor, so it may be renamed meanwhile; if it is gone, or links cannot be
    made there, the tensors are written anew.
    """

    def __init__(self) -> None:
        self._folder: int | None = None
        self._close: Callable[[], object] | None = None

    def write(self, folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
        """Make ``folder`` hold the tensors; all ranks write together."""
        if not ranks.first_says(lambda: self._link(folder)):
            write_tensors(folder, tensors, ranks)
        self.remember(folder, ranks)

    def remember(self, folder: Path, ranks: Ranks) -> None:
        """Link to the files of this folder from now on."""
        if self._close is not None:
            self._close()
        if ranks.first:
            self._folder = os.open(folder, os.O_RDONLY)
            self._close = weakref.finalize(self, os.close, self._folder)

    def _link(self, folder: Path) -> bool:
        if self._folder is None:
            return False
        try:
            names = os.listdir(self._folder)
            folder.mkdir(parents=True)
            for name in names:
                os.link(name, folder / name, src_dir_fd=self._folder)
        except OSError:  # on another disk, or a disk that has no links; of a network, it may be gone
            names = []
        if not names:
            shutil.rmtree(folder, ignore_errors=True)
        return bool(names)


class Background:
    """One job at a time in a thread; its error is raised by the next call."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, job: Callable[[], object], name: str) -> None:
        """Wait for the job before, and raise its error; else start this one; the process waits for it at exit."""
        self.wait()

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, name=name)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """A job is running."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the job is done; raise its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


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
