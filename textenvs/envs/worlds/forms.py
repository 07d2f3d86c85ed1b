"""Goals drawn by their form, with the records, fields and values of a world."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .applications import Entity, Field, Value, Verb
from .goals import (
    PERSON,
    Do,
    Follow,
    Goal,
    Literal,
    Make,
    Me,
    Named,
    Operand,
    Pick,
    Read,
    Report,
    Select,
    Source,
    Tell,
    When,
    Where,
)
from .rules import Duty, Prohibition, authorities, obligations, prohibitions
from .world import World

#: What the rules of the house do to a goal: forbid all or a part of it, allow what they forbid elsewhere, or require
#: something else as well; `none` is not about its verb.
Decision = typing.Literal["forbid", "allow", "require", "none"]


#: How often a part of a program has another beside it that the request excludes, while there may be more.
_EXCLUDED = 0.6


class NoneSuchError(Exception):
    """The world has nothing of the kind that a form needs."""


class Maker:
    """Draws parts of programs.

    Args:
        excludes: So many things, at most, the request names only to exclude them.
    """

    def __init__(
        self,
        world: World,
        user: str,
        hops: tuple[int, int],
        decision: Decision,
        rng: np.random.Generator,
        excludes: int = 0,
    ) -> None:
        self.excludes = excludes
        self.world, self.user, self.hops, self.decision, self.rng = world, user, hops, decision, rng
        self.entities = world.schema.entities
        rules: Sequence[Duty | Prohibition] = (
            obligations(world.rules) if decision == "require" else prohibitions(world.rules)
        )
        #: The verbs that the next one is drawn from; ``None`` for all.
        self.verbs: set[tuple[str, str]] | None = None
        if decision != "none":
            self.verbs = {(rule.entity, rule.verb) for rule in rules}

    def choose(self, things: Sequence[Any]) -> Any:
        if not things:
            raise NoneSuchError
        return things[int(self.rng.integers(len(things)))]

    def verb(self, *kinds: str) -> tuple[Entity, Verb]:
        verbs = [
            (entity, verb)
            for entity in self.entities.values()
            for verb in entity.verbs.values()
            if verb.kind in kinds and (self.verbs is None or (entity.key, verb.name) in self.verbs)
        ]
        return self.choose(verbs)  # type: ignore[no-any-return]

    def source(self, entity: str, hops: int | None = None) -> Source:
        """Draw a way to a record of an entity, over so many references."""
        count = int(self.rng.integers(self.hops[0], self.hops[1] + 1)) if hops is None else hops
        fields: list[tuple[str, str]] = []
        first = entity
        schema = self.world.schema
        for rest in range(count - 1, -1, -1):
            first, name = self.choose([one for one in schema.references[first] if schema.distances[one[0]] >= rest])
            fields.append((name, self.entities[first].fields[name].to))
        of: Source = Me() if first == PERSON and count and self.rng.random() < 0.5 else self.named(first)
        for name, to in reversed(fields):
            fields_to = (one.name for one in self.entities[of.entity].own_fields.values() if one.to == to)
            excluded = [other for other in fields_to if other != name]
            of = Follow(of, name, to, self.choose(excluded) if excluded and self._excludes() else "")
        return of

    def named(self, entity: str) -> Named:
        ids = self.world.ids(entity)
        one, *excluded = dict.fromkeys(self.world.label(entity, self.choose(ids)) for _ in range(3))
        return Named(entity, one, tuple(other for other in excluded if self._excludes()))

    def literal(self, field: Field) -> Literal:
        one, other = self.value(field), self.value(field)
        return Literal(one, other if one != other and self._excludes() else None)

    def _excludes(self) -> bool:
        """Return whether the request excludes something besides what is drawn now."""
        chosen = self.excludes > 0 and bool(self.rng.random() < _EXCLUDED)
        self.excludes -= chosen
        return chosen

    def field(self, entity: Entity, fits: Callable[[Field], bool]) -> Field:
        return self.choose([one for one in entity.own_fields.values() if fits(one)])  # type: ignore[no-any-return]

    def value(self, field: Field) -> Value:
        return self.choose(field.domain())  # type: ignore[no-any-return]

    def operand(self, field: Field, read: float = 0.0) -> Operand:
        """Draw what a field gets: a value, the value of another record's field, a record."""
        if field.kind == "ref":
            return self.source(field.to)
        if field.kind == "name":
            raise NoneSuchError
        if field.is_number and self.rng.random() < read:
            fields = [
                (one.key, other.name)
                for one in self.entities.values()
                for other in one.own_fields.values()
                if _holds_same(other, field)
            ]
            entity, name = self.choose(fields)
            return Read(self.source(entity, 1), name)
        return self.literal(field)

    def select(self, entity: Entity, verb: Verb | None = None, ref: Field | None = None) -> Select:
        """Draw conditions that a few records meet: a reference, and the state that a verb needs, or another."""
        if ref is None:
            ref = self.field(entity, lambda one: one.kind == "ref" and one.name not in (verb.gives if verb else ()))
        where = [Where(ref.name, "is", self.source(ref.to, int(self.rng.integers(self.hops[0] - 1, self.hops[0] + 1))))]
        needs = dict(verb.needs) if verb else {}
        where += [Where(name, "is", Literal(value)) for name, value in needs.items()]
        numbers = [
            one for one in entity.own_fields.values() if one.is_number and one.name not in (verb.gives if verb else ())
        ]
        if numbers and self.rng.random() < 0.5:
            one = self.choose(numbers)
            place = self.world.schema.places[entity.key][one.name]
            values = sorted(int(record[place]) for record in self.world.store.tables[entity.key].values())
            limit = values[int(len(values) * self.rng.uniform(0.3, 0.7))]
            where.append(Where(one.name, str(self.choose(("over", "under"))), Literal(limit)))
        return Select(entity.key, tuple(where))

    def do(self, target: Source | Select, verb: Verb, read: float = 0.0) -> Do:
        fields = self.entities[target.entity].fields
        return Do(target, verb.name, tuple((name, self.operand(fields[name], read)) for name in verb.gives))

    def condition(self, source: Source) -> Where:
        """Draw a condition on a record, which holds or does not."""
        entity = self.entities[source.entity]
        one = self.field(entity, lambda field: field.kind == "choice" or field.is_number)
        if one.kind == "choice":
            return Where(one.name, str(self.choose(("is", "not"))), Literal(self.value(one)))
        place = self.world.schema.places[entity.key][one.name]
        values = sorted(int(record[place]) for record in self.world.store.tables[entity.key].values())
        return Where(one.name, str(self.choose(("over", "under"))), Literal(values[len(values) // 2]))


def _act(make: Maker) -> Goal:
    entity, verb = make.verb("act")
    return (make.do(make.source(entity.key), verb),)


def _set(make: Maker) -> Goal:
    entity, verb = make.verb("change")
    return (make.do(make.source(entity.key), verb),)


def _copy(make: Maker) -> Goal:
    entity, verb = make.verb("change")
    return (make.do(make.source(entity.key), verb, 1.0),)


def _tell(make: Maker) -> Goal:
    source = make.source(make.choose(list(make.entities)))
    one = make.field(make.entities[source.entity], lambda field: field.is_number or field.kind == "ref")
    return (Tell(Read(source, one.name)),)


def _ask(make: Maker) -> Goal:
    entity = make.entities[make.choose(list(make.entities))]
    by = make.field(entity, lambda field: field.is_number)
    one = make.field(entity, lambda field: field is not by and (field.is_number or field.kind == "ref"))
    return (Tell(Read(Pick(make.select(entity), by.name, bool(make.rng.integers(2))), one.name)),)


def _extreme(make: Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    among = make.select(entity, verb)
    one = make.field(entity, lambda field: field.is_number)
    return (make.do(Pick(among, one.name, bool(make.rng.integers(2))), verb),)


def _each(make: Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    return (make.do(make.select(entity, verb), verb),)


def _when(make: Maker) -> Goal:
    source = make.source(make.choose([key for key in make.entities if make.world.schema.references[key]]), 1)
    entity, verb = make.verb("act", "change")
    other_entity, other_verb = make.choose(
        [(one, verb) for one in make.entities.values() for verb in one.verbs.values() if verb.kind != "create"]
    )
    then, otherwise = make.do(make.source(entity.key), verb), make.do(make.source(other_entity.key, 1), other_verb)
    return (When(source, make.condition(source), then, otherwise),)


def _if(make: Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    source = make.source(entity.key)
    condition = make.condition(source)
    if condition.field in {*verb.needs, *verb.gives}:  # what a verb needs is no condition: without it, it fails
        raise NoneSuchError
    return (When(source, condition, make.do(source, verb)),)


def _make(make: Maker) -> Goal:
    entity, verb = make.verb("create")
    label = make.world.free_label(entity, make.rng)
    gives: list[tuple[str, Operand]] = []
    for name in verb.gives:
        one = entity.fields[name]
        gives.append((name, Literal(label) if name == entity.label else make.operand(one, 0.5)))
    return (Make(entity.key, tuple(gives)),)


def _report(make: Maker) -> Goal:
    # Several records refer to one, on average.
    sizes = {key: len(make.world.ids(key)) for key in make.entities}
    entity, ref = make.choose(
        [
            (entity, one)
            for entity in make.entities.values()
            for one in entity.own_fields.values()
            if one.kind == "ref" and sizes[entity.key] >= _REFERRING * sizes[one.to]
        ]
    )
    of = make.select(entity, ref=ref)
    equal = {one.field for one in of.where if one.op == "is"}
    fields = [one for one in entity.own_fields.values() if one.name not in {entity.label, *equal}]
    if len(fields) < _COLUMNS[0]:
        raise NoneSuchError
    numbers = [one.name for one in fields if one.kind in ("number", "money")]
    total = str(make.choose(numbers)) if numbers and make.rng.random() < 0.5 else ""
    places = make.rng.permutation(len(fields))[: _COLUMNS[1]].tolist()
    return (Report(make.source(PERSON, 1), of, tuple(fields[place].name for place in places), total),)


def _stale(make: Maker) -> Goal:
    """Ask for a value of which there is a copy, by its place or by that of the copy, or give it to another record."""
    rule = make.choose(authorities(make.world.rules))
    holder = make.source(rule.entity, int(make.rng.integers(2)))
    by_copy = Read(holder, rule.copy), Read(Follow(holder, rule.through, rule.target), rule.original)
    read: Read = make.choose(by_copy)
    value = make.entities[rule.entity].fields[rule.copy]
    changes = [
        (entity, verb, name)
        for entity in make.entities.values()
        for verb in entity.verbs.values()
        for name in verb.gives
        if verb.kind == "change" and _holds_same(entity.fields[name], value)
    ]
    if not changes or make.rng.random() < _TELL_SHARE:
        return (Tell(read),)
    entity, verb, read_into = make.choose(changes)
    fields = entity.fields
    gives = tuple((name, read if name == read_into else make.operand(fields[name])) for name in verb.gives)
    return (Do(make.source(entity.key, 1), verb.name, gives),)


def _holds_same(one: Field, other: Field) -> bool:
    """Return whether two fields hold values of the same kind and range."""
    parts = (one.kind, one.to, one.low, one.high, one.step)
    return parts == (other.kind, other.to, other.low, other.high, other.step)


def _twice(make: Maker) -> Goal:
    first = make.choose((_set, _act, _copy))(make)
    make.verbs = None
    second = make.choose((_tell, _set, _act))(make)
    return (*first, *second)


#: How many fields a report has, at least and at most.
_COLUMNS = 3, 6
#: How many records there are, at least, for each that they refer to, of those that a report is about.
_REFERRING = 3
#: The share of goals that ask for a value of which there is a copy, where it could also be given to another record.
_TELL_SHARE = 0.5
#: Forms whose first verb may be one that a rule is about.
RULED = frozenset({"act", "set", "copy", "extreme", "each", "when", "if", "twice"})
FORMS: Mapping[str, Callable[[Maker], Goal]] = {
    "act": _act,
    "set": _set,
    "copy": _copy,
    "tell": _tell,
    "ask": _ask,
    "extreme": _extreme,
    "each": _each,
    "when": _when,
    "if": _if,
    "make": _make,
    "twice": _twice,
    "report": _report,
    "stale": _stale,
}
