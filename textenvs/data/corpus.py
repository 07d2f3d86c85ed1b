"""Documents to search: from memory, JSON lines or Parquet.

A document is ``id``, ``title`` and ``text``. Rows may also have ``contents``, as corpora for dense and sparse
retrievers do: a title in its first line, quoted or not, and the text below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..messages import clean_text
from ..task import TaskError
from .files import collect, file_rows

_COLUMNS = "'id', 'title' and 'text'"


@dataclass(frozen=True)
class Document:
    """One document: its id, unique in its corpus; its title, one line that may be empty; and its text."""

    id: str
    title: str
    text: str

    @classmethod
    def from_row(cls, row: Any, number: int) -> Document:
        """Read a row with ``text`` or ``contents``; its number is the ``id`` of one that has none."""
        if not isinstance(row, Mapping):
            raise TaskError(f"row {number}: a {type(row).__name__}, not an object with {_COLUMNS}")
        values = {name: row[name] for name in ("id", "title", "text", "contents") if row.get(name) is not None}
        if "text" not in values and "contents" not in values:
            raise TaskError(f"row {number}: column 'text' is missing; the row has {sorted(map(str, row))}")
        for name, value in values.items():
            if not isinstance(value, str) and not (name == "id" and isinstance(value, int)):
                raise TaskError(f"row {number}: column {name!r} must be text, not {type(value).__name__}")
        title, text = values.get("title", ""), values.get("text")
        if text is None:
            first, _, rest = values["contents"].partition("\n")
            title, text = (title or first.strip().strip('"'), rest) if rest else (title, first)
        if not text.strip():
            raise TaskError(f"row {number}: column 'text' is empty")
        return cls(str(values.get("id", number)), " ".join(clean_text(title).split()), clean_text(text).strip())


def read_documents(path: str | Path) -> tuple[Document, ...]:
    """The documents of a ``.jsonl`` (UTF-8) or ``.parquet`` file; raises what :func:`file_rows` and the next do."""
    if Path(path).suffix not in (".jsonl", ".parquet"):
        raise ValueError(f"{str(path)!r}: a corpus is a .jsonl or .parquet file with {_COLUMNS}")
    return make_documents(str(path), file_rows(path, _COLUMNS))


def make_documents(name: str, rows: Iterable[tuple[int, Any]]) -> tuple[Document, ...]:
    """Documents from numbered rows, some of which may be documents already; a :class:`TaskError` lists bad ones."""
    seen: dict[str, int] = {}

    def make(number: int, row: Any) -> Document:
        document = row if isinstance(row, Document) else Document.from_row(row, number)
        if document.id in seen:
            raise TaskError(f"row {number}: the id {document.id!r} is that of row {seen[document.id]}, too")
        seen[document.id] = number
        return document

    documents = collect(name, rows, make)
    if not documents:
        raise TaskError(f"{name}: there is no document in it; give at least one")
    return tuple(documents)
