"""Data sets that have a name: where they are from, what they hold, and the files that this machine has of them.

``catalogue.yaml`` has all of them. ``textenvs data get NAME`` downloads one, ``textenvs data import NAME FILE`` takes
it from a file; both check its rows and write ``FOLDER/NAME/SPLIT.parquet`` with what is known of it beside,
``SPLIT.json``. ``FOLDER`` is :func:`data_folder`. Then environments play it with ``tasks="NAME"``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..task import TaskError
from ..text import load_yaml, plural
from .files import collect, file_rows, hub_rows, write_rows, written_whole

Row = Mapping[str, Any]


class SplitOf(BaseModel):
    """One split: its name on the Hub, how many rows it has, and :func:`digest_of` them, where these are known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hub: str
    rows: int | None = None
    sha256: str | None = None


class DataSet(BaseModel):
    """An entry of the catalogue; see the head of ``catalogue.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    about: str
    licence: str
    hub: str
    config: Annotated[tuple[str | None, ...], Field(min_length=1)] = (None,)
    columns: tuple[str, ...]
    splits: Mapping[str, SplitOf]
    shapes: Mapping[str, Mapping[str, str] | str]

    def path(self, split: str) -> Path:
        """Return the path of a split's rows; there may be no file yet."""
        return data_folder() / self.name / f"{split}.parquet"

    def facts(self, split: str) -> dict[str, Any] | None:
        """Return ``origin``, ``rows`` and ``sha256`` of the installed split; ``None`` where it is not installed."""
        try:
            note: dict[str, Any] = json.loads(self.path(split).with_suffix(".json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return note if self.path(split).is_file() else None

    def of_split(self, split: str) -> SplitOf:
        """Return the split's description; ``ValueError`` where the data set has no such split."""
        if split not in self.splits:
            raise ValueError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}")
        return self.splits[split]

    def reader(self, shape: str) -> Callable[[Row], Row]:
        """From a row to one that families of this shape read; ``ValueError`` for a shape that it cannot have."""
        how = self.shapes.get(shape)
        if how is None:
            fit = ", ".join(name for name, entry in catalogue().items() if shape in entry.shapes)
            raise ValueError(f"{self.name!r} is not for this environment; data sets that are: {fit or 'none'}")
        return _CONVERTED[how] if isinstance(how, str) else functools.partial(_renamed, how)

    def installed(self, split: str) -> Path:
        """Return the file of a split; ``TaskError`` says how to install it where it is missing."""
        self.of_split(split)
        if self.facts(split) is None:
            raise TaskError(
                f"{self.name} ({self.hub}, {split}): not on this machine. With a network: textenvs data get {self.name}"
                f". From a file: {self._import(split)}. (Looked in {data_folder()}; "
                "TEXTENVS_DATA names another folder.)"
            )
        return self.path(split)

    def install(
        self, split: str, rows: Iterable[tuple[int, Any]], origin: str, *, partial: bool = False
    ) -> dict[str, Any]:
        """Check rows, numbered as in :func:`~textenvs.data.files.file_rows`, and write them; what is noted of them.

        Args:
            split: Which.
            rows: All of its rows.
            origin: Where they are from, for people.
            partial: Take other rows than the catalogue knows: a part of them, or a newer version.

        Raises:
            TaskError: Rows that lack columns or cannot be written, or, without ``partial``, not the rows that the
                catalogue knows. What was installed before stays.
        """
        expected = self.of_split(split)
        collected: list[dict[str, Any]] = collect(origin, rows, self._checked)
        try:
            digest = digest_of(collected, self.columns)
        except TypeError as error:
            columns = ", ".join(map(repr, self.columns))
            raise TaskError(f"{origin}: a column of {columns} has values that are no JSON ({error})") from error
        if not partial and (problem := _other(expected, len(collected), digest)):
            raise TaskError(f"{origin}: {problem}; --partial takes it as it is")
        facts = {
            "origin": origin,
            "licence": self.licence,
            "rows": len(collected),
            "sha256": digest,
            "partial": partial,
        }
        path = self.path(split)
        note = path.with_suffix(".json")
        with written_whole(note) as its_text, written_whole(path) as its_rows:  # which is put in place first
            write_rows(collected, its_rows, name=origin)
            Path(its_text).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
            note.unlink(missing_ok=True)  # until the new rows are there, there are none
        return facts

    def download(self, split: str) -> Iterator[tuple[int, Any]]:
        """Return the rows of a split on the Hub; ``TaskError`` where it cannot be read."""
        name = self.of_split(split).hub
        try:
            parts = [hub_rows(self.hub, config, name)[1] for config in self.config]
        except (TaskError, ImportError) as error:
            raise TaskError(f"{error}. From a file: {self._import(split)}") from error
        return enumerate((row for _, row in chain.from_iterable(parts)), start=1)

    def _import(self, split: str) -> str:
        return f"textenvs data import {self.name} FILE --split {split}"

    def _checked(self, number: int, row: Any) -> dict[str, Any]:
        if lacking := [name for name in self.columns if row.get(name) is None]:
            raise TaskError(f"row {number}: column {lacking[0]!r} is missing; the row has {sorted(map(str, row))}")
        return dict(row)


@functools.cache
def catalogue() -> Mapping[str, DataSet]:
    """All data sets with a name, by it."""
    entries = load_yaml(__package__, "catalogue.yaml")
    return {name: DataSet(name=name, **entry) for name, entry in entries.items()}


def data_folder() -> Path:
    """``TEXTENVS_DATA``, or else ``textenvs`` in the user's folder for data (``XDG_DATA_HOME``, ``~/.local/share``)."""
    if folder := os.environ.get("TEXTENVS_DATA"):
        return Path(folder).expanduser().absolute()
    return Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "textenvs"


def import_file(dataset: DataSet, split: str, path: Path, *, partial: bool = False) -> dict[str, Any]:
    """:meth:`DataSet.install` from a ``.jsonl`` or ``.parquet`` file."""
    columns = ", ".join(map(repr, dataset.columns))
    return dataset.install(split, file_rows(path, columns), str(path), partial=partial)


def digest_of(rows: Iterable[Row], columns: Iterable[str]) -> str:
    """SHA-256 of the rows' ``columns``, in order: the same for the same rows, whatever file they are in."""
    digest, names = hashlib.sha256(), list(columns)
    for row in rows:
        line = json.dumps([row[name] for name in names], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _other(expected: SplitOf, rows: int, digest: str) -> str | None:
    """Return how these rows differ from the expected ones; ``None`` where they do not."""
    if expected.rows not in (None, rows):
        return f"{plural(rows, 'row')}, and the split has {expected.rows}"
    if expected.sha256 not in (None, digest):
        return f"the rows have the digest {digest}, and the split {expected.sha256}"
    return None


def _renamed(names: Mapping[str, str], row: Row) -> Row:
    return {**row, **{new: row.get(old) for new, old in names.items()}}


def _mbpp(row: Row) -> Row:
    """Convert a row: its first assertion names the function, and all become tests of a ``unittest`` module."""
    lines = [str(row.get("test_setup_code") or ""), "import unittest", "class Tests(unittest.TestCase):"]
    for number, assertion in enumerate(row["test_list"]):
        body = "\n".join(f"        {line}" for line in str(assertion).splitlines())
        lines.append(f"    def test_{number}(self):\n{body}")
    request = f"{str(row['text']).strip()} For example: {row['test_list'][0]}"
    return {"prompt": request, "completion": row["code"], "test": "\n".join(lines)}


def _hotpotqa(row: Row) -> Row:
    """Convert a row: its paragraphs, as the Hub has them, are the documents to search."""
    pairs = zip(row["context"]["title"], row["context"]["sentences"], strict=True)
    texts = [(title, "".join(sentences).strip()) for title, sentences in pairs]
    documents = [{"title": title, "text": text} for title, text in texts if text]
    return {"question": row["question"], "answer": row["answer"], "documents": documents}


_CONVERTED: dict[str, Callable[[Row], Row]] = {"mbpp": _mbpp, "hotpotqa": _hotpotqa}
