"""Parquet files that may come from elsewhere: what they unpack to is bounded by what their metadata and pages say.

A file of 600 bytes can hold a text once and refer to it a million times, and a column of equal numbers is as small.
The bounds are multiples of the file's own size, with a floor, so that no file of a run comes near them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bounded_files import UnreadableFile, open_regular
from .parquet_footer import read_footer

#: Bytes that a file's pages, or the texts of one of its columns, may unpack to; a larger file may have a multiple.
UNPACKED, UNPACKED_TIMES = 512 << 20, 200
#: Values of one column in one group of rows.
VALUES, VALUES_PER_BYTE = 1 << 24, 16
#: Groups of rows times columns.
CHUNKS = 1_000_000


def import_pyarrow() -> tuple[Any, Any]:
    """Return ``pyarrow`` and ``pyarrow.parquet``; an ``ImportError`` names the extra."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install 'textenvs[data]'") from error
    return pyarrow, parquet


@contextmanager
def parquet_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within the block, what pyarrow raises over a damaged file, at its opening or at any page, is ``UnreadableFile``.

    A text column may hold other bytes, a date column a day that Python has no date for, a page no end.
    """
    pyarrow, _ = import_pyarrow()
    try:
        yield
    except MemoryError as error:
        raise UnreadableFile(f"{path}: not a readable Parquet file: it asks for more memory than there is") from error
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise UnreadableFile(f"{path}: not a readable Parquet file ({str(error).strip()})") from error


@contextmanager
def open_parquet(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a Parquet file as a ``pyarrow.parquet.ParquetFile`` and check that it may be read whole.

    Raises:
        UnreadableFile: It is no regular file, no Parquet file, or unpacks to much more than its own size.
        ImportError: pyarrow is not installed.
    """
    file = checked_parquet(path)
    try:
        yield file
    finally:
        file.close()


def checked_parquet(path: str | os.PathLike[str]) -> Any:
    """Return what :func:`open_parquet` yields; the caller closes it."""
    _, parquet = import_pyarrow()
    path = Path(path).expanduser()
    os.close(open_regular(path))
    with parquet_errors(path):
        try:
            _check(path, parquet)
        except UnreadableFile:
            raise
        except ValueError as error:
            raise UnreadableFile(f"{path}: not a readable Parquet file ({error})") from error
        return parquet.ParquetFile(path)


def _check(path: Path, parquet: Any) -> None:
    size = path.stat().st_size
    unpacked, values = max(UNPACKED, UNPACKED_TIMES * size), max(VALUES, VALUES_PER_BYTE * size)
    groups = read_footer(path)
    if sum(len(group.columns) for group in groups) > CHUNKS:
        raise UnreadableFile(f"{path} has {len(groups):,} groups of rows, more than are read; write it anew")
    total = 0
    shared: dict[str, list[int]] = {}  # columns of texts that are stored once and referred to, and their groups of rows
    for number, group in enumerate(groups):
        if group.rows > values:
            raise _bomb(path, f"a group of {group.rows:,} rows", size)
        for column in group.columns:
            total += column.unpacked
            if column.values > values:
                raise _bomb(path, f"{column.values:,} values of {column.path!r}", size)
            if column.texts and column.dictionary and column.values * column.unpacked > unpacked:
                shared.setdefault(column.path, []).append(number)
    if total > unpacked:
        raise _bomb(path, f"{total >> 20:,} MiB", size)
    if not shared:
        return
    with parquet.ParquetFile(path, read_dictionary=list(shared)) as file:
        for column_path, numbers in shared.items():
            texts = 0
            for number in numbers:
                for chunk in file.read_row_group(number, columns=[column_path]).column(0).chunks:
                    texts += _text_bytes(chunk)
                    if texts > unpacked:
                        raise _bomb(path, f"more than {unpacked >> 20:,} MiB of {column_path!r}", size)


def _text_bytes(array: Any) -> int:
    """Return how many bytes of text an array holds when every reference stands for its text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_map(kind):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _text_bytes(array.flatten())
    if pa.types.is_struct(kind):
        return sum(_text_bytes(array.field(number)) for number in range(kind.num_fields))
    return int(array.nbytes)


def _bomb(path: Path, what: str, size: int) -> UnreadableFile:
    return UnreadableFile(f"{path} has {size:,} bytes and unpacks to {what}; a file like that is not read")
