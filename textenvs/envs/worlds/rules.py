"""Rules of the house, drawn with a world, as functions for what is right; :mod:`.house` puts them into words.

No tool keeps a rule: to break one is possible, and wrong.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from .applications import Entity, Field, Value, Verb
from .schema import PERSON, Schema
from .store import Store
from .view import CannotBeDoneError, View

GRADE = "grade"


@dataclass(frozen=True)
class Limit:
    """A verb is not allowed on records whose number is above a limit, or below it where it is not ``over``."""

    entity: str
    verb: str
    field: str
    limit: int
    over: bool = True

    def forbids(self, view: View, user: str, number: str, gives: Mapping[str, Value]) -> bool:
        value = gives[self.field] if self.field in gives else view.value(self.entity, number, self.field)
        return int(value) > self.limit if self.over else int(value) < self.limit


@dataclass(frozen=True)
class Linked:
    """A verb is not allowed on records that refer to a record of a certain state, or of another where it is not so."""

    entity: str
    verb: str
    field: str  # the reference
    target: str
    state: str  # a choice of the target
    value: str
    has: bool = True

    def forbids(self, view: View, user: str, number: str, gives: Mapping[str, Value]) -> bool:
        target = gives[self.field] if self.field in gives else view.value(self.entity, number, self.field)
        return (view.value(self.target, str(target), self.state) == self.value) == self.has


@dataclass(frozen=True)
class Rank:
    """A verb is allowed only to users of a grade."""

    entity: str
    verb: str
    grade: int

    def forbids(self, view: View, user: str, number: str, gives: Mapping[str, Value]) -> bool:
        return int(view.value(PERSON, user, GRADE)) < self.grade


@dataclass(frozen=True)
class Duty:
    """After a verb on a record, another is due on the record that it refers to, where its state allows that."""

    entity: str
    verb: str
    field: str
    target: str
    then: str  # a verb of the target, an act

    def do(self, view: View, number: str) -> None:
        target = str(view.value(self.entity, number, self.field))
        verb = view.schema.entities[self.target].verbs[self.then]
        for name in verb.needs:
            view.value(self.target, target, name)
        with contextlib.suppress(CannotBeDoneError):
            view.act(self.target, verb, target, {})


@dataclass(frozen=True)
class Authority:
    """A field that repeats one of another record, and whether it is right where the two differ."""

    entity: str
    copy: str
    through: str  # the reference to the record that has the original
    target: str
    original: str
    copy_is_right: bool


Prohibition: TypeAlias = "Limit | Linked | Rank"
Rule: TypeAlias = "Limit | Linked | Rank | Duty | Authority"

#: How often a prohibition has a second one about the same verb.
_SECOND = 0.5
#: The most rules about copies in a world.
_AUTHORITIES = 2
#: A grade that nobody has.
_NOBODY = 1000


def prohibitions(rules: Sequence[Rule]) -> tuple[Prohibition, ...]:
    """Return the rules that forbid something."""
    return tuple(rule for rule in rules if isinstance(rule, Limit | Linked | Rank))


def obligations(rules: Sequence[Rule]) -> tuple[Duty, ...]:
    """Return the rules by which something else is due."""
    return tuple(rule for rule in rules if isinstance(rule, Duty))


def authorities(rules: Sequence[Rule]) -> tuple[Authority, ...]:
    """Return the rules about copies."""
    return tuple(rule for rule in rules if isinstance(rule, Authority))


def unconditional(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return rules with prohibitions that hold always: what somebody keeps who does not look whether they apply."""
    always = tuple(Rank(rule.entity, rule.verb, _NOBODY) for rule in prohibitions(rules))
    return (*always, *obligations(rules), *authorities(rules))


def with_copies_reversed(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Return rules in which copies are right where they are wrong, and the other way round."""
    return tuple(
        replace(rule, copy_is_right=not rule.copy_is_right) if isinstance(rule, Authority) else rule for rule in rules
    )


def forbidden(
    rules: Sequence[Rule], view: View, user: str, entity: str, verb: str, number: str, gives: Mapping[str, Value]
) -> bool:
    """Return whether a rule forbids a verb on a record."""
    # Not any(...): what is right must not depend on the order of the rules, and neither should what is read for it.
    about = [rule for rule in prohibitions(rules) if (rule.entity, rule.verb) == (entity, verb)]
    return bool([rule for rule in about if rule.forbids(view, user, number, gives)])


def duties(rules: Sequence[Rule], entity: str, verb: str) -> list[Duty]:
    """Return what is due after a verb."""
    return [rule for rule in obligations(rules) if (rule.entity, rule.verb) == (entity, verb)]


def draw_rules(schema: Schema, store: Store, count: int, hops: int, rng: np.random.Generator) -> tuple[Rule, ...]:
    """Draw rules, each about another verb: in turn a prohibition of an act, one of a change, and a duty.

    The first three are about records to which so many references in a row lead. No rule is about a verb that is a
    duty: what is due is never forbidden. Half of the prohibitions have another one about the same verb besides, so
    which of them applies has to be found out; these are not counted.
    """
    verbs = [
        (entity, verb) for entity in schema.entities.values() for verb in entity.verbs.values() if verb.kind != "create"
    ]
    drawn = [verbs[place] for place in rng.permutation(len(verbs)).tolist()]
    rules: list[Limit | Linked | Rank | Duty] = []
    ruled: set[tuple[str, str]] = set()
    for number, kind in zip(range(count), itertools.cycle(("act", "change", "duty")), strict=False):
        for entity, verb in drawn:
            if (entity.key, verb.name) in ruled or kind not in (verb.kind, "duty"):
                continue
            if number < 3 and schema.distances[entity.key] < hops:
                continue
            makers = [maker for maker in _makers(schema, entity, verb) if (maker[0] == "duty") == (kind == "duty")]
            if kind == "duty":
                makers = [maker for maker in makers if maker[1] and (maker[1].to, maker[2]) not in ruled]
            if makers:
                rules.append(rule := _rule(schema, store, entity, verb, makers[int(rng.integers(len(makers)))], rng))
                ruled.add((rule.entity, rule.verb))
                if isinstance(rule, Duty):
                    ruled.add((rule.target, rule.then))
                elif len(makers) > 1 and rng.random() < _SECOND:
                    alternatives = [_rule(schema, store, entity, verb, maker, rng) for maker in makers]
                    alternatives = [other for other in alternatives if _about(other) != _about(rule)]
                    rules += [alternatives[int(rng.integers(len(alternatives)))]] if alternatives else []
                break
    return tuple(rules[place] for place in rng.permutation(len(rules)).tolist())


def draw_authorities(schema: Schema, rng: np.random.Generator) -> tuple[Authority, ...]:
    """Draw which of some copies are right, and of which what they repeat; each is as likely."""
    copies = [(entity, *copy) for entity in schema.entities.values() for copy in entity.copies]
    return tuple(
        Authority(entity.key, copy, through, entity.fields[through].to, original, bool(rng.integers(2)))
        for entity, copy, through, original in (copies[at] for at in rng.permutation(len(copies))[:_AUTHORITIES])
    )


def _about(rule: Limit | Linked | Rank | Duty) -> str:
    """Return the field that a rule is about; of the user's grade, an empty text."""
    return "" if isinstance(rule, Rank) else rule.field


def _makers(schema: Schema, entity: Entity, verb: Verb) -> list[tuple[str, Field | None, str]]:
    """Return the rules that a verb can have: the type, and the field and the other part that it is about."""
    makers: list[tuple[str, Field | None, str]] = [("rank", None, "")]
    for field in entity.own_fields.values():
        if field.is_number:
            makers.append(("limit", field, ""))
        if field.kind == "ref" and field.to != entity.key:
            target = schema.entities[field.to]
            makers += [("linked", field, one.name) for one in target.fields.values() if one.kind == "choice"]
            if field.name not in verb.gives:
                makers += [("duty", field, one.name) for one in target.verbs.values() if one.kind == "act"]
    return makers


def _rule(
    schema: Schema,
    store: Store,
    entity: Entity,
    verb: Verb,
    maker: tuple[str, Field | None, str],
    rng: np.random.Generator,
) -> Limit | Linked | Rank | Duty:
    kind, field, part = maker
    if field is None:
        return Rank(entity.key, verb.name, int(rng.integers(4, 8)))
    if kind == "limit":
        at = schema.places[entity.key][field.name]
        values = sorted(int(record[at]) for record in store.tables[entity.key].values())
        over = bool(rng.integers(2))
        place = int(len(values) * (rng.uniform(0.4, 0.7) if over else rng.uniform(0.3, 0.6)))
        return Limit(entity.key, verb.name, field.name, values[place], over)
    if kind == "linked":
        values_of = list(schema.entities[field.to].fields[part].values)
        value = values_of[int(rng.integers(len(values_of)))]
        # Three in five records have the first value: without it alone is a verb allowed often enough.
        has = value != values_of[0] or bool(rng.integers(2))
        return Linked(entity.key, verb.name, field.name, field.to, part, value, has)
    return Duty(entity.key, verb.name, field.name, field.to, part)
