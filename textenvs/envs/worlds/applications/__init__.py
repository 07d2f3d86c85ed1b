"""The applications that worlds are made of: entities with fields, and the verbs that change their records.

Each is a YAML file of this folder (docs/environments/worlds.md has its format). Whatever a world calls things, the code
has their names in these files: an entity is ``calendar.meeting``, a field of it ``room``, a verb ``cancel``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal, TypeAlias

from ....text import load_yaml

Kind = Literal["name", "ref", "number", "money", "day", "choice"]
#: What a field holds: a text, an id, the name of a choice, or a number (euros, the day of the year).
Value: TypeAlias = "str | int"
#: Of the year; 365 is the last.
DAYS = 365

_VERBS = ("creates", "changes", "actions")


@dataclass(frozen=True)
class Field:
    """A field of an entity.

    Args:
        called: Its names; a world draws one.
        to: The entity that a ``ref`` is to.
        words: The two word lists that a ``name`` is made of.
        low, high, step: Of numbers, ``high`` included.
        values: The names of each value of a ``choice``.
    """

    name: str
    kind: Kind
    called: tuple[str, ...]
    to: str = ""
    words: tuple[str, str] | None = None
    low: int = 0
    high: int = 0
    step: int = 1
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "money", "day")

    def domain(self) -> Sequence[Value]:
        """Return all values of a number or a choice, in order."""
        return range(self.low, self.high + 1, self.step) if self.is_number else tuple(self.values)


@dataclass(frozen=True)
class Verb:
    """A way to change records of an entity.

    Args:
        kind: ``"create"`` makes a record; ``"change"`` gives fields of one another value, which the call has; an
            ``"act"`` gives them values of its own.
        gives: The fields that a call has values for.
        needs: The values of fields without which the record refuses.
        sets: The values that the verb gives.
    """

    name: str
    kind: Literal["create", "change", "act"]
    called: tuple[str, ...]
    gives: tuple[str, ...] = ()
    needs: Mapping[str, Value] = field(default_factory=dict)
    sets: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Entity:
    """A kind of record: a table of the store."""

    key: str  # application.entity
    called: tuple[str, ...]
    plural: tuple[str, ...]  # of each of ``called``
    share: int
    label: str
    fields: Mapping[str, Field]
    verbs: Mapping[str, Verb]

    @property
    def application(self) -> str:
        return self.key.partition(".")[0]


@dataclass(frozen=True)
class Application:
    """An application: entities that its tools are for."""

    name: str
    called: tuple[str, ...]
    entities: Mapping[str, Entity]  # by key


class ApplicationError(ValueError):
    """A file of an application does not fit its format; the message names the file and the place in it."""


@functools.cache
def applications() -> Mapping[str, Application]:
    """Return all applications by name; :class:`ApplicationError` names what is wrong in which file."""
    names = sorted(file.name for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml"))
    made = {name.removesuffix(".yaml"): _application(name, load_yaml(__package__, name)) for name in names}
    entities = {key for application in made.values() for key in application.entities}
    for application in made.values():
        for entity in application.entities.values():
            for one in entity.fields.values():
                if one.kind == "ref" and one.to not in entities:
                    raise ApplicationError(f"{entity.key}: field {one.name!r} refers to {one.to!r}, which is nowhere")
    return made


def plural_of(word: str) -> str:
    """Return the plural of a regular noun."""
    if re.search(r"(s|x|z|ch|sh)$", word):
        return f"{word}es"
    return f"{word[:-1]}ies" if re.search(r"[^aeiou]y$", word) else f"{word}s"


def _application(file: str, raw: Mapping[str, Any]) -> Application:
    name = file.removesuffix(".yaml")
    _known(file, raw, ("called", "entities"))
    entities = {f"{name}.{key}": _entity(file, f"{name}.{key}", value) for key, value in raw["entities"].items()}
    _distinct(file, "entities", [one.called for one in entities.values()])
    return Application(name, tuple(raw["called"]), entities)


def _entity(file: str, key: str, raw: Mapping[str, Any]) -> Entity:
    where = f"{file}: {key}"
    _known(where, raw, ("called", "plural", "share", "label", "fields", *_VERBS))
    fields = {name: _field(f"{where}: field {name}", name, value) for name, value in raw["fields"].items()}
    called = tuple(raw["called"])
    plural = tuple(raw.get("plural") or map(plural_of, called))
    if len(plural) != len(called):
        raise ApplicationError(f"{where}: plural has {len(plural)} words for {len(called)} in called")
    if raw["label"] not in fields or fields[raw["label"]].kind != "name":
        raise ApplicationError(f"{where}: label {raw['label']!r} is no field of kind name")
    verbs = [*_verbs(where, raw, fields)]
    _distinct(where, "fields", [one.called for one in fields.values()])
    _distinct(where, "verbs", [one.called for one in verbs])
    return Entity(key, called, plural, int(raw["share"]), raw["label"], fields, {verb.name: verb for verb in verbs})


def _field(where: str, name: str, raw: Mapping[str, Any]) -> Field:
    kind: Kind = raw["kind"]
    called = tuple(raw["called"])
    if kind == "name":
        first, last = raw["words"]
        return Field(name, kind, called, words=(first, last))
    if kind == "ref":
        return Field(name, kind, called, to=raw["to"])
    if kind in ("number", "money"):
        low, high, step = (int(raw[part]) for part in ("from", "to", "step"))
        if (high - low) // step < 6:
            raise ApplicationError(f"{where}: it needs at least 7 values, {low} to {high} has fewer")
        return Field(name, kind, called, low=low, high=high, step=step)
    if kind == "day":
        return Field(name, kind, called, low=1, high=DAYS)
    if kind == "choice":
        values = {str(value): tuple(words) for value, words in raw["values"].items()}
        _distinct(where, "values", list(values.values()))
        return Field(name, kind, called, values=values)
    raise ApplicationError(f"{where}: kind {kind!r} is none of name, ref, number, money, day, choice")


def _verbs(where: str, raw: Mapping[str, Any], fields: Mapping[str, Field]) -> list[Verb]:
    verbs = []
    if created := raw.get("creates"):
        verbs.append(Verb("create", "create", tuple(created["called"]), tuple(created["gives"]), {}, created["sets"]))
        if missing := set(fields) - set(created["gives"]) - set(created["sets"]):
            raise ApplicationError(f"{where}: creates has no value for {', '.join(sorted(missing))}")
    for name, one in (raw.get("changes") or {}).items():
        verbs.append(Verb(name, "change", tuple(one["called"]), tuple(one["gives"]), one.get("needs") or {}))
    for name, one in (raw.get("actions") or {}).items():
        verbs.append(Verb(name, "act", tuple(one["called"]), (), one["needs"], one["sets"]))
    for verb in verbs:
        for part in verb.gives:
            if part not in fields or (verb.kind != "create" and fields[part].kind == "name"):
                raise ApplicationError(f"{where}: {verb.name} gives {part!r}, which is no field that it can change")
        for part, value in (*verb.needs.items(), *verb.sets.items()):
            if part not in fields or value not in fields[part].domain():
                raise ApplicationError(f"{where}: {verb.name} has {part}: {value!r}, which is no value of a field")
    return verbs


def _known(where: str, raw: Mapping[str, Any], keys: Sequence[str]) -> None:
    if unknown := set(raw) - set(keys):
        raise ApplicationError(f"{where}: {', '.join(sorted(unknown))} is not one of {', '.join(keys)}")


def _distinct(where: str, what: str, groups: Sequence[Sequence[str]]) -> None:
    """Raise unless all words are one thing's alone: a world draws any of each."""
    words = [word for group in groups for word in group]
    if twice := sorted({word for word in words if words.count(word) > 1}):
        raise ApplicationError(f"{where}: {what} share {', '.join(twice)}")
