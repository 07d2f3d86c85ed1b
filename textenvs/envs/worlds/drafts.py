"""Goals drawn for a world: programs of a schema, kept where every part of them decides.

A program is kept where it has one meaning, every naive variant of it ends in another state, and enough of the facts
that it reads are proven by twins (:mod:`.twins`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    naive,
    other_branch,
    traced,
)
from .rules import Rule, obligations, prohibitions, unconditional
from .twins import Fact, facts_of
from .view import Cell, View
from .world import SIZES, World

Decision = typing.Literal["forbid", "allow", "require", "none"]

#: What the rules of the house do to a goal: forbid all or a part of it, allow what they forbid elsewhere, or require
#: something else as well; `none` is not about its verb. Of the schemas with a verb that can have rules: so often.
_DECISIONS: Mapping[Decision, float] = {"forbid": 0.4, "allow": 0.34, "require": 0.18, "none": 0.08}
#: How many schemas are tried, and how many draws of each.
_SCHEMAS, _TRIES = 200, 40
#: How many records a selection has, at least, by schema, and at most.
_FEWEST, _MOST = {"ask": 3, "extreme": 3, "each": 2}, 8


@dataclass(frozen=True)
class Shape:
    """Goals of a level.

    Args:
        schemas: Names of the functions below, with weights.
        facts: How many facts, at least, are proven by seven twins, but for one that others change meanwhile.
    """

    schemas: Mapping[str, float]
    facts: int


SHAPES: Mapping[str, Shape] = {
    "easy": Shape({"act": 3, "set": 3, "tell": 1}, 1),
    "medium": Shape(
        {"act": 1, "set": 2, "tell": 1, "ask": 1, "extreme": 3, "each": 2, "when": 2, "if": 1, "make": 1, "twice": 2}, 2
    ),
    "hard": Shape({"ask": 1, "extreme": 3, "each": 3, "when": 3, "if": 1, "make": 1, "twice": 3, "copy": 2}, 3),
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


def draw_draft(world: World, level: str, rng: np.random.Generator) -> Draft:
    """Draw a goal for a world.

    RuntimeError: none was found in thousands of draws, which tests have not seen.
    """
    shape, people = SHAPES[level], world.ids(PERSON)
    names = list(shape.schemas)
    weights = np.array(list(shape.schemas.values()), dtype=float)
    name, decision = names[_drawn(weights, rng)], _decision(rng)
    ruled = weights * [name in RULED for name in names]
    for attempt in range(1, _SCHEMAS + 1):
        holds = bool(rng.integers(2))
        idle = name not in RULED or (name == "if" and not holds)  # it is not about a verb, or nothing is to be done
        for _ in range(_TRIES):
            user = people[int(rng.integers(len(people)))]
            maker = _Maker(world, user, SIZES[level].hops, "none" if idle else decision, rng)
            try:
                goal = SCHEMAS[name](maker)
            except _NoneSuchError:
                continue
            if (draft := _kept(world, name, goal, maker, holds, shape.facts)) is not None:
                return draft
        # The world has no such goal: another schema. What the rules do stays as long as it can, so it is as frequent
        # in all worlds.
        name = names[_drawn(ruled, rng)]
        decision = _decision(rng) if attempt % 16 == 0 else decision
    raise RuntimeError(f"world {world.name}: no goal after {_SCHEMAS * _TRIES} draws")


def _decision(rng: np.random.Generator) -> Decision:
    return list(_DECISIONS)[_drawn(np.array(list(_DECISIONS.values())), rng)]


def _drawn(weights: NDArray[np.float64], rng: np.random.Generator) -> int:
    """Draw the place of a weight."""
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _kept(world: World, name: str, goal: Goal, maker: _Maker, holds: bool, least: int) -> Draft | None:
    """Return the draft of a goal, or ``None``; ``holds``: whether its condition should hold, if it has one."""
    view = View(world.schema, world.store)
    try:
        trace = traced(goal, view, world.rules, maker.user)
    except NotMeantError:
        return None
    end = trace.end
    if not all(_FEWEST.get(name, 0) <= count <= _MOST for count in trace.found):
        return None
    if any(isinstance(step, When) and (step.then in trace.path) != holds for step in goal):
        return None
    if end == End() and name != "if":
        return None
    if decision_of(world, goal, maker.user, end) != maker.decision:
        return None
    variants = [*naive(trace.path if trace.path else goal), *filter(None, [other_branch(goal, trace.path)])]
    if any(_end(world, variant, world.rules, maker.user) == end for variant in variants):
        return None
    reads = tuple(view.cells)
    facts = facts_of(world, goal, maker.user, reads, end)
    if len(facts) < least:
        return None
    return Draft(name, goal, maker.user, end, reads, facts)


def decision_of(world: World, goal: Goal, user: str, end: End) -> Decision:
    """Return what the rules do to a goal that has this end: what differs without them, or if they held always."""
    if _end(world, goal, obligations(world.rules), user) != end:
        return "forbid"
    if _end(world, goal, unconditional(world.rules), user) != end:
        return "allow"
    return "require" if _end(world, goal, prohibitions(world.rules), user) != end else "none"


def _end(world: World, goal: Goal, rules: Sequence[Rule], user: str) -> End | None:
    try:
        return evaluate(goal, View(world.schema, world.store), rules, user)
    except NotMeantError:
        return None


class _NoneSuchError(Exception):
    """The world has nothing of the kind that a schema needs."""


class _Maker:
    """Draws parts of programs."""

    def __init__(
        self, world: World, user: str, hops: tuple[int, int], decision: Decision, rng: np.random.Generator
    ) -> None:
        self.world, self.user, self.hops, self.decision, self.rng = world, user, hops, decision, rng
        self.entities = world.schema.entities
        rules: Sequence[Rule] = obligations(world.rules) if decision == "require" else prohibitions(world.rules)
        #: The verbs that the next one is drawn from; ``None`` for all.
        self.verbs: set[tuple[str, str]] | None = None
        if decision != "none":
            self.verbs = {(rule.entity, rule.verb) for rule in rules}

    def choose(self, things: Sequence[Any]) -> Any:
        if not things:
            raise _NoneSuchError
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
        for left in range(count - 1, -1, -1):
            first, name = self.choose([one for one in schema.references[first] if schema.distances[one[0]] >= left])
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
        where = [Where(ref.name, "is", self.source(ref.to, int(self.rng.integers(self.hops[0] - 1, self.hops[0] + 1))))]
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


def _ask(make: _Maker) -> Goal:
    entity = make.entities[make.choose(list(make.entities))]
    by = make.field(entity, lambda field: field.is_number)
    one = make.field(entity, lambda field: field is not by and (field.is_number or field.kind == "ref"))
    return (Tell(Read(Pick(make.select(entity), by.name, bool(make.rng.integers(2))), one.name)),)


def _extreme(make: _Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    among = make.select(entity, verb)
    one = make.field(entity, lambda field: field.is_number)
    return (make.do(Pick(among, one.name, bool(make.rng.integers(2))), verb),)


def _each(make: _Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    return (make.do(make.select(entity, verb), verb),)


def _when(make: _Maker) -> Goal:
    source = make.source(make.choose([key for key in make.entities if make.world.schema.references[key]]), 1)
    entity, verb = make.verb("act", "change")
    other_entity, other_verb = make.choose(
        [(one, verb) for one in make.entities.values() for verb in one.verbs.values() if verb.kind != "create"]
    )
    then, otherwise = make.do(make.source(entity.key), verb), make.do(make.source(other_entity.key, 1), other_verb)
    return (When(source, make.condition(source), then, otherwise),)


def _if(make: _Maker) -> Goal:
    entity, verb = make.verb("act", "change")
    source = make.source(entity.key)
    condition = make.condition(source)
    if condition.field in {*verb.needs, *verb.gives}:  # what a verb needs is no condition: without it, it fails
        raise _NoneSuchError
    return (When(source, condition, make.do(source, verb)),)


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
    make.verbs = None
    second = make.choose((_tell, _set, _act))(make)
    return (*first, *second)


#: Schemas whose first verb may be one that a rule is about.
RULED = frozenset({"act", "set", "copy", "extreme", "each", "when", "if", "twice"})
SCHEMAS: Mapping[str, Callable[[_Maker], Goal]] = {
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
}
