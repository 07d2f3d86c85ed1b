"""The story of an episode: a world, a goal in it, what the user says of it, and what happens meanwhile."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...task import Split
from .applications import Entity, Field, Value
from .goals import End, Goal, Read, Sent, Step, Tell, When
from .incidents import Incidents
from .store import Store
from .twins import Fact
from .view import Cell, with_cell
from .world import World

_QUOTES = " \"'`*“”‘’«»"
_EUROS, _THOUSANDS = re.compile(r"€|\b(?:euros?|eur)\b"), re.compile(r"(?<=\d),(?=\d{3}\b)")


@dataclass(frozen=True)
class Detail:
    """Something that the user says only when asked for it.

    Args:
        word: What the user calls it.
        about: Words of which a question for it has one: all names of the field or entity, and "who" for a person.
        says: The user's answers, in order; the last is right.
        value: What the last says, for when it is asked for again.
    """

    word: str
    about: frozenset[str]
    says: tuple[str, ...]
    value: str


@dataclass(frozen=True)
class Event:
    """Another value in a cell, by somebody else's hand.

    Args:
        after: So many calls of applications come before it, whether they work or not.
        notice: What the policy is told.
    """

    after: int
    cell: Cell
    value: Value
    notice: str


@dataclass(frozen=True)
class Report:
    """A report as the policy sent it.

    Args:
        to: The id of a person.
        rows: For each record its id, and values by the names of fields in tools.
    """

    to: str
    rows: tuple[Mapping[str, Any], ...]
    total: float | None = None


@dataclass(frozen=True, eq=False)
class Story:
    """A task; immutable, and shared by all episodes of it.

    Args:
        forms: The forms of the goal's programs.
        ends: How it should end, by the number of events that have happened.
        split: The split whose phrases the user draws from.
        twin_values: Values of cells that the world has other ones of: what makes it a twin.
    """

    world: World
    forms: tuple[str, ...]
    goal: Goal
    user: str
    request: str
    ends: tuple[End, ...]
    facts: tuple[Fact, ...] = ()
    details: tuple[Detail, ...] = ()
    events: tuple[Event, ...] = ()
    incidents: Incidents = Incidents()
    twin_values: tuple[tuple[Cell, Value], ...] = ()
    split: Split = "train"

    @functools.cached_property
    def store(self) -> Store:
        """The store at the beginning."""
        store = self.world.store
        for cell, value in self.twin_values:
            store = with_cell(self.world.schema, store, cell, value)
        return store

    @functools.cached_property
    def question(self) -> tuple[Entity, Field] | None:
        """The field that the answer is a value of; ``None`` where nothing is asked."""
        read = next((one for step in self.goal for one in _tells(step)), None)
        if read is None:
            return None
        entity = self.world.schema.entities[read.of.entity]
        return entity, entity.fields[read.field]

    def is_begun(self, store: Store) -> bool:
        """Return whether a record was changed that one of the ends changes, or one made where they have a new one."""
        records = {cell[:2] for end in self.ends for cell, _ in end.changed}
        made = {entity for end in self.ends for entity, _ in end.new}
        return any(
            address in records or (address[0] in made and store.first(*address) is None) for address in store.changed
        )

    def written(self, answer: Value) -> Value:
        """Return an answer as people write it: a record by its label."""
        return answer if self.question is None else _written(self.world, *self.question, answer)

    def is_answer(self, answer: Any, right: Value) -> bool:
        """Return whether an answer is the right one (:func:`is_value`); none is where nothing is asked."""
        return self.question is not None and is_value(self.world, *self.question, answer, right)


def _written(world: World, entity: Entity, one: Field, value: Value) -> Value:
    """Return a value as people write it: a record by its label."""
    if one.kind == "ref":
        return world.label(one.to, str(value)) if value in world.store.tables[one.to] else value
    return world.skin.written(entity, one, value)


def is_value(world: World, entity: Entity, one: Field, text: Any, right: Value) -> bool:
    """Return whether a text or number is a value of a field: a number, a date, the label or the id of a record.

    Quotes around it, a full stop after it, the commas of thousands and the field's unit make no difference.
    """
    written = _written(world, entity, one, right)
    text = " ".join(str(text).split()).strip(_QUOTES).removesuffix(".").strip(_QUOTES).casefold()
    if not isinstance(written, int):
        labels = {str(written).casefold()}
        return text in labels | ({str(right).casefold()} if isinstance(right, str) else set())
    text = _EUROS.sub("", text) if one.kind == "money" else text.removesuffix(one.unit or "").strip()
    number = _THOUSANDS.sub("", text).strip()
    try:
        return float(number) == written
    except (ValueError, OverflowError):
        return False


def is_report(world: World, report: Report, right: Sent) -> bool:
    """Return whether a report has the person, the total and the rows of the right one, and no other; in any order."""
    rows = {str(row.get("id")): row for row in report.rows}
    if (report.to, report.total, len(report.rows)) != (right.to, right.total, len(right.rows)):
        return False
    entity = world.schema.entities[right.entity]
    names = (entity.label, *right.fields)
    for number, values in right.rows:
        due = {
            world.skin.fields[entity.key, name]: (entity.fields[name], value)
            for name, value in zip(names, (world.label(entity.key, number), *values), strict=True)
        }
        row = rows.get(number, {})
        if row.keys() != {"id", *due}:
            return False
        if not all(is_value(world, entity, one, row[name], value) for name, (one, value) in due.items()):
            return False
    return True


def _tells(step: Step) -> Iterator[Read]:
    if isinstance(step, Tell):
        yield step.what
    elif isinstance(step, When):
        yield from _tells(step.then)
        if step.otherwise is not None:
            yield from _tells(step.otherwise)


def to_json(ends: tuple[End, ...]) -> str:
    """Return ends as the text of a task's ground truth."""
    return json.dumps({"ends": [_end_to_json(end) for end in ends]})


def from_json(text: str) -> tuple[End, ...]:
    """Return the ends of a ground truth; ``ValueError``: it is none of this environment's."""
    try:
        return tuple(_end_from_json(end) for end in json.loads(text)["ends"])
    except (TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"a ground truth of worlds is JSON with ends, not {text[:80]!r}: {error}") from None


def _end_to_json(end: End) -> dict[str, Any]:
    return {
        "changed": [[*cell, value] for cell, value in end.changed],
        "new": [[entity, list(record)] for entity, record in end.new],
        "answer": end.answer,
        "refused": end.refused,
        "left_out": list(end.left_out),
        "reports": [
            [one.to, one.entity, list(one.fields), [[number, *row] for number, row in one.rows], one.total]
            for one in end.reports
        ],
    }


def _end_from_json(raw: Mapping[str, Any]) -> End:
    changed = tuple(((entity, number, name), value) for entity, number, name, value in raw["changed"])
    new = tuple((entity, tuple(record)) for entity, record in raw["new"])
    reports = tuple(
        Sent(to, entity, tuple(fields), tuple((number, tuple(row)) for number, *row in rows), total)
        for to, entity, fields, rows, total in raw["reports"]
    )
    return End(changed, new, raw["answer"], raw["refused"], tuple(raw["left_out"]), reports)
