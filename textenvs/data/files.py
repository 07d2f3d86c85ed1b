"""Rows in files: JSON lines and Parquet.

Every row is checked when a file is read, and the error lists the first few bad ones: file, row (counted from 1) and
column. pyarrow is imported only where Parquet is read or written.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ..task import Rows, Task, TaskError, TaskSet

#: How many bad rows an error lists.
_LISTED = 5

#: Says why a task cannot be used, or ``None``.
Check = Callable[[Task], str | None]


def json_rows(
    path: str | Path,
    make: Callable[[int, dict[str, Any]], Task],
    check: Check | None = None,
    *,
    columns: str,
    rejected: list[str] | None = None,
) -> Rows:
    """Read JSON lines of any shape.

    Args:
        path: The file, in UTF-8. Blank lines are skipped; a row's number is its line's.
        make: Returns the task of a number and a row, or raises :class:`TaskError`.
        check: Also applied to every task.
        columns: What a row needs, named in errors.
        rejected: As in :func:`collect`.

    Raises:
        TaskError: The file is missing, empty or not UTF-8, or rows of it cannot be used.
    """
    path = existing_file(path)

    def parse(number: int, line: str) -> Task:
        where = f"row {number}"
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise TaskError(f"{where}: not JSON ({error}); each line must be one object") from error
        if not isinstance(value, dict):
            raise TaskError(f"{where}: a {type(value).__name__}, not an object with {columns}")
        return make(number, value)

    try:
        # utf-8-sig: some editors put a byte order mark first.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 text ({error}); save the file in UTF-8") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise TaskError(f"{path}: the file is empty; it needs one JSON object a line, with {columns}")
    return collect(str(path), numbered, parse, check, rejected)


def parquet_rows(
    path: str | Path,
    make: Callable[[int, dict[str, Any]], Task],
    check: Check | None = None,
    *,
    rejected: list[str] | None = None,
) -> Rows:
    """Read Parquet of any schema.

    Args:
        path: The file.
        make: Returns the task of a number and a row, or raises :class:`TaskError`. A struct has every field in every
            row of Parquet; those that are null are left out of the row.
        check: Also applied to every task.
        rejected: As in :func:`collect`.

    Raises:
        ImportError: pyarrow is not installed.
        TaskError: The file is missing, empty or not Parquet, or rows of it cannot be used.
    """
    pyarrow, parquet = import_pyarrow()
    path = existing_file(path)
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TaskError(f"{path}: not a readable Parquet file ({error})") from error
    if table.num_rows == 0:
        raise TaskError(f"{path}: the file has no rows")
    rows = ((number, _without_none(row)) for number, row in enumerate(table.to_pylist(), start=1))
    return collect(str(path), rows, make, check, rejected)


def write_parquet(tasks: TaskSet | Iterable[Task], path: str | Path, *, count: int | None = None) -> Path:
    """Write tasks in verl's schema; the file appears whole or not at all.

    Args:
        tasks: What to write.
        path: Where to; its folder is made.
        count: Write the first ``count`` tasks; needed when the set is endless.

    Returns:
        The path.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: An endless set without ``count``, or nothing to write.
        TaskError: Rows whose columns have no common type.
    """
    path = Path(path)
    rows = [task.to_row() for task in _first(tasks, count)]
    if not rows:
        raise ValueError(f"{path}: no tasks to write")
    return write_rows(rows, path)


def write_rows(rows: Sequence[dict[str, Any]], path: str | Path) -> Path:
    """Write rows as Parquet; the file appears whole or not at all. A column that a row lacks is null in it.

    Args:
        rows: At least one.
        path: Where to; its folder is made.

    Returns:
        The path.

    Raises:
        ImportError: pyarrow is not installed.
        TaskError: Rows whose columns have no common type.
    """
    pyarrow, parquet = import_pyarrow()
    path = Path(path)
    columns = dict.fromkeys(name for row in rows for name in row)
    if any(row.keys() != columns.keys() for row in rows):
        rows = [dict.fromkeys(columns) | row for row in rows]  # pyarrow takes the columns from the first row
    try:
        table = pyarrow.Table.from_pylist(rows)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
        raise TaskError(
            f"{path}: the rows have no common Parquet schema ({error}); give each field one type"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    try:
        parquet.write_table(table, temporary)
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide a shared file from others
        os.replace(temporary, path)
    except pyarrow.ArrowNotImplementedError as error:
        raise TaskError(f"{path}: Parquet cannot hold these rows ({error})") from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    return path


def collect(
    name: str,
    rows: Iterable[tuple[int, Any]],
    make: Callable[[int, Any], Task],
    check: Check | None = None,
    rejected: list[str] | None = None,
) -> Rows:
    """Make every row a task, and raise one error that lists the first bad rows.

    Args:
        name: The source, named in the error.
        rows: Numbers and values of the rows.
        make: Returns the task of a number and a value, or raises :class:`TaskError`.
        check: Also applied to every task.
        rejected: Where given, bad rows are left out and listed here, a line each, as long as a good one is left.

    Raises:
        TaskError: At least one row cannot be used; or, with ``rejected``, none can.
    """
    tasks: list[Task] = []
    problems: list[str] = []
    for number, value in rows:
        try:
            task = make(number, value)
        except TaskError as error:
            problems.append(str(error))
            continue
        if check is not None and (problem := check(task)) is not None:
            problems.append(f"row {number}: {problem}")
        else:
            tasks.append(task)
    if problems and (rejected is None or not tasks):
        raise bad_rows(name, problems)
    if rejected is not None:
        rejected.extend(problems)
    return Rows(name, tasks)


def bad_rows(name: str, problems: Sequence[str]) -> TaskError:
    """The error that lists the first few of the rows that cannot be used."""
    listed = "\n  ".join(problems[:_LISTED])
    more = f"\n  and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return TaskError(f"{name}: correct or remove these rows, they cannot be used (counted from 1):\n  {listed}{more}")


def existing_file(path: str | Path) -> Path:
    """The path of a file that is there.

    Raises:
        TaskError: It is not, or it is a folder.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise TaskError(f"{path}: a folder, not a file; name a .jsonl or .parquet file in it")
    if not path.exists():
        raise TaskError(f"{path}: no such file (looked from {Path.cwd()}); check the path")
    return path


def _first(tasks: TaskSet | Iterable[Task], count: int | None) -> Iterator[Task]:
    if not isinstance(tasks, TaskSet):
        return islice(tasks, count)
    if tasks.size is None and count is None:
        raise ValueError(f"{tasks.name} is endless; say how many tasks to write with count=")
    indices = range(tasks.size) if tasks.size is not None else itertools.count()
    return (tasks[index] for index in islice(indices, count))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(part) for name, part in value.items() if part is not None}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_without_none(part) for part in value]
    return value


def import_pyarrow() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'textenvs[data]'") from error
    return pyarrow, parquet
