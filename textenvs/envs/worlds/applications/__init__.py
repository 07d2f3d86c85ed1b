"""The applications that worlds are made of: entities with fields, and the verbs that change their records.

Each is a YAML file of this folder (docs/environments/worlds.md has its format). Whatever a world calls things, the code
has their names in these files: an entity is ``calendar.meeting``, a field of it ``room``, a verb ``cancel``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal, TypeAlias

from ....text import load_yaml

Kind = Literal["name", "ref", "number", "money", "day", "choice"]
#: What a field holds: a text, an id, the name of a choice, or a number (euros, the day of the year).
Value: TypeAlias = "str | int"
#: Of the year; 365 is the last.
DAYS = 365

#: What names in files look like; a verb may have an object inside (``"mark {} as faulty"``).
_NAME = re.compile(r"[a-z]+(_[a-z]+)*")
_VERB = re.compile(r"[a-z]+([ _][a-z]+)*( \{\}( [a-z]+)+)?")

#: The kinds of fields, with the keys that each has besides ``kind`` and ``called``.
_FIELD_KEYS: Mapping[Kind, tuple[str, ...]] = {
    "name": ("words",),
    "ref": ("to",),
    "number": ("from", "to", "step"),
    "money": ("from", "to", "step"),
    "day": (),
    "choice": ("values",),
}
#: What a file calls a field that repeats one of the record referred to; and kinds that can be repeated.
_COPY, _COPIED = "copy", ("ref", "number", "money", "day")


@dataclass(frozen=True)
class Field:
    """A field of an entity.

    Args:
        called: Its names; a world draws one.
        to: The entity that a ``ref`` is to.
        words: The two word lists that a ``name`` is made of.
        low, high, step: Of numbers, ``high`` included.
        unit: What a ``number`` counts or is measured in, in the plural; empty where it needs none.
        values: The names of each value of a ``choice``.
        copy_of: Of a field that repeats another: the reference to that record, and the field there. The two values may
            differ: a copy can be out of date, or its original.
    """

    name: str
    kind: Kind
    called: tuple[str, ...]
    to: str = ""
    words: tuple[str, str] | None = None
    low: int = 0
    high: int = 0
    step: int = 1
    unit: str = ""
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    copy_of: tuple[str, str] | None = None

    @property
    def is_number(self) -> bool:
        return self.kind in ("number", "money", "day")

    def noun(self, called: str) -> str:
        """Return one of its names as a singular noun: ``seats`` are a ``number of seats``."""
        words = called.replace("_", " ")
        return f"number of {words}" if self.kind == "number" and re.search(r"[^s]s$", words) else words

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
        phrases: What users say for each of ``called`` that is more than a word before its object: the object stands
            for ``{}``, as in ``"mark {} as faulty"``.
    """

    name: str
    kind: Literal["create", "change", "act"]
    called: tuple[str, ...]
    gives: tuple[str, ...] = ()
    needs: Mapping[str, Value] = field(default_factory=dict)
    sets: Mapping[str, Value] = field(default_factory=dict)
    phrases: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entity:
    """A kind of record: a table of the store.

    Args:
        key: The application and the entity, joined by a dot.
        called: Its names in the singular; a world draws one.
        plural: The plural of each.
        share: How many records it has, in proportion to the other entities of a world.
        label: The field of kind ``name`` that people call a record by.
        person: Whether the records are people: ``they``, not ``it``.
    """

    key: str
    called: tuple[str, ...]
    plural: tuple[str, ...]
    share: int
    label: str
    fields: Mapping[str, Field]
    verbs: Mapping[str, Verb]
    person: bool = False

    @property
    def application(self) -> str:
        return self.key.partition(".")[0]

    @functools.cached_property
    def own_fields(self) -> Mapping[str, Field]:
        """The fields that repeat none of another record."""
        return {name: one for name, one in self.fields.items() if one.copy_of is None}

    @functools.cached_property
    def copies(self) -> Sequence[tuple[str, str, str]]:
        """The fields that repeat another: their names, the references to these records, the fields there."""
        return [(name, *one.copy_of) for name, one in self.fields.items() if one.copy_of is not None]


@dataclass(frozen=True)
class Application:
    """An application: entities that its tools are for."""

    name: str
    called: tuple[str, ...]
    entities: Mapping[str, Entity]  # by key


class ApplicationError(ValueError):
    """A file of an application does not fit its format; the message names the file, the key, and what fits there."""


@functools.cache
def applications() -> Mapping[str, Application]:
    """Return all applications by name; :class:`ApplicationError` names what is wrong in which file."""
    names = sorted(file.name for file in resources.files(__package__).iterdir() if file.name.endswith(".yaml"))
    made = {name.removesuffix(".yaml"): _application(name, load_yaml(__package__, name)) for name in names}
    lists = load_yaml(__package__.rpartition(".")[0], "words.yaml")
    entities = {key: entity for application in made.values() for key, entity in application.entities.items()}
    for key, entity in entities.items():
        for one in entity.fields.values():
            where = f"{entity.application}.yaml: {key}: field {one.name}"
            if one.kind == "ref" and one.to not in entities:
                raise ApplicationError(f"{where}: to is {one.to!r}, which is nowhere; an entity is application.entity")
            if unknown := [words for words in one.words or () if words not in lists]:
                raise ApplicationError(f"{where}: words has {unknown[0]!r}, which is no list of words.yaml")
    return {
        name: replace(one, entities={key: _with_copies(entity, entities) for key, entity in one.entities.items()})
        for name, one in made.items()
    }


def _with_copies(entity: Entity, entities: Mapping[str, Entity]) -> Entity:
    """Return an entity whose copies are of the kind of what they repeat."""
    fields = dict(entity.fields)
    for name, through, original in entity.copies:
        where = f"{entity.application}.yaml: {entity.key}: field {name}"
        if through not in entity.own_fields or entity.own_fields[through].kind != "ref":
            raise ApplicationError(f"{where}: of has {through!r}, which is no field of kind ref of {entity.key}")
        target = entities[entity.own_fields[through].to]
        if original not in target.own_fields or target.own_fields[original].kind not in _COPIED:
            kinds = ", ".join(_COPIED)
            raise ApplicationError(f"{where}: of has {original!r}, which is no field of kind {kinds} of {target.key}")
        one = fields[name]
        fields[name] = replace(target.own_fields[original], name=name, called=one.called, copy_of=one.copy_of)
    return replace(entity, fields=fields) if entity.copies else entity


def plural_of(word: str) -> str:
    """Return the plural of a regular noun."""
    if re.search(r"(s|x|z|ch|sh)$", word):
        return f"{word}es"
    return f"{word[:-1]}ies" if re.search(r"[^aeiou]y$", word) else f"{word}s"


def _application(file: str, raw: Any) -> Application:
    name = file.removesuffix(".yaml")
    _known(file, raw, ("called", "entities"))
    parts = _mapping(file, raw, "entities")
    entities = {f"{name}.{key}": _entity(f"{file}: {name}.{key}", f"{name}.{key}", one) for key, one in parts.items()}
    _distinct(file, "entities", [one.called for one in entities.values()])
    return Application(name, _names(file, raw, "called"), entities)


def _entity(where: str, key: str, raw: Any) -> Entity:
    optional = ("plural", "person", "creates", "changes", "actions")
    _known(where, raw, ("called", "share", "label", "fields"), optional)
    fields = {
        name: _field(f"{where}: field {name}", str(name), one) for name, one in _mapping(where, raw, "fields").items()
    }
    called = _names(where, raw, "called")
    plural = _names(where, raw, "plural") if "plural" in raw else tuple(map(plural_of, called))
    if len(plural) != len(called):
        raise ApplicationError(f"{where}: plural has {len(plural)} words for {len(called)} in called")
    if raw["label"] not in fields or fields[raw["label"]].kind != "name":
        raise ApplicationError(f"{where}: label {raw['label']!r} is no field of kind name")
    if not isinstance(person := raw.get("person", False), bool):
        raise ApplicationError(f"{where}: person must be true or false, not {person!r}")
    verbs = [*_verbs(where, raw, fields)]
    _distinct(where, "fields", [one.called for one in fields.values()])
    _distinct(where, "verbs", [one.called for one in verbs])
    share = _integer(where, raw, "share", 1)
    return Entity(key, called, plural, share, raw["label"], fields, {verb.name: verb for verb in verbs}, person)


def _field(where: str, name: str, raw: Any) -> Field:
    if isinstance(raw, Mapping) and raw.get("kind") == _COPY:
        return _copy(where, name, raw)
    if not isinstance(raw, Mapping) or raw.get("kind") not in [*_FIELD_KEYS]:
        wrong = raw.get("kind") if isinstance(raw, Mapping) else raw
        raise ApplicationError(f"{where}: kind {wrong!r} is none of {', '.join((*_FIELD_KEYS, _COPY))}")
    kind: Kind = raw["kind"]
    _known(where, raw, ("kind", "called", *_FIELD_KEYS[kind]), ("unit",) if kind == "number" else ())
    called = _names(where, raw, "called")
    if kind == "name":
        words = _names(where, raw, "words")
        if len(words) != 2:
            raise ApplicationError(f"{where}: words must name two lists of words.yaml, not {len(words)}")
        return Field(name, kind, called, words=(words[0], words[1]))
    if kind == "ref":
        return Field(name, kind, called, to=str(raw["to"]))
    if kind == "day":
        return Field(name, kind, called, low=1, high=DAYS)
    if kind == "choice":
        values = _mapping(where, raw, "values")
        names = {str(value): _names(f"{where}: values", values, value) for value in values}
        _distinct(where, "values", list(names.values()))
        return Field(name, kind, called, values=names)
    low, high, step = _integer(where, raw, "from"), _integer(where, raw, "to"), _integer(where, raw, "step", 1)
    if (high - low) // step < 6:
        raise ApplicationError(f"{where}: it needs at least 7 values, {low} to {high} has fewer")
    if not isinstance(unit := raw.get("unit", ""), str):
        raise ApplicationError(f"{where}: unit must be a noun in the plural, not {unit!r}")
    return Field(name, kind, called, low=low, high=high, step=step, unit=unit)


def _copy(where: str, name: str, raw: Mapping[str, Any]) -> Field:
    """Return a field that repeats another, of any kind: that of the other is not read yet."""
    _known(where, raw, ("kind", "called", "of"))
    reference, dot, original = str(raw["of"]).partition(".")
    if not (reference and dot and original):
        raise ApplicationError(f"{where}: of is {raw['of']!r}, not a reference and a field, as in owner.desk")
    return Field(name, "number", _names(where, raw, "called"), copy_of=(reference, original))


def _verbs(where: str, raw: Mapping[str, Any], fields: Mapping[str, Field]) -> list[Verb]:
    verbs = []
    if "creates" in raw:
        verbs.append(_verb(f"{where}: creates", "create", "create", raw["creates"], ("gives", "sets")))
        if copies := [name for name, one in fields.items() if one.copy_of is not None]:
            raise ApplicationError(f"{where}: it has creates and {copies[0]}, a copy; a new record would have no value")
        if missing := set(fields) - set(verbs[0].gives) - set(verbs[0].sets):
            raise ApplicationError(f"{where}: creates has no value for {', '.join(sorted(missing))}")
    for name, one in _mapping(where, raw, "changes", optional=True).items():
        verbs.append(_verb(f"{where}: {name}", str(name), "change", one, ("gives",), ("needs",)))
    for name, one in _mapping(where, raw, "actions", optional=True).items():
        verbs.append(_verb(f"{where}: {name}", str(name), "act", one, ("needs", "sets")))
    for verb in verbs:
        for part in verb.gives:
            if part not in fields or fields[part].copy_of or (verb.kind != "create" and fields[part].kind == "name"):
                raise ApplicationError(f"{where}: {verb.name} gives {part!r}, which is no field that it can change")
        for part, value in (*verb.needs.items(), *verb.sets.items()):
            if part not in fields or value not in fields[part].domain():
                raise ApplicationError(f"{where}: {verb.name} has {part}: {value!r}, which is no value of a field")
    return verbs


def _verb(
    where: str,
    name: str,
    kind: Literal["create", "change", "act"],
    raw: Any,
    required: Sequence[str],
    optional: Sequence[str] = (),
) -> Verb:
    _known(where, raw, ("called", *required), optional)
    phrases = {re.sub(r"\{\} ", "", one).replace(" ", "_"): one for one in _names(where, raw, "called", _VERB)}
    gives = _names(where, raw, "gives") if "gives" in raw else ()
    needs, sets = (_mapping(where, raw, part, optional=True) for part in ("needs", "sets"))
    return Verb(
        name, kind, tuple(phrases), gives, needs, sets, {key: one for key, one in phrases.items() if "{}" in one}
    )


def _known(where: str, raw: Any, keys: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raise unless a part of a file is a mapping that has all of some keys, and no others but the optional ones."""
    if not isinstance(raw, Mapping):
        raise ApplicationError(f"{where} must be a mapping with {', '.join(keys)}, not {raw!r}")
    every = ", ".join((*keys, *optional))
    if unknown := sorted(str(key) for key in set(raw) - {*keys, *optional}):
        raise ApplicationError(f"{where}: {', '.join(unknown)} is not one of {every}")
    if missing := [key for key in keys if key not in raw]:
        raise ApplicationError(f"{where}: {', '.join(missing)} is missing; there must be {', '.join(keys)}")


def _names(where: str, raw: Mapping[Any, Any], key: str, form: re.Pattern[str] = _NAME) -> tuple[str, ...]:
    names = raw[key]
    if not isinstance(names, list) or not names:
        raise ApplicationError(f"{where}: {key} must be a list of names, not {names!r}")
    if wrong := [one for one in names if not isinstance(one, str) or not form.fullmatch(one)]:
        inside = ", or words with their object as {}" if form is _VERB else ""
        raise ApplicationError(f"{where}: {key} has {wrong[0]!r}; a name is small letters, joined by _{inside}")
    return tuple(names)


def _mapping(where: str, raw: Mapping[str, Any], key: str, optional: bool = False) -> Mapping[str, Any]:
    value = raw.get(key, {}) if optional else raw[key]
    if not isinstance(value, Mapping) or not (value or optional):
        raise ApplicationError(f"{where}: {key} must be a mapping with at least one entry, not {value!r}")
    return value


def _integer(where: str, raw: Mapping[str, Any], key: str, low: int | None = None) -> int:
    value = raw[key]
    if isinstance(value, bool) or not isinstance(value, int) or (low is not None and value < low):
        raise ApplicationError(
            f"{where}: {key} must be an integer{'' if low is None else f' from {low}'}, not {value!r}"
        )
    return value


def _distinct(where: str, what: str, groups: Sequence[Sequence[str]]) -> None:
    """Raise unless all words are one thing's alone: a world draws any of each."""
    words = [word for group in groups for word in group]
    if twice := sorted({word for word in words if words.count(word) > 1}):
        raise ApplicationError(f"{where}: {what} share {', '.join(twice)}")
