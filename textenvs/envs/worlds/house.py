"""Rules of the house in words: a phrase of a split's lists for each, which the name of the world decides.

A prohibition says where a verb is forbidden, or what it needs, which is the opposite.
"""

from __future__ import annotations

import numpy as np

from ...task import Split
from .applications import Field
from .goals import Literal, Where
from .rules import GRADE, Authority, Duty, Limit, Linked, Rank, Rule
from .schema import PERSON
from .skin import spoken, with_article
from .wording import Speaker, capitalized, negated, verb_with_object
from .world import World


def rules_in_words(world: World, split: Split) -> tuple[str, ...]:
    """Return a sentence for each rule of a world, made once; names of things are those of the tools."""
    key = "rules", split
    if key not in world.cache:
        writer = _Writer(world, split)
        world.cache[key] = tuple(capitalized(writer.sentence(rule)) for rule in world.rules)
    sentences: tuple[str, ...] = world.cache[key]
    return sentences


class _Writer:
    def __init__(self, world: World, split: Split) -> None:
        self._world, self._skin, self._entities = world, world.skin, world.schema.entities
        self._rng = np.random.default_rng([*f"worlds/rules/{world.name}".encode()])
        self._speaker = Speaker(world, split, self._rng, names=world.skin)

    def sentence(self, rule: Rule) -> str:
        if isinstance(rule, Authority):
            return self._authority(rule)
        deed = f'"{spoken(self._skin.verbs[rule.entity, rule.verb])}" of {with_article(self._called(rule.entity))}'
        if isinstance(rule, Rank):
            return self._speaker.say("rank", deed=deed, grade=self._noun(PERSON, GRADE), n=str(rule.grade))
        if isinstance(rule, Duty):
            return self._duty(rule, deed)
        if isinstance(rule, Limit):
            subject, entity, field = f"{self._its(rule.entity)} {self._given(rule)}", rule.entity, rule.field
            where = Where(field, "over" if rule.over else "under", Literal(rule.limit))
        else:
            entity, field = rule.target, rule.state
            subject = f"the {self._noun(entity, field)} of {self._its(rule.entity)} {self._given(rule)}"
            where = Where(field, "is" if rule.has else "not", Literal(rule.value))
        needs = bool(self._rng.integers(2))
        one = self._field(entity, field)
        holds = self._speaker.holds(self._entities[entity], negated(one, where) if needs else where)
        return self._speaker.say("needs" if needs else "forbids", deed=deed, holds=f"{subject} {holds}")

    def _authority(self, rule: Authority) -> str:
        holder = with_article(self._called(rule.entity))
        copy = f"the {self._noun(rule.entity, rule.copy)} of {holder}"
        original = (
            f"the {self._noun(rule.target, rule.original)} of the {self._noun(rule.entity, rule.through)} of {holder}"
        )
        right, wrong = (copy, original) if rule.copy_is_right else (original, copy)
        order = "right_before_wrong" if self._rng.integers(2) else "wrong_before_right"
        return self._speaker.say(order, right=right, wrong=wrong)

    def _duty(self, rule: Duty, deed: str) -> str:
        target, of = self._entities[rule.target], f"{self._its(rule.entity)} {self._noun(rule.entity, rule.field)}"
        verb = target.verbs[rule.then]
        state = " and ".join(
            f"the {self._noun(rule.target, name)} of {of} "
            + self._speaker.holds(target, Where(name, "is", Literal(value)))
            for name, value in verb.needs.items()
        )
        then = verb_with_object(verb, self._skin.verbs[rule.target, rule.then], of)
        return self._speaker.say("duty", deed=deed, then=then, state=state)

    def _field(self, entity: str, name: str) -> Field:
        return self._entities[entity].fields[name]

    def _called(self, entity: str) -> str:
        return spoken(self._skin.entities[entity][0])

    def _its(self, entity: str) -> str:
        return "their" if self._entities[entity].person else "its"

    def _noun(self, entity: str, name: str) -> str:
        return self._field(entity, name).noun(self._skin.fields[entity, name])

    def _given(self, rule: Limit | Linked) -> str:
        """Return what a rule's field is called: where the verb gives it, its new value counts."""
        noun = self._noun(rule.entity, rule.field)
        return f"new {noun}" if rule.field in self._entities[rule.entity].verbs[rule.verb].gives else noun
