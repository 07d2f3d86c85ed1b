"""From what a user names to a task set: a data set, a file, ``generated:LEVEL``, ``hub:REPOSITORY``, or several."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..messages import clean_text
from ..task import SPLITS, Rows, Split, Task, TaskError, TaskSet, joined
from ..text import plural
from .catalogue import catalogue
from .files import collect, file_rows, hub_rows

log = logging.getLogger("textenvs")

Source = TaskSet | str | Path | Sequence[str | Path] | None

# GSM8K has two configurations, and `datasets` wants one named; "socratic" asks the same questions.
_DEFAULT_CONFIG = {"openai/gsm8k": "main"}


@dataclass(frozen=True)
class Reader:
    """A family's ways to make tasks. Its functions are module-level, so tasks that were read are cached by them."""

    generated: Callable[..., TaskSet]  # given ``level``, ``split`` and ``seed``
    levels: tuple[str, ...]  # the first is the default
    #: Makes a task of a row, its key, its place for errors, and its data source, or raises ``TaskError``.
    row: Callable[[Mapping[str, Any], str, str, str], Task]
    columns: str  # what a row needs, named in errors
    example: str  # a data set on the Hub, named in errors
    check: Callable[[Task], object] | None = None  # raises ``ValueError``, with why a row's task cannot be used
    data_source: str | None = None  # of a file's rows that name none; ``None`` for the file's name
    distinct: Callable[[Task], str] | None = None  # of tasks for which this is equal only the first is kept
    shape: str = ""  # which rows of the catalogue's data sets it reads; see catalogue.yaml


def open_source(source: Source, reader: Reader, *, level: str | None, split: Split, seed: int) -> TaskSet:
    """Return the tasks that ``source`` names; a file is read once a process, for all environments.

    Args:
        source: A task set, which is returned as it is; a name of the catalogue, such as ``"gsm8k"``; a ``.jsonl`` or
            ``.parquet`` file; ``"generated:LEVEL"``; ``"hub:REPOSITORY"`` or ``"hub:REPOSITORY:CONFIGURATION"``; a
            sequence of these names; or ``None`` for the generated tasks of ``level``.
        reader: The family's.
        level: Short for ``"generated:LEVEL"``; ``None`` for the first.
        split: Which half of a generated source, or which split of one of the catalogue or on the Hub. A file is one
            split already.
        seed: The seed of generated tasks.

    Raises:
        ValueError: Both ``source`` and ``level``, an unknown split, level or kind of source, or a data set of the
            catalogue that is not for these environments.
        TaskError: Rows that cannot be used, listed by file, row and column.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if level is not None and source is not None:
        raise ValueError(f"give either tasks or level, not both: level={level!r} is short for 'generated:{level}'")
    if source is None:
        source = f"generated:{level or reader.levels[0]}"
    if isinstance(source, TaskSet):
        return source
    names = [source] if isinstance(source, (str, Path)) else source
    tasks = joined([_named(name, reader, split, seed) for name in names])
    _announce(tasks.name, tasks.size)
    return tasks


def read_source(source: str | Path, reader: Reader, split: str, rejected: list[str] | None = None) -> Rows:
    """Read a file or a data set of the Hub, whatever was read before; ``split`` is of the latter.

    Where ``rejected`` is given, rows that cannot be used are left out and listed there, a line each.
    """
    text = str(source)
    kind, _, rest = text.partition(":")
    convert: Callable[[Any], Any] = lambda row: row  # noqa: E731
    if (entry := catalogue().get(text)) is not None:
        convert, path = entry.reader(reader.shape), entry.installed(split)
        name, rows = f"{text} ({split})", file_rows(path, reader.columns)
        prefix, data_source = split, entry.hub
    elif kind == "hub":
        data_source, _, config = rest.partition(":")
        if not data_source:
            raise ValueError(f"{text!r}: name the data set, for example 'hub:{reader.example}'")
        name, rows = hub_rows(data_source, config or _DEFAULT_CONFIG.get(data_source), split)
        prefix = split
    elif (path := Path(source).expanduser()).suffix in (".jsonl", ".parquet"):
        name, rows = str(path), file_rows(path, reader.columns)
        prefix, data_source = path.stem, reader.data_source or path.stem
    else:
        raise ValueError(
            f"{text!r}: not a task source; it must be a data set of `textenvs data list`, a .jsonl or .parquet file, "
            "'generated:LEVEL', 'hub:REPOSITORY' or None. (Rows that `textenvs prepare` wrote are named by their path: "
            "tasks='data/train.parquet'.)"
        )

    def make(number: int, row: Mapping[str, Any]) -> Task:
        try:
            row = convert(row)
        except (LookupError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise TaskError(f"row {number}: its columns are not those of {text} on the Hub ({what})") from error
        read = verl_row if "reward_model" in row else reader.row  # verl's schema, as write_parquet writes it
        own = row.get("data_source")
        from_row = clean_text(own) if isinstance(own, str) and own else data_source
        task = read(row, f"{prefix}/{number}", f"row {number}", from_row)
        if reader.check is not None:
            try:
                reader.check(task)
            except ValueError as error:
                raise TaskError(f"row {number}: {error}") from error
        return task

    tasks = collect(name, rows, make, rejected)
    if reader.distinct is not None:
        first = {reader.distinct(task): task for task in reversed(tasks)}
        tasks = [task for task in tasks if first[reader.distinct(task)] is task]
    return Rows(name, tasks)


def text_in(row: Mapping[str, Any], column: str, where: str) -> str:
    """Return the text in a column, or raise :class:`TaskError`."""
    value = row.get(column)
    if not isinstance(value, str):
        if column not in row:
            raise TaskError(f"{where}: column {column!r} is missing; the row has {sorted(map(str, row))}")
        raise TaskError(f"{where}: column {column!r} must be text, not {type(value).__name__}")
    if not value.strip():
        raise TaskError(f"{where}: column {column!r} is empty")
    return clean_text(value).strip()


def verl_row(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Return the :attr:`Reader.row` of a family that reads verl's rows only."""
    return Task.from_row(row, key=key, where=where)


def _named(source: str | Path, reader: Reader, split: Split, seed: int) -> TaskSet:
    text = str(source)
    kind, _, rest = text.partition(":")
    if kind == "generated":
        if rest not in reader.levels:
            levels = ", ".join(f"generated:{name}" for name in reader.levels)
            raise ValueError(f"{text!r}: unknown level; known are {levels}")
        return reader.generated(level=rest, split=split, seed=seed)
    if kind == "hub":
        return _read_once(text, None, reader, split)
    entry = catalogue().get(text)
    path = Path(source).expanduser() if entry is None else entry.path(split)
    # The file's time and size are part of the key, so that a file written anew is read anew.
    stamp = (path.stat().st_mtime_ns, path.stat().st_size, str(path)) if path.is_file() else None
    if entry is not None:
        return _read_once(text, stamp, reader, split)
    # A file is one split already, and is read from where it is now; what is no file keeps its name for the error.
    return _read_once(path.absolute() if path.suffix in (".jsonl", ".parquet") else source, stamp, reader, "train")


@functools.lru_cache(maxsize=16)
def _read_once(source: str | Path, stamp: tuple[int, int, str] | None, reader: Reader, split: Split) -> Rows:
    return read_source(source, reader, split)


@functools.cache
def _announce(name: str, size: int | None) -> None:
    log.info("tasks: %s, %s", name, "endless" if size is None else plural(size, "row"))
