"""Goals drawn for a world: programs of a schema, kept where every part of them decides.

A program is kept where it has one meaning, every naive variant of it ends in another state, and enough of the facts
that it reads are proven by twins (:mod:`.twins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .applications import Entity, Field, Value, Verb
from .goals import (
    PERSON,
    Do,
    End,
    Follow,
    Goal,
    Literal,
    Make,
    Me,
    Named,
    NotMeantError,
    Operand,
    Pick,
    Read,
    Select,
    Source,
    Tell,
    When,
    Where,
    evaluate,
    flattened,
    naive,
    other_branch,
)
from .patterns import is_drawn
from .rules import Rule
from .twins import Fact, facts_of
from .view import Cell, View
from .world import World

#: How often a goal is kept that the rules forbid: more than half of those that they decide are of these.
_REFUSED = 0.2
#: How many kinds of goal (schema, and whether a rule decides) are tried, and how many draws of each.
_KINDS, _TRIES = 40, 150
#: How often a rule decides, of the schemas with a verb that has one; of fields none does.
_RULED = 0.6


@dataclass(frozen=True)
class Shape:
    """Goals of a level.

    Args:
        schemas: Names of the functions below, with weights.
        hops: References that are followed to a record, the least and the most.
        facts: How many facts, at least, are proven by seven twins.
    """

    schemas: Mapping[str, float]
    hops: tuple[int, int]
    facts: int


SHAPES: Mapping[str, Shape] = {
    "easy": Shape({"act": 3, "set": 3, "tell": 2}, (1, 2), 1),
    "medium": Shape(
        {"act": 1, "set": 2, "tell": 1, "extreme": 2, "each": 2, "when": 2, "make": 1, "twice": 2}, (1, 2), 2
    ),
    "hard": Shape({"extreme": 2, "each": 3, "when": 3, "make": 1, "twice": 3, "copy": 2}, (2, 3), 3),
}


@dataclass(frozen=True)
class Draft:
    """A goal in a world, with its end and the facts that are proven."""

    schema: str
    goal: Goal
    user: str
    end: End
    reads: tuple[Cell, ...]
    facts: tuple[Fact, ...]


def draw_draft(world: World, level: str, rng: np.random.Generator, goals: str = "all") -> Draft:
    """Draw a goal for a world, of the ``goals`` (:mod:`.patterns`).

    RuntimeError: none was found in thousands of draws, which tests have not seen.
    """
    shape = SHAPES[level]
    names = list(shape.schemas)
    weights = np.array(list(shape.schemas.values()), dtype=float)
    people = world.ids(PERSON)
    for _ in range(_KINDS):
        name = names[int(rng.choice(len(names), p=weights / weights.sum()))]
        ruled = name in RULED and bool(rng.random() < _RULED)
        for _ in range(_TRIES):
            maker = _Maker(world, people[int(rng.integers(len(people)))], shape, ruled, rng)
            try:
                goal = SCHEMAS[name](maker)
            except _NoneSuchError:
                continue
            if is_drawn(goal, goals) and (draft := _kept(world, name, goal, maker, ruled)) is not None:
                return draft
    raise RuntimeError(f"world {world.name}: no goal after {_KINDS * _TRIES} draws")


def _kept(world: World, name: str, goal: Goal, maker: _Maker, ruled: bool) -> Draft | None:
    view = View(world.schema, world.store)
    try:
        end = evaluate(goal, view, world.rules, maker.user)
    except NotMeantError:
        return None
    if end == End() or (ruled and _end(world, goal, (), maker.user) == end):
        return None
    if end.refused and maker.rng.random() > _REFUSED:
        return None
    reads = tuple(view.cells)
    path = flattened(goal, View(world.schema, world.store), world.rules, maker.user)
    variants = [*naive(path), *filter(None, [other_branch(goal, path)])]
    if any(_end(world, variant, world.rules, maker.user) == end for variant in variants):
        return None
    facts = facts_of(world, goal, maker.user, reads, end)
    if sum(fact.proven for fact in facts) < maker.shape.facts:
        return None
    return Draft(name, goal, maker.user, end, reads, facts)


def _end(world: World, goal: Goal, rules: Sequence[Rule], user: str) -> End | None:
    try:
        return evaluate(goal, View(world.schema, world.store), rules, user)
    except NotMeantError:
        return None


class _NoneSuchError(Exception):
    """The world has nothing of the kind that a schema needs."""


class _Maker:
    """Draws parts of programs."""

    def __init__(self, world: World, user: str, shape: Shape, ruled: bool, rng: np.random.Generator) -> None:
        self.world, self.user, self.shape, self.rng = world, user, shape, rng
        self.entities = world.schema.entities
        self.ruled = ruled  # whether the next verb is one that a rule is about

    def choose(self, things: Sequence[Any]) -> Any:
        if not things:
            raise _NoneSuchError
        return things[int(self.rng.integers(len(things)))]

    def verb(self, *kinds: str) -> tuple[Entity, Verb]:
        ruled = {(rule.entity, rule.verb) for rule in self.world.rules}
        verbs = [
            (entity, verb)
            for entity in self.entities.values()
            for verb in entity.verbs.values()
            if verb.kind in kinds and (not self.ruled or (entity.key, verb.name) in ruled)
        ]
        return self.choose(verbs)  # type: ignore[no-any-return]

    def source(self, entity: str, hops: int | None = None) -> Source:
        """Draw a way to a record of an entity, over so many references."""
        count = int(self.rng.integers(self.shape.hops[0], self.shape.hops[1] + 1)) if hops is None else hops
        fields: list[tuple[str, str]] = []
        first = entity
        for _ in range(count):
            first, name = self.choose(self.world.schema.references[first])
            fields.append((name, self.entities[first].fields[name].to))
        of: Source = Me() if first == PERSON and count and self.rng.random() < 0.5 else self.named(first)
        for name, to in reversed(fields):
            of = Follow(of, name, to)
        return of

    def named(self, entity: str) -> Named:
        return Named(entity, self.world.label(entity, self.choose(self.world.ids(entity))))

    def field(self, entity: Entity, fits: Callable[[Field], bool]) -> Field:
        return self.choose([one for one in entity.fields.values() if fits(one)])  # type: ignore[no-any-return]

    def value(self, field: Field) -> Value:
        return self.choose(field.domain())  # type: ignore[no-any-return]

    def operand(self, field: Field, read: float = 0.0) -> Operand:
        """Draw what a field gets: a value, the value of another record's field, a record."""
        if field.kind == "ref":
            return self.source(field.to)
        if field.kind == "name":
            raise _NoneSuchError
        if field.is_number and self.rng.random() < read:
            fields = [
                (one.key, other.name)
                for one in self.entities.values()
                for other in one.fields.values()
                if (other.kind, other.low, other.high, other.step) == (field.kind, field.low, field.high, field.step)
            ]
            entity, name = self.choose(fields)
            return Read(self.source(entity, 1), name)
        return Literal(self.value(field))

    def select(self, entity: Entity, verb: Verb | None = None) -> Select:
        """Draw conditions that a few records meet: a reference, and the state that a verb needs, or another."""
        ref = self.field(entity, lambda one: one.kind == "ref" and one.name not in (verb.gives if verb else ()))
        where = [Where(ref.name, "is", self.source(ref.to, int(self.rng.integers(0, 2))))]
        needs = dict(verb.needs) if verb else {}
        where += [Where(name, "is", Literal(value)) for name, value in needs.items()]
        numbers = [
            one for one in entity.fields.values() if one.is_number and one.name not in (verb.gives if verb else ())
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


def _act(make: _Maker) -> Goal:
    entity, verb = make.verb("act")
    return (make.do(make.source(entity.key), verb),)


def _set(make: _Maker) -> Goal:
    entity, verb = make.verb("change")
    return (make.do(make.source(entity.key), verb),)


def _copy(make: _Maker) -> Goal:
    entity, verb = make.verb("change")
    return (make.do(make.source(entity.key), verb, 1.0),)


def _tell(make: _Maker) -> Goal:
    source = make.source(make.choose(list(make.entities)))
    one = make.field(make.entities[source.entity], lambda field: field.is_number or field.kind == "ref")
    return (Tell(Read(source, one.name)),)


def _extreme(make: _Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    among = make.select(entity, verb)
    one = make.field(entity, lambda field: field.is_number)
    return (make.do(Pick(among, one.name, bool(make.rng.integers(2))), verb),)


def _each(make: _Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    return (make.do(make.select(entity, verb), verb),)


def _when(make: _Maker) -> Goal:
    source = make.source(make.choose(list(make.entities)), 1)
    entity, verb = make.verb("act", "change")
    other_entity, other_verb = make.choose(
        [(one, verb) for one in make.entities.values() for verb in one.verbs.values() if verb.kind != "create"]
    )
    then, otherwise = make.do(make.source(entity.key), verb), make.do(make.source(other_entity.key, 1), other_verb)
    return (When(source, make.condition(source), then, otherwise),)


def _make(make: _Maker) -> Goal:
    entity, verb = make.verb("create")
    label = make.world.free_label(entity, make.rng)
    gives: list[tuple[str, Operand]] = []
    for name in verb.gives:
        one = entity.fields[name]
        gives.append((name, Literal(label) if name == entity.label else make.operand(one, 0.5)))
    return (Make(entity.key, tuple(gives)),)


def _twice(make: _Maker) -> Goal:
    first = make.choose((_set, _act, _copy))(make)
    make.ruled = False
    second = make.choose((_tell, _set, _act))(make)
    return (*first, *second)


#: Schemas whose first verb may be one that a rule is about.
RULED = frozenset({"act", "set", "copy", "extreme", "each", "when", "twice"})
SCHEMAS: Mapping[str, Callable[[_Maker], Goal]] = {
    "act": _act,
    "set": _set,
    "copy": _copy,
    "tell": _tell,
    "extreme": _extreme,
    "each": _each,
    "when": _when,
    "make": _make,
    "twice": _twice,
}
