"""An immutable relational store: a world's records, and what has changed since.

A table has its records as tuples, by id. The records of a world are drawn once and never changed; a :class:`Store` adds
the records that were changed or made to them. To fork it is to keep it, and its difference from the beginning is what
it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .applications import Value

#: A record: the values of its entity's fields, in their order.
Record: TypeAlias = "tuple[Value, ...]"
#: Records by id.
Table: TypeAlias = "Mapping[str, Record]"
#: The entity and the id of a record.
Address: TypeAlias = "tuple[str, str]"


class Tables:
    """The records of a world at its beginning, by entity and id; each table is made when it is first needed.

    It keeps an index for each field that was searched by.
    """

    def __init__(self, make: Callable[[str], Table]) -> None:
        self._make = make
        self._tables: dict[str, Table] = {}
        self._indexes: dict[tuple[str, int], dict[Value, list[str]]] = {}
        self._orders: dict[str, dict[str, int]] = {}

    def __getitem__(self, entity: str) -> Table:
        if entity not in self._tables:
            self._tables[entity] = self._make(entity)
        return self._tables[entity]

    def order(self, entity: str) -> Mapping[str, int]:
        """Return the places of the ids in a table."""
        if entity not in self._orders:
            self._orders[entity] = {number: place for place, number in enumerate(self[entity])}
        return self._orders[entity]

    def ids(self, entity: str, place: int, value: Value) -> list[str]:
        """Return the ids of the records with this value in this place."""
        index = self._indexes.get((entity, place))
        if index is None:
            index = {}
            for number, record in self[entity].items():
                index.setdefault(record[place], []).append(number)
            self._indexes[entity, place] = index
        return index.get(value, [])


@dataclass(frozen=True)
class Store:
    """Records by entity and id.

    Args:
        tables: The records of the world, shared by all its stores.
        begun: Records that began as others than the world's: of a twin, or by somebody else's hand.
        changed: The records that are others than at the beginning, or new.
    """

    tables: Tables = field(compare=False, repr=False)
    begun: Mapping[Address, Record] = field(default_factory=dict)
    changed: Mapping[Address, Record] = field(default_factory=dict)

    def beginning(self) -> Store:
        """Return the store without changes."""
        return Store(self.tables, self.begun)

    def first(self, entity: str, number: str) -> Record | None:
        """Return a record as it was at the beginning; ``None`` where there was none of this id."""
        return self.begun.get((entity, number)) or self.tables[entity].get(number)

    def get(self, entity: str, number: str) -> Record | None:
        """Return a record; ``None`` where there is none of this id."""
        return self.changed.get((entity, number)) or self.first(entity, number)

    def records(self, entity: str) -> Iterator[tuple[str, Record]]:
        """Yield the ids and records of a table; new ones come last."""
        table, overrides = self.tables[entity], self._overrides(entity)
        if not overrides:
            yield from table.items()
            return
        for number, record in table.items():
            yield number, overrides.pop(number, record)
        yield from overrides.items()

    def matching(self, entity: str, values: Mapping[int, Value]) -> list[tuple[str, Record]]:
        """Return the ids and records that have these values in these places, in the order of the table."""
        if not values:
            return list(self.records(entity))
        table, overrides = self.tables[entity], self._overrides(entity)
        lists = [self.tables.ids(entity, place, value) for place, value in values.items()]
        shortest = min(lists, key=len)
        if not overrides:
            if len(lists) == 1:
                return [(number, table[number]) for number in shortest]
            matches = [(number, table[number]) for number in shortest]
            return [one for one in matches if all(one[1][place] == value for place, value in values.items())]
        matches = [(number, table[number]) for number in shortest if number not in overrides]
        matches += overrides.items()
        matches = [one for one in matches if all(one[1][place] == value for place, value in values.items())]
        order = self.tables.order(entity)
        return sorted(matches, key=lambda one: order.get(one[0], len(order)))

    def put(self, entity: str, number: str, record: Record) -> Store:
        """Return the store with this record; as at the beginning, it is no change."""
        changed = {**self.changed, (entity, number): record}
        if self.first(entity, number) == record:
            del changed[entity, number]
        return Store(self.tables, self.begun, changed)

    def begun_with(self, entity: str, number: str, place: int, value: Value) -> Store:
        """Return the store as if a record had begun with another value in a place, and the same change had been made.

        What was changed to this value is then no change any more.
        """
        before = self.first(entity, number)
        assert before is not None
        after = (*before[:place], value, *before[place + 1 :])
        store = replace(self, begun={**self.begun, (entity, number): after})
        if (changed := self.changed.get((entity, number))) is None:
            return store
        if changed[place] == before[place]:  # not changed in this place
            changed = (*changed[:place], value, *changed[place + 1 :])
        return store.put(entity, number, changed)

    def new_id(self, entity: str) -> str:
        """Return the id of the next record that is made; no id of a world has five digits."""
        made = sum(name == entity and self.first(name, number) is None for name, number in self.changed)
        return f"{next(iter(self.tables[entity]))[0]}{10000 + made}"

    def _overrides(self, entity: str) -> dict[str, Record]:
        """Return the records of an entity that are others than the world's."""
        if not self.begun and not self.changed:
            return {}
        both = (*self.begun.items(), *self.changed.items())
        return {number: record for (name, number), record in both if name == entity}
