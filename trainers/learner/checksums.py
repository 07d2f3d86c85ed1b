"""Checksums of the files of a checkpoint, made when it is written and verified before anything of it is used.

``checksums.json`` lists the SHA-256 of every file of its folder and of the folders below. A folder below that has one
of its own is listed by that file alone. So files that never change are hashed once, and trusting the outermost list
trusts all of it. Names that start with a dot are not listed, and nothing reads them.

Checksums find what a disk or a copy has damaged. They are no signatures: a writer of the folder can also write
other checksums.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHECKSUMS = "checksums.json"


class DamagedError(ValueError):
    """A file of a checkpoint is not as it was written; the message names it."""


class UnlistedFileError(ValueError):
    """There is a file that no checksum lists, and a library might read it; the message names it."""


def sha256(path: Path) -> str:
    """Return the SHA-256 of one file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path, precomputed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a folder's checksums, by paths in it; files with ``precomputed`` checksums are not read."""
    precomputed = precomputed or {}
    names = sorted(_files(folder))
    missing = [name for name in names if name not in precomputed]
    return {
        **dict(zip(missing, _hashed(folder, missing), strict=True)),
        **{n: precomputed[n] for n in names if n in precomputed},
    }


def seal(folder: Path, precomputed: Mapping[str, str] | None = None) -> None:
    """Write a folder's ``checksums.json``; see :func:`checksums`."""
    listed = checksums(folder, precomputed)
    (folder / CHECKSUMS).write_text(json.dumps(listed, indent=1, sort_keys=True), encoding="utf-8")


def verify(folder: Path) -> None:
    """Compare a folder with its ``checksums.json``; raises as :func:`verify_listed` does."""
    file = folder / CHECKSUMS
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedError(f"{file} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedError(f"{file} cannot be read: {error}") from error
    verify_listed(folder, listed)


def verify_listed(folder: Path, listed: object) -> None:
    """Compare a folder with a list of checksums, as :func:`checksums` makes it.

    Raises DamagedError: a file differs or is missing, or this is no such list; UnlistedFileError: a file is not listed.
    """
    if not isinstance(listed, dict) or not all(isinstance(value, str) for value in listed.values()):
        raise DamagedError(f"{folder}: its list of checksums is damaged")
    existing = set(_files(folder))
    if missing := sorted(listed.keys() - existing):
        raise DamagedError(f"{folder / missing[0]} is missing")
    if unknown := sorted(existing - listed.keys()):
        raise UnlistedFileError(
            f"{folder / unknown[0]} is not a file of this checkpoint (no checksum lists it): move it away"
        )
    names = sorted(listed)
    for name, actual in zip(names, _hashed(folder, names), strict=True):
        if actual != listed[name]:
            raise DamagedError(f"{folder / name} is damaged: it differs from its checksum")
    for name in names:
        if os.path.basename(name) == CHECKSUMS:
            verify((folder / name).parent)


def _files(folder: Path, below: str = "") -> Iterator[str]:
    """Yield the files to list, as paths in ``folder``."""
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or (not below and entry.name == CHECKSUMS):
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield below + entry.name
        elif os.path.lexists(os.path.join(entry.path, CHECKSUMS)):
            yield f"{below}{entry.name}/{CHECKSUMS}"
        else:
            yield from _files(Path(entry.path), f"{below}{entry.name}/")


def _hashed(folder: Path, names: list[str]) -> Iterator[str]:
    def one(name: str) -> str:
        path = folder / name
        if not path.is_file():  # a pipe or a device would be read without end
            raise DamagedError(f"{path} is not a regular file")
        try:
            return sha256(path)
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing leaves the interpreter to others
        yield from pool.map(one, names)
