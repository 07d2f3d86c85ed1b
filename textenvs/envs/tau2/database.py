"""Tables of records that copies share, and one side's functions over them.

A record is copied when it is edited, never before: a fork of a database costs as much as what was edited in it. The
content of its file is read once in a process and is no part of a pickle.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...tools import ToolError
from ...tools.calculator import evaluate
from .files import Folder

Record = dict[str, Any]


@dataclass
class Database:
    """The records of a domain, both sides' in one. ``edited`` has those that are not as in the domain's files."""

    folder: Folder
    edited: dict[tuple[str, str], Record] = field(default_factory=dict)

    def __deepcopy__(self, memo: object) -> Database:
        return Database(self.folder, dict(self.edited))  # a record is replaced, not changed: copies may share it

    @property
    def _tables(self) -> Mapping[str, Mapping[str, Record]]:
        return self.folder.tables

    def get(self, table: str, key: str) -> Record | None:
        """Return the record of this key, to be read only; an impossible key raises ``TypeError``, as any mapping."""
        record = self.edited.get((table, key))
        return self._tables[table].get(key) if record is None else record

    def all(self, table: str) -> Iterator[tuple[str, Record]]:
        """Yield all records by key, in the file's order and then in the order of their creation."""
        original = self._tables[table]
        for key, record in original.items():
            yield key, self.edited.get((table, key), record)
        for (where, key), record in self.edited.items():
            if where == table and key not in original:
                yield key, record

    def edit(self, table: str, key: str) -> Record:
        """Replace a record by a copy, to be changed before the next ``edit``, and return it; ``KeyError``: no such."""
        record = self.get(table, key)
        if record is None:
            raise KeyError(key)
        return self.put(table, key, copy.deepcopy(record))

    def put(self, table: str, key: str, record: Record) -> Record:
        self.edited[table, key] = record
        return record

    def changes(self) -> dict[tuple[str, str], Record]:
        """Return the records that are not as in the file."""
        return {
            place: record for place, record in self.edited.items() if record != self._tables[place[0]].get(place[1])
        }

    def same(self, other: Database) -> bool:
        """Return whether both databases, of one domain, have equal records."""
        return self.changes() == other.changes()


class Side:
    """The functions of the assistant, or the user, in a domain; each public method may be called by its name.

    The functions of a task's own actions and assertions are methods, too; only those of ``tools.yaml`` are tools.
    """

    #: What a domain's transfer returns.
    TRANSFERRED: ClassVar[str] = "Transfer successful"

    def __init__(self, database: Database) -> None:
        self.db = database

    def function(self, name: str) -> Callable[..., Any]:
        """Return the method of this name; ``ToolError`` where there is none: a name may come from a row."""
        method = None if name.startswith("_") or hasattr(Side, name) else getattr(self, name, None)
        if method is None or not inspect.ismethod(method):
            raise ToolError(f"Error: there is no function {name[:100]!r}")
        return method  # type: ignore[no-any-return]

    def _record(self, table: str, key: str, problem: str) -> Record:
        if (record := self.db.get(table, key)) is None:
            raise refusal(problem)
        return record


def refusal(problem: str) -> ToolError:
    return ToolError(f"Error: {problem}")


def calculated(expression: str) -> str:
    """Return the value of an expression of ``+ - * /`` and brackets, rounded to cents; ``ToolError``: it is none."""
    if not set(expression) <= set("0123456789+-*/(). "):
        raise refusal("the expression may have digits, + - * / ( ) . and spaces only")
    return str(round(float(evaluate(expression)), 2))
