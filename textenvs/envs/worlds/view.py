"""A store that is looked at through the world's schema, and that notes what was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from .applications import Value, Verb
from .schema import Schema
from .store import Record, Store

#: A cell that was read: entity, id, field.
Cell: TypeAlias = "tuple[str, str, str]"
#: A look at records: ``("find", entity, values by field)``, or ``("get", entity, id)``.
Look: TypeAlias = "tuple[str, str, tuple[tuple[str, Value], ...]] | tuple[str, str, str]"
#: A verb on a record: entity, verb, id, what it gives. The id is empty for a new record.
Act: TypeAlias = "tuple[str, str, str, tuple[tuple[str, Value], ...]]"


class CannotBeDoneError(Exception):
    """A verb that the record refuses (the message is the field that is why), or a record that is not there."""


@dataclass
class View:
    """A store with its schema, and what was read and done, in order."""

    schema: Schema
    store: Store
    cells: dict[Cell, None] = field(default_factory=dict)
    looks: dict[Look, None] = field(default_factory=dict)
    acts: list[Act] = field(default_factory=list)

    def value(self, entity: str, number: str, name: str) -> Value:
        """Return the value of a field, and note that it was read."""
        self.cells[entity, number, name] = None
        self.looks["get", entity, number] = None
        record = self.store.get(entity, number)
        if record is None:
            raise CannotBeDoneError(f"there is no {entity} {number}")
        return record[self.schema.places[entity][name]]

    def find(self, entity: str, values: Mapping[str, Value]) -> list[str]:
        """Return the ids of records with these values, and note the search."""
        order = self.schema.places[entity]
        self.looks["find", entity, tuple(sorted(values.items(), key=lambda item: order[item[0]]))] = None
        return [number for number, _ in self.matching(entity, values)]

    def matching(self, entity: str, values: Mapping[str, Value]) -> list[tuple[str, Record]]:
        """Return the ids and records with these values."""
        places = self.schema.places[entity]
        return self.store.matching(entity, {places[name]: value for name, value in values.items()})

    def act(self, entity: str, verb: Verb, number: str, gives: Mapping[str, Value]) -> None:
        """Do a verb on a record; CannotBeDoneError: the record refuses."""
        self.store = applied(self.schema, self.store, entity, verb, number, gives)
        self.acts.append((entity, verb.name, number, tuple(gives.items())))

    def make(self, entity: str, verb: Verb, gives: Mapping[str, Value]) -> None:
        self.store, _ = made(self.schema, self.store, entity, verb, gives)
        self.acts.append((entity, verb.name, "", tuple(gives.items())))


def applied(schema: Schema, store: Store, entity: str, verb: Verb, number: str, gives: Mapping[str, Value]) -> Store:
    """Return the store after a verb on a record that is there.

    CannotBeDoneError: the record is not in the state that the verb needs.
    """
    places, record = schema.places[entity], store.get(entity, number)
    if record is None:
        raise CannotBeDoneError(f"there is no {entity} {number}")
    for name, value in verb.needs.items():
        if record[places[name]] != value:
            raise CannotBeDoneError(name)
    values = list(record)
    for name, value in {**verb.sets, **gives}.items():
        values[places[name]] = value
    return store.put(entity, number, tuple(values))


def made(schema: Schema, store: Store, entity: str, verb: Verb, gives: Mapping[str, Value]) -> tuple[Store, str]:
    """Return the store with a new record, and its id."""
    values = {**verb.sets, **gives}
    number = store.new_id(entity)
    return store.put(entity, number, tuple(values[name] for name in schema.entities[entity].fields)), number


def with_cell(schema: Schema, store: Store, cell: Cell, value: Value) -> Store:
    """Return the store as if it had begun with another value in a cell."""
    entity, number, name = cell
    return store.begun_with(entity, number, schema.places[entity][name], value)
