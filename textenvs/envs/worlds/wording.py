"""Programs in the words of a user: a phrase for every part, drawn from the lists of a split."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...task import Split, split_choices
from ...text import load_yaml
from .applications import Entity, Field, Value
from .goals import (
    Do,
    Follow,
    Goal,
    Literal,
    Make,
    Me,
    Named,
    Operand,
    Read,
    Select,
    Source,
    Step,
    Tell,
    When,
    Where,
)
from .skin import spoken
from .story import Detail
from .view import Cell
from .world import World

_PHRASES: Mapping[str, Sequence[str]] = load_yaml(__package__, "wording.yaml")


@functools.cache
def phrases(name: str, split: Split) -> tuple[str, ...]:
    """Return the phrases of a list that a split draws from."""
    return tuple(split_choices(_PHRASES[name], split))


@dataclass
class Speaker:
    """Puts programs into words.

    Args:
        hide: How many details are held back until the policy asks, at most.
        wrong: Whether the user is mistaken about the first of them at first.
    """

    world: World
    split: Split
    rng: np.random.Generator
    hide: int = 0
    wrong: bool = False
    details: list[Detail] = field(default_factory=list)

    def request(self, goal: Goal, user: str) -> str:
        """Return the opening message of a user."""
        label = self.world.label("personnel.person", user)
        first, *rest = (self._step(step) for step in goal)
        text = first + "".join(self._say("joins", next=step) for step in rest)
        return f"{self._say('greetings', me=label)} {self._say('frames', goal=text)}"

    def notice(self, cell: Cell, value: Value) -> str:
        """Return the notice of another value in a cell."""
        entity, number, name = cell
        of = self._named(self.world.schema.entities[entity], self.world.label(entity, number))
        one = self.world.schema.entities[entity].fields[name]
        return self._say("notice", field=self._field(entity, name), of=of, value=self._value(entity, one, value))

    def _say(self, name: str, **parts: str) -> str:
        choices = phrases(name, self.split)
        return choices[int(self.rng.integers(len(choices)))].format(**parts)

    def _entity(self, key: str) -> Entity:
        return self.world.schema.entities[key]

    def _field(self, entity: str, name: str) -> str:
        return spoken(self.world.speech.fields[entity, name])

    def _value(self, entity: str, one: Field, value: Value) -> str:
        if one.kind == "ref":
            return self._named(self._entity(one.to), self.world.label(one.to, str(value)))
        written = self.world.speech.written(self._entity(entity), one, value)
        return f'"{written}"' if one.kind == "name" else spoken(str(written))

    def _named(self, entity: Entity, label: str) -> str:
        return (
            label if entity.key == "personnel.person" else self._say("named", entity=self._called(entity), label=label)
        )

    def _called(self, entity: Entity, plural: bool = False) -> str:
        return spoken(self.world.speech.entities[entity.key][plural])

    def _hides(self, words: Sequence[str]) -> bool:
        """Return whether to hold back a detail that is asked for by one of these words, which are no other's."""
        used = frozenset().union(*(detail.about for detail in self.details))
        free = used.isdisjoint(map(spoken, words))
        return free and len(self.details) < self.hide and bool(self.rng.random() < 0.7)

    def _detail(self, word: str, words: Sequence[str], value: str, wrong: str) -> None:
        says: tuple[str, ...] = (self._say("answer", word=word, value=value),)
        if self.wrong and not self.details and wrong != value:
            says = (self._say("wrong", word=word, value=wrong), self._say("corrected", word=word, value=value))
        self.details.append(Detail(word, frozenset(map(spoken, words)), says))

    def _source(self, source: Source) -> str:
        entity = self._entity(source.entity)
        if isinstance(source, Me):
            return "me"
        if isinstance(source, Named):
            words = (*entity.called, *entity.plural)
            if self._hides(words):
                wrong = self.world.free_label(entity, self.rng)
                self._detail(self._called(entity), words, f'"{source.label}"', f'"{wrong}"')
                return self._say("hidden", entity=self._called(entity))
            return self._named(entity, source.label)
        if isinstance(source, Follow):
            name = self._field(source.of.entity, source.field)
            return (
                f"my {name}"
                if isinstance(source.of, Me)
                else self._say("follow", field=name, of=self._source(source.of))
            )
        one = entity.fields[source.field]
        which = (
            ("latest" if source.most else "earliest") if one.kind == "day" else "highest" if source.most else "lowest"
        )
        name, every = self._field(entity.key, source.field), self._select(source.among)
        return self._say(which, entity=self._called(entity), field=name, all=every)

    def _select(self, select: Select) -> str:
        entity = self._entity(select.entity)
        where = " and ".join(self._where(entity, one) for one in select.where)
        return self._say("select", plural=self._called(entity, True), where=where)

    def _where(self, entity: Entity, where: Where, prefix: str = "") -> str:
        one = entity.fields[where.field]
        days = {"over": "after", "under": "before"} if one.kind == "day" else {}
        value = self._operand(entity, one, where.value, hidden=False)
        return self._say(prefix + days.get(where.op, where.op), field=self._field(entity.key, where.field), value=value)

    def _operand(self, entity: Entity, one: Field, operand: Operand, hidden: bool = True) -> str:
        if isinstance(operand, Literal):
            text = self._value(entity.key, one, operand.value)
            if hidden and one.is_number and self._hides(one.called):
                values = one.domain()
                wrong = self._value(entity.key, one, values[int(self.rng.integers(len(values)))])
                self._detail(self._field(entity.key, one.name), one.called, text, wrong)
                return self._say("hidden_value", field=self._field(entity.key, one.name))
            return text
        if isinstance(operand, Read):
            name = self._field(operand.of.entity, operand.field)
            if isinstance(operand.of, Me):
                return f"my {name}"
            return self._say("follow", field=name, of=self._source(operand.of))
        return self._source(operand)

    def _step(self, step: Step) -> str:
        if isinstance(step, Do):
            return self._do(step)
        if isinstance(step, Make):
            entity = self._entity(step.entity)
            parts = [
                self._say(
                    "given", field=self._field(entity.key, name), value=self._operand(entity, entity.fields[name], one)
                )
                for name, one in step.gives
            ]
            verb = spoken(self.world.speech.verbs[entity.key, "create"])
            return self._say("make", verb=verb, entity=self._called(entity), values=" and ".join(parts))
        if isinstance(step, When):
            entity = self._entity(step.of.entity)
            name, of = self._field(entity.key, step.condition.field), self._source(step.of)
            holds, then = self._where(entity, step.condition, "holds_"), self._step(step.then)
            text = self._say("when", field=name, of=of, holds=holds, then=then)
            return text + (self._say("otherwise", step=self._step(step.otherwise)) if step.otherwise else "")
        return self._tell(step)

    def _do(self, step: Do) -> str:
        entity = self._entity(step.target.entity)
        verb = spoken(self.world.speech.verbs[entity.key, step.verb])
        several = isinstance(step.target, Select)
        target = self._select(step.target) if isinstance(step.target, Select) else self._source(step.target)
        values = [
            self._say(
                "value", field=self._field(entity.key, name), value=self._operand(entity, entity.fields[name], one)
            )
            for name, one in step.gives
        ]
        if values:
            return self._say("change", verb=verb, target=target, values=" and ".join(values))
        return self._say("act_each" if several else "act", verb=verb, target=target)

    def _tell(self, step: Tell) -> str:
        name, of = self._field(step.what.of.entity, step.what.field), self._source(step.what.of)
        return self._say("tell", field=name, of=of)
