"""Goals as programs: what a user wants of a world, in a small typed language, and what that makes of the store.

A program names records by their label, follows references, selects by the values of fields, picks the least or the
most, and does something with what it numbers: a verb, a verb for each, a new record, or an answer. :func:`evaluate`
returns the :class:`End` that it asks for by the rules of the house, and the view has what had to be read for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from .applications import Value
from .rules import Rule, authorities, duties, forbidden
from .schema import PERSON, Schema
from .store import Record, Store
from .view import CannotBeDoneError, Cell, View


class NotMeantError(Exception):
    """A program has no one meaning in this store: nothing to pick from, two that are equal, a verb that is refused."""


@dataclass(frozen=True)
class Named:
    """The record of a label.

    Args:
        excluded: The labels of other records, at most two, which the request names as well, to exclude them.
    """

    entity: str
    label: str
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Me:
    """The user's own record."""

    entity: str = PERSON


@dataclass(frozen=True)
class Follow:
    """The record that another refers to.

    Args:
        other: Another reference to such a record, which the request names as well, to exclude it; or empty.
    """

    of: Source
    field: str
    entity: str
    other: str = ""


@dataclass(frozen=True)
class Where:
    """A condition on a field: ``is``, ``not``, ``over`` or ``under`` a value."""

    field: str
    op: str
    value: Operand


@dataclass(frozen=True)
class Select:
    """The records that meet all conditions."""

    entity: str
    where: tuple[Where, ...]


@dataclass(frozen=True)
class Pick:
    """The record with the least or the most of a field, among some."""

    among: Select
    field: str
    most: bool

    @property
    def entity(self) -> str:
        return self.among.entity


@dataclass(frozen=True)
class Literal:
    """A value that the program has.

    Args:
        other: Another value, which the request names as well, to exclude it; or ``None``.
    """

    value: Value
    other: Value | None = None


@dataclass(frozen=True)
class Read:
    """The value of a field of a record."""

    of: Source
    field: str


@dataclass(frozen=True)
class Do:
    """A verb on a record, or on each of several."""

    target: Source | Select
    verb: str
    gives: tuple[tuple[str, Operand], ...] = ()


@dataclass(frozen=True)
class Make:
    """A new record."""

    entity: str
    gives: tuple[tuple[str, Operand], ...]


@dataclass(frozen=True)
class When:
    """One step where a record meets a condition, and another (or none) where not."""

    of: Source
    condition: Where
    then: Step
    otherwise: Step | None = None


@dataclass(frozen=True)
class Tell:
    """An answer."""

    what: Read


@dataclass(frozen=True)
class Report:
    """A report to a person, which has a row for each of several records: its label, then the values of fields.

    Args:
        total: The field whose sum it has besides; empty where none is wanted.
    """

    to: Source
    of: Select
    fields: tuple[str, ...]
    total: str = ""


Source: TypeAlias = "Named | Me | Follow | Pick"
Operand: TypeAlias = "Literal | Read | Named | Me | Follow | Pick"
Step: TypeAlias = "Do | Make | When | Tell | Report"
Goal: TypeAlias = "tuple[Step, ...]"


@dataclass(frozen=True)
class Sent:
    """A report that was sent, or should be.

    Args:
        to: The id of the person.
        entity: What its rows are about.
        fields: What they have after the label.
        rows: By the id of the record, in the order of the ids, the values of the fields.
        total: The sum, if one is wanted.
    """

    to: str
    entity: str
    fields: tuple[str, ...]
    rows: tuple[tuple[str, Record], ...]
    total: int | None = None


@dataclass(frozen=True)
class End:
    """The end that an episode should have.

    Args:
        changed: The cells that should have another value than at the beginning.
        new: The records that should be new, by entity, in the order of their values.
        answer: What the user should be told.
        refused: The id of the record for which a rule or a condition of the user forbids what the user wants, where
            nothing else is to be done; else empty.
        left_out: The ids of the records for which one forbids it, where something else is to be done: they may be
            named, and need not be, so ends are equal without them.
        reports: The reports that should be sent.
    """

    changed: tuple[tuple[Cell, Value], ...] = ()
    new: tuple[tuple[str, Record], ...] = ()
    answer: Value | None = None
    refused: str = ""
    left_out: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    reports: tuple[Sent, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A program as it ran in a store.

    Args:
        path: The steps that were taken, with the branch that was taken for each condition.
        counts: How many records each selection has.
        by_authority: Whether a value was read of which there is a copy, and a rule that says which is right.
    """

    end: End
    path: Goal
    counts: tuple[int, ...]
    by_authority: bool


def evaluate(goal: Goal, view: View, rules: Sequence[Rule], user: str) -> End:
    """Return the end that a goal asks for; the arguments and errors of :func:`traced`."""
    return traced(goal, view, rules, user).end


def traced(goal: Goal, view: View, rules: Sequence[Rule], user: str) -> Trace:
    """Return what a goal asks for, and how.

    Args:
        goal: The program.
        view: Of the store as it is; it notes what is read, and has the store as it should be afterwards.
        rules: What is forbidden, and what else is due.
        user: The id of the user's record.

    Raises:
        NotMeantError: The program has no meaning in this store.
    """
    run = _Run(view, rules, user)
    try:
        for step in goal:
            run.step(step)
    except CannotBeDoneError as error:
        raise NotMeantError(str(error)) from None
    changed, new = differences(view.schema, view.store)
    otherwise = bool(run.done or run.reports or run.answer is not None)
    if len(run.forbidden) > 1 and not otherwise:
        raise NotMeantError("several records of which none is allowed")
    refused, left_out = ("", tuple(sorted(run.forbidden))) if otherwise else ("".join(run.forbidden), ())
    reports = tuple(sorted(run.reports, key=repr))
    end = End(changed, new, run.answer, refused, left_out, reports)
    return Trace(end, tuple(run.path), tuple(run.counts), run.by_authority)


def other_branch(goal: Goal, path: Goal) -> Goal | None:
    """Return a program with the branches that were not taken; ``None`` where it has no conditions."""
    if not any(isinstance(step, When) for step in goal):
        return None
    other: list[Step] = []
    for step in goal:
        if not isinstance(step, When):
            other.append(step)
        elif (branch := step.otherwise if step.then in path else step.then) is not None:
            other.append(branch)
    return tuple(other)


def differences(schema: Schema, store: Store) -> tuple[tuple[tuple[Cell, Value], ...], tuple[tuple[str, Record], ...]]:
    """Return the cells that have another value than at the beginning, and the new records, without their ids."""
    changed: list[tuple[Cell, Value]] = []
    new: list[tuple[str, Record]] = []
    for (entity, number), record in store.changed.items():
        if (before := store.first(entity, number)) is None:
            new.append((entity, record))
            continue
        names = schema.entities[entity].fields
        changed += [
            ((entity, number, name), value)
            for name, value, old in zip(names, record, before, strict=True)
            if value != old
        ]
    return tuple(sorted(changed, key=repr)), tuple(sorted(new, key=repr))


@dataclass
class _Run:
    view: View
    rules: Sequence[Rule]
    user: str
    path: list[Step] = dataclasses.field(default_factory=list)  # the steps, with branches for conditions
    counts: list[int] = dataclasses.field(default_factory=list)
    answer: Value | None = None
    by_authority: bool = False
    done: int = 0  # verbs that were allowed
    forbidden: list[str] = dataclasses.field(default_factory=list)
    reports: list[Sent] = dataclasses.field(default_factory=list)

    def step(self, step: Step) -> None:
        if not isinstance(step, When):
            self.path.append(step)
        if isinstance(step, Do):
            self.do(step)
        elif isinstance(step, Make):
            verb = self.view.schema.entities[step.entity].verbs["create"]
            gives = {name: self.operand(one) for name, one in step.gives}
            self.view.make(step.entity, verb, gives)
            self.done += 1
        elif isinstance(step, When):
            entity, number, name = self.authoritative_cell(step.of, step.condition.field)
            holds = self.holds(entity, number, dataclasses.replace(step.condition, field=name))
            if (chosen := step.then if holds else step.otherwise) is not None:
                self.step(chosen)
            elif isinstance(step.then, Do) and not isinstance(step.then.target, Select):
                self.forbidden.append(self.source(step.then.target))
        elif isinstance(step, Report):
            self.report(step)
        else:
            self.answer = self.operand(step.what)

    def do(self, step: Do) -> None:
        entity, view = step.target.entity, self.view
        numbers = self.select(step.target) if isinstance(step.target, Select) else [self.source(step.target)]
        gives = {name: self.operand(one) for name, one in step.gives}
        verb = view.schema.entities[entity].verbs[step.verb]
        allowed = []
        for number in numbers:  # before any is changed
            if forbidden(self.rules, view, self.user, entity, step.verb, number, gives):
                self.forbidden.append(number)
            else:
                allowed.append(number)
        for number in allowed:
            for name in verb.needs:
                view.value(entity, number, name)
            view.act(entity, verb, number, gives)
            for duty in duties(self.rules, entity, step.verb):
                duty.do(view, number)
            self.done += 1

    def report(self, step: Report) -> None:
        to, entity, view = self.source(step.to), step.of.entity, self.view
        rows = {
            number: tuple(view.value(entity, number, name) for name in step.fields) for number in self.select(step.of)
        }
        if not rows:
            raise NotMeantError("nothing to report")
        total = sum(int(view.value(entity, number, step.total)) for number in rows) if step.total else None
        self.reports.append(Sent(to, entity, step.fields, tuple(sorted(rows.items())), total))

    def source(self, source: Source) -> str:
        if isinstance(source, Me):
            return self.me()
        if isinstance(source, Named):
            label = self.view.schema.entities[source.entity].label
            return self.only(self.view.find(source.entity, {label: source.label}))
        if isinstance(source, Follow):
            return str(self.view.value(*self.authoritative_cell(source.of, source.field)))
        values = {one: int(self.view.value(source.entity, one, source.field)) for one in self.select(source.among)}
        if not values:
            raise NotMeantError("nothing to pick from")
        best = (max if source.most else min)(values.values())
        return self.only([number for number, value in values.items() if value == best])

    def authoritative_cell(self, of: Source, name: str) -> Cell:
        """Return the place of a field of a record: of a copy and its original, the one that is right."""
        for rule in authorities(self.rules):
            if (of.entity, name) == (rule.entity, rule.copy):
                self.by_authority = True
                if not rule.copy_is_right:
                    return rule.target, str(self.view.value(of.entity, self.source(of), rule.through)), rule.original
            elif isinstance(of, Follow) and (of.of.entity, of.field, name) == (
                rule.entity,
                rule.through,
                rule.original,
            ):
                self.by_authority = True
                if rule.copy_is_right:
                    return rule.entity, self.source(of.of), rule.copy
        return of.entity, self.source(of), name

    def me(self) -> str:
        entity = self.view.schema.entities[PERSON]
        record = self.view.store.get(PERSON, self.user)
        assert record is not None
        return self.only(self.view.find(PERSON, {entity.label: record[self.view.schema.places[PERSON][entity.label]]}))

    def only(self, numbers: Sequence[str]) -> str:
        if len(numbers) != 1:
            raise NotMeantError(f"{len(numbers)} records")
        return numbers[0]

    def operand(self, operand: Operand) -> Value:
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand, Read):
            return self.view.value(*self.authoritative_cell(operand.of, operand.field))
        return self.source(operand)

    def select(self, select: Select) -> list[str]:
        equal = {one.field: self.operand(one.value) for one in select.where if one.op == "is"}
        conditions = [one for one in select.where if one.op != "is"]
        numbers = self.view.find(select.entity, equal)
        for number in numbers:  # whoever skips one of these cells takes conditions
            for name in equal:
                self.view.cells[select.entity, number, name] = None
        matches = [number for number in numbers if all(self.holds(select.entity, number, one) for one in conditions)]
        self.counts.append(len(matches))
        return matches

    def holds(self, entity: str, number: str, where: Where) -> bool:
        value, other = self.view.value(entity, number, where.field), self.operand(where.value)
        if where.op in ("is", "not"):
            return (value == other) == (where.op == "is")
        return int(value) > int(other) if where.op == "over" else int(value) < int(other)


def naive(goal: Goal) -> Iterator[Goal]:
    """Yield variants of a program that somebody plays who does not read all of it.

    A condition is left out, the other extreme is picked, a reference is not followed, the other branch is taken, a step
    is skipped, what the request excludes is taken. The rules are as they are.
    """
    for place in range(len(goal)):
        if len(goal) > 1:
            yield (*goal[:place], *goal[place + 1 :])
        for step in _variants(goal[place]):
            yield (*goal[:place], step, *goal[place + 1 :])


def mistaken(goal: Goal) -> Iterator[Goal]:
    """Yield the variants of a program in which a record, a field or a value is taken that the request excludes."""
    for place, step in enumerate(goal):
        for other in _variants(step, excluded_alone=True):
            yield (*goal[:place], other, *goal[place + 1 :])


def _shorter(part: Any) -> Iterator[Any]:
    """Yield variants of a part itself, without something of it or with the other extreme."""
    if isinstance(part, When):
        yield part.then
        if part.otherwise is not None:
            yield part.otherwise
    if isinstance(part, Select):
        for place in range(len(part.where)):
            if len(part.where) > 1:
                yield Select(part.entity, (*part.where[:place], *part.where[place + 1 :]))
    if isinstance(part, Pick):
        yield Pick(part.among, part.field, not part.most)
    if isinstance(part, Follow) and part.of.entity == part.entity:
        yield part.of


def _variants(part: Any, excluded_alone: bool = False) -> Iterator[Any]:
    replace: Any = dataclasses.replace  # of whatever part of a program
    if isinstance(part, Named):
        for label in part.excluded:
            yield Named(part.entity, label)
        return
    if isinstance(part, Follow) and part.other:
        yield Follow(part.of, part.other, part.entity)
    if isinstance(part, Literal) and part.other is not None:
        yield Literal(part.other)
    if not excluded_alone:
        yield from _shorter(part)
    if not dataclasses.is_dataclass(part):
        return
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, tuple):
            for place, one in enumerate(value):
                inner = one[1] if isinstance(one, tuple) else one
                for variant in _variants(inner, excluded_alone):
                    new = (one[0], variant) if isinstance(one, tuple) else variant
                    yield replace(part, **{field.name: (*value[:place], new, *value[place + 1 :])})
        elif dataclasses.is_dataclass(value):
            for variant in _variants(value, excluded_alone):
                yield replace(part, **{field.name: variant})
