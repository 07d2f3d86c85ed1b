"""Names that a world calls things by: each application, entity, field, verb and value has one of its names.

Tools and results use the names of one skin. The user speaks with another, drawn from the same sets, where the level has
users with words of their own.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .applications import Entity, Field, Value, Verb
from .schema import Schema

#: Names of the two tools that read. No verb of an application may be called so.
FIND = ("find", "search", "look_up", "list")
GET = ("get", "show", "view", "read")

_FIRST_DAY = datetime.date(2026, 1, 1).toordinal() - 1


@dataclass(frozen=True)
class Skin:
    """The names of a world's things, by their names in the code."""

    applications: Mapping[str, str]
    entities: Mapping[str, tuple[str, str]]  # in the singular and in the plural
    fields: Mapping[tuple[str, str], str]  # by entity and field
    verbs: Mapping[tuple[str, str], str]  # by entity and verb; "find" and "get" for all, without an entity
    values: Mapping[tuple[str, str, str], str]  # by entity, field and value

    @classmethod
    def draw(cls, schema: Schema, rng: np.random.Generator) -> Skin:
        numbers = iter(rng.integers(0, 2**31, 2 + schema.name_count).tolist())

        def one(words: tuple[str, ...]) -> str:
            return words[next(numbers) % len(words)]

        entities, fields, verbs, values = {}, {}, {("", "find"): one(FIND), ("", "get"): one(GET)}, {}
        for key, entity in schema.entities.items():
            place = next(numbers) % len(entity.called)
            entities[key] = entity.called[place], entity.plural[place]
            for name, field in entity.fields.items():
                fields[key, name] = one(field.called)
                for value, words in field.values.items():
                    values[key, name, value] = one(words)
            for name, verb in entity.verbs.items():
                verbs[key, name] = one(verb.called)
        applications = {name: one(application.called) for name, application in schema.applications.items()}
        return cls(applications, entities, fields, verbs, values)

    def tool(self, entity: Entity, verb: Verb | str) -> str:
        """Return the name of the tool for a verb, or for ``"find"`` or ``"get"``."""
        singular, plural = self.entities[entity.key]
        name = self.verbs["", verb] if isinstance(verb, str) else self.verbs[entity.key, verb.name]
        return f"{self.applications[entity.application]}_{name}_{plural if verb == 'find' else singular}"

    def written(self, entity: Entity, field: Field, value: Value) -> Value:
        """Return how a value is written in results and arguments."""
        if field.kind == "choice":
            return self.values[entity.key, field.name, str(value)]
        return date_text(int(value)) if field.kind == "day" else value

    def read(self, entity: Entity, field: Field, written: object) -> Value | None:
        """Return the value that is written so; ``None`` where it is none of the field's."""
        if field.kind == "choice":
            values = (value for value in field.values if self.values[entity.key, field.name, value] == written)
            return next(values, None)
        if field.kind == "day":
            return _day_of(written)
        if field.is_number:
            is_whole = isinstance(written, int | float) and not isinstance(written, bool) and written == int(written)
            return int(written) if is_whole else None  # type: ignore[arg-type, call-overload]
        return written if isinstance(written, str) else None


def date_of(day: int) -> datetime.date:
    """Return the date of a day of the year, from 1."""
    return datetime.date.fromordinal(_FIRST_DAY + day)


def date_text(day: int) -> str:
    """Return a day of the year as an ISO date."""
    return date_of(day).isoformat()


def _day_of(written: object) -> int | None:
    try:
        return datetime.date.fromisoformat(str(written)).toordinal() - _FIRST_DAY
    except ValueError:
        return None


def spoken(name: str) -> str:
    """Return a name as people say it."""
    return name.replace("_", " ")


def with_article(noun: str) -> str:
    """Return a noun with "a" or "an" before it: a unit, an update."""
    return f"{'an' if re.match(r'[aeio]|u(?!ni|s[aeiu])', noun) else 'a'} {noun}"
