"""A world, drawn from a seed: applications, what they are called, people and records, and the rules of the house."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ...text import load_yaml
from .applications import Entity, Field, applications
from .rules import Rule, draw_authorities, draw_rules
from .schema import ALWAYS, PERSON, Schema, schema_of
from .skin import Skin
from .store import Store, Table, Tables

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[str, ...] = get_args(Level)

_WORDS: Mapping[str, list[str]] = load_yaml(__package__, "words.yaml")
#: So many records a table has at least: every reference has other values by which a twin differs.
_FEWEST = 12
#: The share of copies that are drawn anew, so that nearly all of them are stale.
_STALE = 0.5


@dataclass(frozen=True)
class Size:
    """Sizes of a level's worlds: of each pair, the least and the most."""

    applications: tuple[int, int]
    records: tuple[int, int]
    rules: tuple[int, int]
    hops: tuple[int, int]  # references that are followed to a record


SIZES: Mapping[str, Size] = {
    "easy": Size((2, 3), (150, 250), (3, 3), (1, 2)),
    "medium": Size((4, 5), (800, 1200), (4, 5), (1, 2)),
    "hard": Size((6, 8), (2500, 5000), (5, 7), (2, 3)),
}


@dataclass(frozen=True, eq=False)
class World:
    """A world; immutable, and shared by all episodes in it.

    Args:
        skin: The names in tools and results.
        speech: The names that users say.
        store: The records at the beginning.
    """

    name: str
    schema: Schema
    skin: Skin
    speech: Skin
    store: Store
    rules: tuple[Rule, ...]
    #: What names make of a world once, for example its tools.
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def ids(self, entity: str) -> Sequence[str]:
        """Return the ids of the records that were there at the beginning."""
        if ("ids", entity) not in self.cache:
            self.cache["ids", entity] = tuple(self.store.tables[entity])
        ids: Sequence[str] = self.cache["ids", entity]
        return ids

    def label(self, entity: str, number: str) -> str:
        """Return what people call a record that was there at the beginning."""
        return str(self.store.tables[entity][number][self.schema.places[entity][self.schema.entities[entity].label]])

    def labels(self, entity: str) -> set[str]:
        """Return the labels of all records of an entity."""
        place = self.schema.places[entity][self.schema.entities[entity].label]
        return {str(record[place]) for record in self.store.tables[entity].values()}

    def free_label(self, entity: Entity, rng: np.random.Generator) -> str:
        """Draw a label that no record of an entity has."""
        labels = self.labels(entity.key)
        words = entity.fields[entity.label].words
        assert words is not None  # the loader has checked it
        while True:
            first, last = (_WORDS[name][int(rng.integers(len(_WORDS[name])))] for name in words)
            if (label := f"{first} {last}") not in labels:
                return label


def draw_world(level: str, name: str, allowed: tuple[str, ...] | None = None, kinds: int | None = None) -> World:
    """Draw the world of a name: the same for the same level, name and applications.

    Args:
        level: One of :data:`LEVELS`.
        name: Decides everything, for example ``"easy/train/0/17"``.
        allowed: The applications to draw from, besides the people; ``None`` for all.
        kinds: How many kinds of records it has at most, people among them; ``None``: those of its applications.
    """
    size = SIZES[level]
    rng = np.random.default_rng([*f"worlds/{name}".encode()])
    names = [one for one in (allowed or applications()) if one != ALWAYS]
    count = min(int(rng.integers(size.applications[0], size.applications[1] + 1)) - 1, len(names))
    chosen = sorted(rng.choice(len(names), count, replace=False).tolist())
    schema = schema_of((ALWAYS, *(names[place] for place in chosen)))
    if kinds is not None:
        schema = schema_of(tuple(schema.applications), _linked_kinds(schema, kinds, rng))
    skin = Skin.draw(schema, rng)
    speech = skin if level == "easy" else Skin.draw(schema, rng)
    store = Store(Tables(_Draws(schema, name, int(rng.integers(size.records[0], size.records[1] + 1)))))
    rules = draw_rules(schema, store, int(rng.integers(size.rules[0], size.rules[1] + 1)), size.hops[0], rng)
    return World(name, schema, skin, speech, store, (*rules, *draw_authorities(schema, rng)))


def _linked_kinds(schema: Schema, count: int, rng: np.random.Generator) -> frozenset[str]:
    """Draw kinds of records: people, then others to or from which references lead, of other applications first."""
    chosen = {PERSON}
    links = {(key, one.to) for key, entity in schema.entities.items() for one in entity.own_fields.values() if one.to}
    while len(chosen) < count:
        linked = sorted({end for link in links if chosen & {*link} for end in link} - chosen)
        if not linked:
            break
        choices = [key for key in linked if schema.entities[key].application != ALWAYS] or linked
        chosen.add(choices[int(rng.integers(len(choices)))])
    return frozenset(chosen)


class _Draws:
    """Draws the tables of a world, each when it is first needed and from randomness of its own."""

    def __init__(self, schema: Schema, name: str, total: int) -> None:
        self._schema, self._name = schema, name
        shares = sum(entity.share for entity in schema.entities.values())
        self._counts = {key: self._count(entity, total, shares) for key, entity in schema.entities.items()}
        self._ids: dict[str, list[str]] = {}
        self._columns: dict[str, dict[str, list[Any]]] = {}  # by entity, of the fields that are no copies

    def _count(self, entity: Entity, total: int, shares: int) -> int:
        names = entity.fields[entity.label].words
        assert names is not None  # the loader has checked it
        labels = len(_WORDS[names[0]]) * len(_WORDS[names[1]])
        return min(max(_FEWEST, total * entity.share // shares), 4 * labels // 5)  # new records need labels, too

    def _rng(self, entity: str, part: str) -> np.random.Generator:
        return np.random.default_rng([*f"worlds/{self._name}/{entity}/{part}".encode()])

    def _ids_of(self, entity: str) -> list[str]:
        if entity not in self._ids:
            letter = entity.partition(".")[2][0].upper()
            numbers = 1000 + self._rng(entity, "ids").choice(9000, self._counts[entity], replace=False)
            self._ids[entity] = [f"{letter}{number}" for number in numbers.tolist()]
        return self._ids[entity]

    def __call__(self, entity: str) -> Table:
        """Return a table."""
        own, fields = self._own_columns(entity), self._schema.entities[entity].fields
        columns = [own[name] if name in own else self._copy(entity, one, own) for name, one in fields.items()]
        return dict(zip(self._ids_of(entity), zip(*columns, strict=True), strict=True))

    def _own_columns(self, entity: str) -> dict[str, list[Any]]:
        if entity not in self._columns:
            rng, count = self._rng(entity, "records"), len(self._ids_of(entity))
            fields = self._schema.entities[entity].own_fields
            self._columns[entity] = {name: self._column(one, count, rng) for name, one in fields.items()}
        return self._columns[entity]

    def _copy(self, entity: str, field: Field, own: Mapping[str, list[Any]]) -> list[Any]:
        """Draw a column that repeats one of another table, with other values in :data:`_STALE` of the records."""
        assert field.copy_of is not None
        through, original = field.copy_of
        target = self._schema.entities[entity].fields[through].to
        originals = dict(zip(self._ids_of(target), self._own_columns(target)[original], strict=True))
        rng = self._rng(entity, f"copy {field.name}")
        drawn = self._column(field, len(own[through]), rng)
        stale = (rng.random(len(drawn)) < _STALE).tolist()
        return [
            other if is_stale else originals[number]
            for other, is_stale, number in zip(drawn, stale, own[through], strict=True)
        ]

    def _column(self, field: Field, count: int, rng: np.random.Generator) -> list[Any]:
        if field.kind == "name":
            assert field.words is not None
            first, last = (_WORDS[name] for name in field.words)
            numbers = rng.choice(len(first) * len(last), count, replace=False).tolist()
            return [f"{first[number // len(last)]} {last[number % len(last)]}" for number in numbers]
        if field.kind == "ref":
            targets = self._ids_of(field.to)
            return [targets[place] for place in rng.integers(0, len(targets), count).tolist()]
        if field.kind == "choice":
            # Three in five records have the first value: what most verbs need.
            values = list(field.values)
            weights = np.full(len(values), 0.4 / max(1, len(values) - 1))
            weights[0] = 1.0 - weights[1:].sum()
            return [values[place] for place in rng.choice(len(values), count, p=weights).tolist()]
        return (field.low + field.step * rng.integers(0, len(field.domain()), count)).tolist()  # type: ignore[no-any-return]
