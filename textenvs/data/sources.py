"""From what a user names to a task set, for families with rows of their own shape.

A family says how its rows are read and how its generated tasks are made (:class:`Reader`); the names of sources are
the same for all: a file, ``generated:LEVEL``, ``hub:REPOSITORY``, a sequence of these, a task set, or nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..task import SPLITS, Rows, Split, Task, TaskSet, joined
from .files import Check, json_rows, parquet_rows
from .hub import hub_rows

Source = TaskSet | str | Path | Sequence[str | Path] | None


@dataclass(frozen=True)
class Reader:
    """How a family's tasks come to be. Its functions belong to modules: what was read is kept by them.

    Args:
        generated: Makes the generated tasks of a level, a split and a seed.
        levels: The levels there are; the first is the default.
        row: Makes a task of a row, its key, its place for errors, and its data source where it names none; raises
            ``TaskError`` for a row that cannot be used.
        columns: What a row needs, named in errors.
        example: A data set on the Hub, named in errors.
        check: Says why a task cannot be used, or ``None``; applied to rows of every shape.
        distinct: Of tasks for which this is equal only the first is kept; ``None`` to keep them all.
    """

    generated: Callable[[str, Split, int], TaskSet]
    levels: tuple[str, ...]
    row: Callable[[Mapping[str, Any], str, str, str], Task]
    columns: str
    example: str
    check: Check | None = None
    distinct: Callable[[Task], str] | None = None


def open_source(source: Source, reader: Reader, *, level: str | None, split: Split, seed: int) -> TaskSet:
    """The tasks that ``source`` names. A file is read once a process, however many environments ask for it.

    Args:
        source: A task set, which is returned as it is; a ``.jsonl`` or ``.parquet`` file; ``"generated:LEVEL"``;
            ``"hub:REPOSITORY"`` or ``"hub:REPOSITORY:CONFIGURATION"``; a sequence of these names; or ``None`` for
            generated tasks.
        reader: The family's.
        level: Short for ``"generated:LEVEL"``; ``None`` for the first.
        split: Which half of a generated source, or which split of one on the Hub. A file is one split already.
        seed: The seed of generated tasks.

    Raises:
        ValueError: Both ``source`` and ``level``, or an unknown split, level or kind of source.
        TaskError: Rows that cannot be used, listed by file, row and column.
        ImportError: The source needs a library that is not installed; the message names the extra.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if level is not None and source is not None:
        raise ValueError(f"give either tasks or level, not both: level={level!r} is short for 'generated:{level}'")
    if source is None:
        return _named(f"generated:{level or reader.levels[0]}", reader, split, seed)
    if isinstance(source, TaskSet):
        return source
    if isinstance(source, (str, Path)):
        return _named(source, reader, split, seed)
    return joined([_named(each, reader, split, seed) for each in source])


def _named(source: str | Path, reader: Reader, split: Split, seed: int) -> TaskSet:
    text = str(source)
    kind, _, rest = text.partition(":")
    if kind == "generated":
        if rest not in reader.levels:
            known = ", ".join(f"generated:{name}" for name in reader.levels)
            raise ValueError(f"{text!r}: unknown level; known are {known}")
        return reader.generated(rest, split, seed)
    if kind == "hub":
        repository, _, config = rest.partition(":")
        if not repository:
            raise ValueError(f"{text!r}: name the data set, for example 'hub:{reader.example}'")
        return _hub(repository, config or None, reader, split)
    path = Path(source).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(
            f"{text!r}: not a task source; it must be a .jsonl or .parquet file, 'generated:LEVEL', "
            "'hub:REPOSITORY' or None"
        )
    # The file's time and size are part of the key, so that a file written anew is read anew.
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
    return _file(path.absolute(), stamp, reader)


@functools.lru_cache(maxsize=16)
def _file(path: Path, stamp: tuple[int, int] | None, reader: Reader) -> Rows:
    def make(number: int, row: dict[str, Any]) -> Task:
        return _task(row, reader, f"{path.stem}/{number}", number, path.stem)

    if path.suffix == ".jsonl":
        return _distinct(json_rows(path, make, reader.check, columns=reader.columns), reader)
    return _distinct(parquet_rows(path, make, reader.check), reader)


@functools.lru_cache(maxsize=16)
def _hub(repository: str, config: str | None, reader: Reader, split: Split) -> Rows:
    def make(number: int, row: dict[str, Any]) -> Task:
        return _task(row, reader, f"{split}/{number}", number, repository)

    return _distinct(hub_rows(repository, config, make, reader.check, split=split), reader)


def _distinct(rows: Rows, reader: Reader) -> Rows:
    if reader.distinct is None:
        return rows
    first: dict[str, Task] = {}
    for index in range(rows.size):
        first.setdefault(reader.distinct(rows[index]), rows[index])
    return rows if len(first) == rows.size else Rows(rows.name, first.values())


def _task(row: Mapping[str, Any], reader: Reader, key: str, number: int, data_source: str) -> Task:
    where = f"row {number}"
    if "reward_model" in row:  # verl's schema, as write_parquet writes it
        return Task.from_row(row, key=key, where=where)
    return reader.row(row, key, where, data_source)
