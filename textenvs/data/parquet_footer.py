"""Read what a Parquet file's footer says of its size, in Python: pyarrow's accessors end the process on a damaged one.

A footer is a struct ``FileMetaData`` in Thrift's compact protocol, whose numbers of fields are those of parquet.thrift:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Bytes of a footer.
LARGEST = 64 << 20
_MAGIC, _TAIL = b"PAR1", 8  # a file ends with the footer's length in 4 bytes, and the magic
_DEEPEST = 32  # structs and lists within one another
_BYTE_ARRAY, _DICTIONARIES = 6, {2, 8}


@dataclass(frozen=True)
class ColumnChunk:
    """The values of one column in one group of rows."""

    path: str  #: names from the top, joined by dots
    values: int  #: nulls and elements of lists included
    unpacked: int  #: bytes of its pages, decompressed but still encoded
    texts: bool  #: whether it has texts or bytes of any length
    dictionary: bool  #: whether values may be stored once and referred to


@dataclass(frozen=True)
class RowGroup:
    """Rows that are stored together."""

    rows: int
    columns: tuple[ColumnChunk, ...]


def read_footer(path: Path) -> list[RowGroup]:
    """Return the groups of rows of a Parquet file.

    Raises:
        ValueError: It is no Parquet file, or its footer is damaged.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        length = int.from_bytes(tail[:4], "little")
        if len(tail) < _TAIL or tail[4:] != _MAGIC or length > size - _TAIL:
            raise ValueError("it does not end as a Parquet file does")
        if length > LARGEST:
            raise ValueError(f"its footer has {length:,} bytes, and at most {LARGEST:,} are read")
        file.seek(size - _TAIL - length)
        footer = file.read(length)
    try:
        return [_row_group(group) for group in _Compact(footer).struct(0)[4]]
    except (LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"its footer is damaged ({type(error).__name__}: {error})") from None


def _row_group(fields: dict[int, Any]) -> RowGroup:
    return RowGroup(_natural(fields[3]), tuple(_column(chunk[3]) for chunk in fields[1]))


def _column(fields: dict[int, Any]) -> ColumnChunk:
    path = b".".join(fields[3]).decode("utf-8")
    dictionary = not _DICTIONARIES.isdisjoint(fields[2])
    return ColumnChunk(path, _natural(fields[5]), _natural(fields[6]), fields[1] == _BYTE_ARRAY, dictionary)


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a count is not a natural number")
    return value


class _Compact:
    """A reader of Thrift's compact protocol: structs are dictionaries by number of field.

    Every value takes a byte at least, so that reading ends with the text.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise TypeError(f"structs are nested more than {_DEEPEST} deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):  # booleans of a list take a byte
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self._varint())
        if kind in (9, 10):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15, depth + 1) for _ in self._counted(size)]
        if kind == 11:
            size = self._varint()
            kinds = self._byte() if size else 0
            return [
                (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1)) for _ in self._counted(size)
            ]
        if kind == 12:
            return self.struct(depth + 1)
        raise TypeError(f"{kind} is no type")

    def _counted(self, size: int) -> range:
        if size > len(self._data) - self._place:
            raise IndexError("a list is longer than the footer")
        return range(size)

    def _byte(self) -> int:
        byte = self._data[self._place]
        self._place += 1
        return byte

    def _take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._data):
            raise IndexError("a text is longer than the footer")
        content, self._place = self._data[self._place : end], end
        return content

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise TypeError("an integer has more than 64 bits")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
