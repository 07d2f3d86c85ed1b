"""Rendering of programs as a user's request: each part gets a phrase from the lists of a split.

Some parts of English are in the code, not in the lists: pronouns (``it`` or ``them``), where the object of ``put away``
stands, what a number counts, dates, and references after the first, which are joined by ``of``.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from ...task import Split, split_choices
from ...text import load_yaml
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
    Step,
    When,
    Where,
)
from .skin import Skin, date_of, spoken, with_article
from .story import Detail
from .view import Cell
from .world import World

_PHRASES: Mapping[str, Sequence[str]] = load_yaml(__package__, "wording.yaml")
#: Of the phrases of a list, one in so many is the test split's.
_HELD_OUT = 3
#: How often a record is not held back because another is excluded beside it.
_SAID = 0.5
#: How often a record that is excluded is named in a sentence of its own, and a condition in the negative.
_LATER, _UNLESS = 0.4, 0.4
#: So many words of an object may stand inside a verb (``mark ... as away``).
_SHORT = 4
#: What two parts of a request should not both have: "the queue given for the ticket given for ...".
_STEM = re.compile(r"call|document|file|given|indicat|known|list|mark|name|note|record|register|shown|stated")
#: Not the calendar module's: these depend on the locale.
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@functools.cache
def phrases(name: str, split: Split) -> tuple[str, ...]:
    """Return the phrases of a list that a split draws from."""
    return tuple(split_choices(_PHRASES[name], split, _HELD_OUT))


def enumerated(parts: Iterable[str]) -> str:
    """Return texts as an enumeration: ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def capitalized(text: str) -> str:
    """Return a text with its first letter as a capital, and the rest as it is."""
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class _Pronoun:
    """The pronouns for a record that a sentence has named."""

    it: str
    its: str

    @classmethod
    def of(cls, entity: Entity, several: bool = False) -> _Pronoun:
        return cls("them", "their") if several or entity.person else cls("it", "its")


def superlative(one: Field, noun: str, most: bool) -> str:
    """Return the adjective for the most or the least of a field: the latest day, the greatest distance."""
    if one.kind == "day":
        return "latest" if most else "earliest"
    if one.unit or noun.startswith("number of "):
        return "greatest" if most else "smallest"
    return "highest" if most else "lowest"


def comparative(one: Field, noun: str, greater: bool) -> str:
    """Return the adjective for more or less of a field, with its article: a later day, a greater distance."""
    word = {"latest": "later", "earliest": "earlier"}.get(best := superlative(one, noun, greater), f"{best[:-3]}er")
    return with_article({"highester": "higher"}.get(word, word))


def negated(one: Field, where: Where) -> Where:
    """Return the condition on a field that holds where another, on a value, does not."""
    assert isinstance(where.value, Literal)  # as conditions on records and rules are
    if where.op in ("is", "not"):
        return Where(where.field, "not" if where.op == "is" else "is", where.value)
    over, limit = where.op == "over", int(where.value.value)
    return Where(where.field, "under" if over else "over", Literal(limit + one.step if over else limit - one.step))


def verb_with_object(verb: Verb, word: str, noun: str, pronoun: bool = False) -> str:
    """Return a verb, by its name ``word``, with its object, which is perhaps a pronoun."""
    if word in verb.phrases:
        return verb.phrases[word].format(noun)
    first, *particle = word.split("_")
    return " ".join([first, noun, *particle] if pronoun else [first, *particle, noun])


@dataclass
class Speaker:
    """Puts programs into words.

    Args:
        hide: How many details are held back until the policy asks, at most.
        wrong: Whether the user is mistaken about the first of them at first.
        names: What things are called; ``None`` for the world's speech.
    """

    world: World
    split: Split
    rng: np.random.Generator
    hide: int = 0
    wrong: bool = False
    names: Skin | None = None
    details: list[Detail] = field(default_factory=list)
    _given: set[Value] = field(default_factory=set)  # values of records that the user wants made
    _stems: set[str] = field(default_factory=set)  # of the phrases so far
    _labels: Counter[str] = field(default_factory=Counter)  # how often a goal has each
    _later: list[str] = field(default_factory=list)  # sentences at the end

    def __post_init__(self) -> None:
        self.skin = self.names or self.world.speech

    def request(self, goal: Goal, user: str) -> str:
        """Return the opening message of a user."""
        first, *rest = goal
        self._labels.update(_labels(goal))
        makes = [step for step in goal if isinstance(step, Make)]
        self._given = {one.value for step in makes for _, one in step.gives if isinstance(one, Literal)}
        sentences = [self.say("greetings", me=self.world.label(PERSON, user))]
        clause = self._step(first)
        # A condition comes first: "Could you, if ..." reads badly.
        sentences.append(f"{capitalized(clause)}." if isinstance(first, When) else self.say("frames", goal=clause))
        sentences += [self.say("joins", next=self._step(step)) for step in rest]
        sentences += [capitalized(sentence) for sentence in self._later]
        return " ".join(sentences)

    def notice(self, cell: Cell, value: Value) -> str:
        """Return the notice of another value in a cell."""
        key, number, name = cell
        entity = self._entity(key)
        label = self.world.label(key, number)
        what = self._part(name, Named(key, label), self._named(entity, label))
        text = self.say("notice", what=what, value=self._value(entity, entity.fields[name], value))
        return f"[Notice] {capitalized(text)}"

    # ------------------------------------------------------------------ phrases, and the names in them

    def _choose(self, name: str) -> str:
        choices = phrases(name, self.split)
        fresh = [one for one in choices if self._stems.isdisjoint(_STEM.findall(one))] or choices
        choice = fresh[int(self.rng.integers(len(fresh)))]
        self._stems.update(_STEM.findall(choice))
        return choice

    def say(self, name: str, **parts: str) -> str:
        """Return a phrase of a list with its parts."""
        return self._choose(name).format(**parts)

    def _say_each(self, name: str, values: Sequence[Mapping[str, str]], **parts: str) -> str:
        """Return a phrase whose part in brackets is said once for each of several values."""
        before, part, after = re.fullmatch(r"(.*?)\[(.*)\](.*)", self._choose(name)).groups()  # type: ignore[union-attr]
        listed = enumerated(part.format(**parts, **value) for value in values)
        return f"{before.format(**parts)}{listed}{after.format(**parts)}"

    def _entity(self, key: str) -> Entity:
        return self.world.schema.entities[key]

    def _field(self, entity: Entity, name: str) -> str:
        return entity.fields[name].noun(self.skin.fields[entity.key, name])

    def _called(self, entity: Entity, plural: bool = False) -> str:
        return spoken(self.skin.entities[entity.key][plural])

    def _named(self, entity: Entity, label: str) -> str:
        return label if entity.key == PERSON else self.say("named", entity=self._called(entity), label=label)

    def _value(self, entity: Entity, one: Field, value: Value) -> str:
        if one.kind == "ref":
            return self._named(self._entity(one.to), self.world.label(one.to, str(value)))
        if one.kind == "name":
            return f'"{value}"'
        if one.kind == "choice":
            return spoken(str(self.skin.written(entity, one, value)))
        return quantity(one, int(value), self._field(entity, one.name))

    def _verb(self, entity: Entity, verb: Verb) -> Callable[[str, bool], str]:
        """Return what makes a verb and its object of the object, and of whether that is a pronoun."""
        return functools.partial(verb_with_object, verb, self.skin.verbs[entity.key, verb.name])

    # ------------------------------------------------------------------ details that are held back

    def _hides(self, words: Iterable[str]) -> bool:
        """Return whether to hold back a detail that is asked for by one of these words, which are no other's."""
        used = frozenset().union(*(detail.about for detail in self.details))
        free = used.isdisjoint(map(spoken, words))
        return free and len(self.details) < self.hide and bool(self.rng.random() < 0.7)

    def _detail(self, word: str, words: Iterable[str], value: str, wrong: str) -> None:
        says: tuple[str, ...] = (self.say("answer", word=word, value=value),)
        if self.wrong and not self.details and wrong != value:
            says = (self.say("wrong", word=word, value=wrong), self.say("corrected", word=word, value=value))
        self.details.append(Detail(word, frozenset(map(spoken, words)), says, value))

    # ------------------------------------------------------------------ records and values

    def _source(self, source: Source) -> str:
        entity = self._entity(source.entity)
        if isinstance(source, Me):
            return "me"
        if isinstance(source, Follow):
            return self._part(source.field, source.of, other=source.other)
        if isinstance(source, Pick):
            one = entity.fields[source.field]
            name = self._field(entity, source.field)
            parts = {
                **{"entity": self._called(entity), "field": name, "best": superlative(one, name, source.most)},
                **{"more": comparative(one, name, source.most), "less": comparative(one, name, not source.most)},
            }
            return self.say("pick", **self._select(source.among), **parts)
        words = (*entity.called, *entity.plural, *(("who",) if entity.person else ()))
        if source.excluded and (not self.hide or self.rng.random() < _SAID):
            return self._named_with_excluded(entity, source)
        if not self._hides(words):
            return self._named(entity, source.label)
        while (wrong := self.world.free_label(entity, self.rng)) in self._given:
            pass
        value, *excluded = (f'"{label}"' for label in (source.label, *source.excluded))
        value = self._instead(value, excluded[0], value, excluded[0]) if excluded else value
        self._detail(self._called(entity), words, value, f'"{wrong}"')
        return self.say("hidden", entity=self._called(entity))

    def _named_with_excluded(self, entity: Entity, source: Named) -> str:
        """Return the name of a record and of those that are excluded: one side by side, another in a later sentence."""

        def short(label: str) -> str:
            return label if entity.key == PERSON else f'"{label}"'

        stands, beside = source.label, source.excluded[0]
        alone = all(self._labels[label] == 1 for label in (source.label, *source.excluded))
        if alone and (len(source.excluded) > 1 or self.rng.random() < _LATER):
            wrong, beside = source.excluded[-1], source.excluded[0] if len(source.excluded) > 1 else ""
            is_right = bool(self.rng.integers(2))
            stands = source.label if is_right else wrong
            name = "set_aside" if is_right else "replaced"
            self._later.append(self.say(name, right=short(source.label), wrong=short(wrong)))
        if not beside:
            return self._named(entity, stands)
        return self._instead(self._named(entity, stands), self._named(entity, beside), short(stands), short(beside))

    def _instead(self, right: str, wrong: str, right_again: str, wrong_again: str) -> str:
        """Return what is meant and what is not, in either order; the second of them in its form for that."""
        if self.rng.integers(2):
            return self.say("right_first", right=right, wrong=wrong_again)
        return self.say("wrong_first", wrong=wrong, right=right_again)

    def _part(self, name: str, of: Source, record: str = "", other: str = "") -> str:
        """Return a field of a record as a noun: ``my manager``, ``the manager of ...``.

        Args:
            name: The field.
            of: The record.
            record: The record in words, if it is put into words already.
            other: A field that is excluded; or empty.
        """
        field_name = self._field(self._entity(of.entity), name)
        if other:
            other_name, its = self._field(self._entity(of.entity), other), "my" if isinstance(of, Me) else "the"
            field_name = self._instead(field_name, other_name, f"{its} {field_name}", f"{its} {other_name}")
        if isinstance(of, Me):
            return f"my {field_name}"
        record = record or self._source(of)
        is_short = record == getattr(of, "label", None) or (isinstance(of, Follow) and isinstance(of.of, Me))
        if is_short and self._entity(of.entity).person and self.rng.random() < 0.5:
            return f"{record}'s {field_name}"
        if isinstance(of, Follow):
            return f"the {field_name} of {record}"
        return self.say("follow", field=field_name, of=record)

    def _select(self, select: Select) -> dict[str, str]:
        """Return the parts of phrases for the records that meet conditions: ``plural`` and ``where``."""
        entity = self._entity(select.entity)
        holds = [{"field": self._field(entity, one.field), "holds": self.holds(entity, one)} for one in select.where]
        relative = {"which": "whom", "where": "for whom"} if entity.person else {"which": "which", "where": "where"}
        return {"plural": self._called(entity, True), "where": self._say_each("where", holds, **relative)}

    def holds(self, entity: Entity, where: Where) -> str:
        """Return a condition on a field without the field: ``is above 7``, ``is not below 8``."""
        one = entity.fields[where.field]
        op = {"over": "after", "under": "before"}.get(where.op, where.op) if one.kind == "day" else where.op
        name = "is_record" if one.kind == "ref" and op == "is" else op
        value, following = self._operand(entity, one, where.value, hidden=False), ""
        if where.op in ("over", "under"):
            # "At least 8" is above 7, where 8 is the next value.
            (opposite,) = (negated(one, where).value,)
            following = self._operand(entity, one, opposite, hidden=False)
        return self.say(name, value=value, next=following)

    def _operand(self, entity: Entity, one: Field, operand: Operand, hidden: bool = True) -> str:
        if isinstance(operand, Read):
            return self._part(operand.field, operand.of)
        if not isinstance(operand, Literal):
            return self._source(operand)
        text = self._value(entity, one, operand.value)
        if operand.other is not None:
            other = self._value(entity, one, operand.other)
            return self._instead(text, other, text, other)
        if not (hidden and one.is_number and self._hides(one.called)):
            return text
        values, name = one.domain(), self._field(entity, one.name)
        self._detail(name, one.called, text, self._value(entity, one, values[int(self.rng.integers(len(values)))]))
        return self.say("hidden_value", field=name)

    # ------------------------------------------------------------------ steps

    def _step(self, step: Step) -> str:
        """Return a step as a clause in the imperative; one with a condition begins with it, and may have a sentence."""
        if isinstance(step, Do):
            return self._do(step)
        if isinstance(step, Make):
            return self._make(step)
        if isinstance(step, When):
            return self._when(step)
        if isinstance(step, Report):
            return self._report(step)
        return self.say("tell", what=self._part(step.what.field, step.what.of))

    def _do(self, step: Do) -> str:
        target = step.target
        entity = self._entity(target.entity)
        if several := isinstance(target, Select):
            noun = self.say("every", **self._select(target))
        else:
            noun = self._source(target)
        pronoun, verb = _Pronoun.of(entity, several), self._verb(entity, entity.verbs[step.verb])
        do, do_it = verb(noun, False), verb(pronoun.it, True)
        if step.gives:
            parts = {"target": noun, "do": do, "do_it": do_it, "it": pronoun.it, "its": pronoun.its}
            return self._say_each("change", self._gives(entity, step.gives), **parts)
        # "Mark the driver of the van of ... as away": too long to wait for the last word.
        if self.rng.random() < 0.5 and (do.endswith(noun) or len(noun.split()) <= _SHORT):
            return do
        return self.say("act", target=noun, do_it=do_it)

    def _make(self, step: Make) -> str:
        entity = self._entity(step.entity)
        pronoun, noun = _Pronoun.of(entity), self.say("new", entity=self._called(entity))
        do = self._verb(entity, entity.verbs["create"])(noun, False)
        return self._say_each("make", self._gives(entity, step.gives), do=do, it=pronoun.it, its=pronoun.its)

    def _gives(self, entity: Entity, gives: Sequence[tuple[str, Operand]]) -> list[dict[str, str]]:
        return [
            {"field": self._field(entity, name), "value": self._operand(entity, entity.fields[name], one)}
            for name, one in gives
        ]

    def _report(self, step: Report) -> str:
        entity = self._entity(step.of.entity)
        total = f"{self.say('total', field=self._field(entity, step.total))} and, row by row, " if step.total else ""
        columns = [{"field": self._field(entity, name)} for name in step.fields]
        return self._say_each("report", columns, to=self._source(step.to), total=total, **self._select(step.of))

    def _when(self, step: When) -> str:
        entity, condition, name = self._entity(step.of.entity), step.condition, "when"
        if self.rng.random() < _UNLESS:
            name, condition = "unless", negated(entity.fields[condition.field], condition)
        holds = f"{self._part(condition.field, step.of)} {self.holds(entity, condition)}"
        text = self.say(name, condition=holds, then=self._step(step.then))
        if step.otherwise is None:
            return text
        return f"{text}. {self.say('otherwise', step=self._step(step.otherwise))}"


def _labels(part: Any) -> Iterator[str]:
    """Yield the labels of the records that a part of a program names, the excluded ones included."""
    if isinstance(part, Named):
        yield from (part.label, *part.excluded)
    elif isinstance(part, tuple):
        for one in part:
            yield from _labels(one)
    elif is_dataclass(part):
        for one in fields(part):
            yield from _labels(getattr(part, one.name))


def quantity(one: Field, value: int, noun: str) -> str:
    """Return a number as people say it: euros, a date, or with the unit of the field where its name has none.

    Args:
        one: A field of a number.
        value: Euros, the day of the year, or a number of units.
        noun: What the field is called in the same sentence.
    """
    if one.kind == "day":
        date = date_of(value)
        return f"{date.day} {_MONTHS[date.month - 1]} {date.year}"
    unit = "euros" if one.kind == "money" else one.unit
    if not unit or noun.startswith("number of ") or unit[:-1] in noun:
        return str(value)
    return f"{value:,} {unit[:-1] if value == 1 else unit}"
