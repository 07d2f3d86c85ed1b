"""Parquet files: read with their columns checked, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


class TableError(ValueError):
    """A file cannot be used; the message says which, why, and what to do."""


def read_table(path: Path, columns: Sequence[str]) -> Any:
    """A ``pyarrow.Table``; raises ``TableError`` where it cannot be read, has no rows or lacks one of ``columns``."""
    import pyarrow as pa
    from pyarrow import parquet

    if not path.is_file():
        raise TableError(f"there is no file {path}")
    try:
        table = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path} is not a readable Parquet file ({error})") from error
    for column in columns:
        if column not in table.column_names:
            raise TableError(f"{path} has no column {column!r}; it has {', '.join(table.column_names)}")
    if table.num_rows == 0:
        raise TableError(f"{path} has no rows")
    return table


def refuse_rows(problems: Sequence[str], what: str, listed: int = 5) -> None:
    """Raise ``TableError`` with the first ``listed`` of these problems, if there are any."""
    if problems:
        more = [f"and {len(problems) - listed} more"] if len(problems) > listed else []
        raise TableError("\n  ".join([f"{what}:", *problems[:listed], *more]))


def write_table(path: Path, table: Any, row_group_size: int | None = None, **options: Any) -> None:
    """Write a ``pyarrow.Table``, whole or not at all; ``options`` are those of ``ParquetWriter``."""
    from pyarrow import parquet

    from textenvs.data.files import written_whole

    metadata = {} if options.get("store_schema", True) else dict(table.schema.metadata or {})
    if metadata:
        table = table.replace_schema_metadata(None)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        written_whole(path) as unfinished,
        parquet.ParquetWriter(Path(unfinished), table.schema, compression="zstd", **options) as file,
    ):
        file.write_table(table, row_group_size)
        if metadata:
            file.add_key_value_metadata(metadata)
