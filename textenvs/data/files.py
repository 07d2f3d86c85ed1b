"""Rows in files, JSON lines and Parquet: every row is checked, and the error lists the first few bad ones."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ..bounded_files import UnreadableFile, open_regular, parse_json, read_lines
from ..messages import clean_text
from ..task import Task, TaskError, TaskSet
from .parquet_files import import_pyarrow, open_parquet, parquet_errors

MadeT = TypeVar("MadeT")

#: How many bad rows an error lists.
_LISTED = 5
#: Rows of Parquet that are in memory as Python's values at a time.
_BATCH = 1024


def file_rows(path: str | Path, columns: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a ``.jsonl`` or ``.parquet`` file, numbered from 1; an error for a row that is no object.

    Blank lines of a ``.jsonl`` file are skipped, and a row's number is its line's. ``columns`` stands in errors.
    ``TaskError``: the file is missing, empty or cannot be read.
    """
    path = Path(path).expanduser()
    if path.suffix == ".parquet":
        import_pyarrow()
    try:
        os.close(open_regular(path))
    except UnreadableFile as error:
        raise TaskError(f"{error}; name a .jsonl or .parquet file" if path.is_dir() else str(error)) from error
    if path.suffix not in (".jsonl", ".parquet"):
        raise TaskError(f"{path}: rows are read from .jsonl (an object a line) or .parquet files")
    rows = _json_rows(path, columns) if path.suffix == ".jsonl" else _parquet_rows(path)
    number = 0
    for number, row in rows:
        yield number, row
    if not number:
        raise TaskError(f"{path}: the file is empty; it needs rows with {columns}")


def hub_rows(repository: str, config: str | None, split: str) -> tuple[str, Iterator[tuple[int, Any]]]:
    """Return name and rows, numbered from 1, of a data set on the Hub or in a folder that ``datasets`` loads."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("the Hub needs datasets: pip install 'textenvs[hub]'") from error
    name = f"hub:{repository}{f':{config}' if config else ''} ({split})"
    try:
        rows = load_dataset(repository, config, split=split)
    except Exception as error:  # datasets and huggingface_hub raise errors of many kinds: network, name, config, split
        raise TaskError(
            f"{name}: could not be loaded ({type(error).__name__}: {error}); check the name, the split and the "
            "network, or take the rows from a .jsonl or .parquet file"
        ) from error
    if len(rows) == 0:
        raise TaskError(f"{name}: the data set has no rows")
    return name, enumerate(rows, start=1)


def _json_rows(path: Path, columns: str) -> Iterator[tuple[int, Any]]:
    try:
        for number, line in read_lines(path):
            # Some editors put a byte order mark first.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            if not text.strip():
                continue
            try:
                value = parse_json(text, allow_nan=True)
            except ValueError as error:  # a number may have thousands of digits
                value = TaskError(f"row {number}: not JSON ({error}); each line must be one object")
            if not isinstance(value, (dict, TaskError)):
                value = TaskError(f"row {number}: a {type(value).__name__}, not an object with {columns}")
            yield number, value
    except UnreadableFile as error:
        raise TaskError(str(error)) from error
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text ({error}); save the file in UTF-8") from error


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with open_parquet(path) as file:
            batches = file.iter_batches(batch_size=_BATCH)
            while True:
                with parquet_errors(path):
                    batch = next(batches, None)
                    rows = None if batch is None else batch.to_pylist()
                if rows is None:
                    return
                for row in rows:
                    number += 1
                    yield number, without_nulls(row)
    except UnreadableFile as error:
        raise TaskError(str(error)) from error


def without_nulls(value: Any) -> Any:
    """Without nulls: a struct of Parquet has every field in every row."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, (list, tuple)) else value


def collect(
    name: str, rows: Iterable[tuple[int, Any]], make: Callable[[int, Any], MadeT], rejected: list[str] | None = None
) -> list[MadeT]:
    """Return ``make`` of each row of the source ``name``; a :class:`TaskError` lists the first few bad rows.

    Where ``rejected`` is given, bad rows are left out and listed there, unless they are all there are.
    """
    made: list[MadeT] = []
    problems: list[str] = []
    for number, row in rows:
        try:
            if isinstance(row, TaskError):
                raise row
            made.append(make(number, row))
        except TaskError as error:
            problems.append(str(error))
    if problems and (rejected is None or not made):
        listed = "\n  ".join(problems[:_LISTED])
        rest = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        what = "correct or remove these rows, they cannot be used (counted from 1)"
        raise TaskError(f"{name}: {what}:\n  {listed}{rest}")
    if rejected is not None:
        rejected.extend(problems)
    return made


def write_parquet(tasks: TaskSet | Iterable[Task], path: str | Path, *, count: int | None = None) -> Path:
    """Write tasks in verl's schema; the file appears whole or not at all.

    ``count`` writes the first so many tasks; it is needed when the set is endless. Rows whose columns have no common
    type are a ``TaskError``.
    """
    if isinstance(tasks, TaskSet):
        if tasks.size is None and count is None:
            raise ValueError(f"{tasks.name} is endless; say how many tasks to write with count=")
        tasks = map(tasks.__getitem__, itertools.count() if tasks.size is None else range(tasks.size))
    rows = [task.to_row() for task in itertools.islice(tasks, count)]
    if not rows:
        raise ValueError(f"{path}: no tasks to write")
    return write_rows(rows, path)


def write_rows(rows: Sequence[dict[str, Any]], path: str | Path, *, name: str | None = None) -> Path:
    """Write rows, at least one, as Parquet, as :func:`write_parquet` does. A column that a row lacks is null in it.

    Lone surrogates in texts, which no file can hold, become U+FFFD. ``name`` (by default ``path``) stands in errors.
    """
    pyarrow, parquet = import_pyarrow()
    path = Path(path)
    source = name or path
    columns = {}
    for column in dict.fromkeys(column for row in rows for column in row):
        values = [row.get(column) for row in rows]
        try:
            try:
                columns[clean_text(column)] = pyarrow.array(values)
            except UnicodeEncodeError:
                columns[clean_text(column)] = pyarrow.array(_clean(values))
        except (pyarrow.ArrowException, OverflowError) as error:
            raise TaskError(
                f"{source}: the rows have no common Parquet schema (column {column!r}: {error}); "
                "give each field one type"
            ) from error
    table = pyarrow.table(columns)
    try:
        with written_whole(path) as temporary:
            parquet.write_table(table, temporary)
    except pyarrow.ArrowNotImplementedError as error:
        raise TaskError(f"{source}: Parquet cannot hold these rows ({error})") from error
    return path


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(name): _clean(part) for name, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, (list, tuple)) else value


@contextmanager
def written_whole(path: Path) -> Iterator[str]:
    """Yield a file name beside ``path``; the file replaces it, synced, when the block ends without an error.

    The folder of ``path`` is made where it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide a shared file from others
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
