"""Descriptions of a schema: its keys, their allowed values, and the text of ``--help``."""

from __future__ import annotations

import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .alias import Alias
from .variants import Variants
from .yaml12 import dump

#: Maximum width of ``--help``.
_COLUMNS = 100
_SCALARS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Key:
    """One key: its dotted name, type and allowed values; a mapping of names to sections has ``entries``."""

    name: str
    annotation: Any
    allowed: str
    default: Any
    description: str
    #: The values of ``switch``, another key, with which the key is read; none for every value
    readers: tuple[str, ...] = ()
    switch: str = ""

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def nullable(self) -> bool:
        return self.default is None or type(None) in typing.get_args(self.annotation)

    @property
    def free_form(self) -> bool:
        """True for a mapping with keys of its own, whose entries can be set one by one."""
        return typing.get_origin(self.annotation) is dict

    @cached_property
    def entries(self) -> dict[str, Key]:
        """Keys of each entry of a mapping from names to sections; else empty."""
        return {key.name: key for group in _entry_groups(self.annotation) for key in group.keys}

    @property
    def wants_text(self) -> bool:
        """True if only text is accepted, so that ``experiment_name=007`` means the three characters."""
        return _scalar_types(self.annotation) == {str}


class Group(NamedTuple):
    """The keys of one section, and its description."""

    name: str
    description: str
    keys: tuple[Key, ...]


def groups(schema: type[BaseModel], prefix: str = "", section: BaseModel | None = None) -> Iterator[Group]:
    """Yield all sections with keys of their own, in the order of the schema.

    Of a section with variants, all keys of all of them; with a ``section`` of the schema, those of the one that it has.
    """
    keys: list[Key] = []
    below: list[Iterable[Group]] = []
    for name, info in schema.model_fields.items():
        dotted, value, kind = f"{prefix}{name}", getattr(section, name, None), info.annotation
        below_it = groups(type(value), f"{dotted}.", value) if isinstance(value, BaseModel) else None
        if (variants := Variants.of(info)) is not None:
            chosen = None if below_it is None else _with_switch(below_it, variants)
            below.append(chosen or _merged(variants, dotted, kind.__doc__ or ""))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            below.append(below_it or groups(kind, f"{dotted}."))
        elif (key := _key(dotted, info, _description(schema, name))).entries:  # sections whose names are the user's
            if section is None and (alias := Alias.of(info)) is not None:
                below.append(_of_alias(alias, kind))
            below.append([Group(dotted, key.description, (key,))])
        else:
            keys.append(key)
    if keys:
        yield Group(prefix.rstrip("."), _first_paragraph(schema.__doc__ or ""), tuple(keys))
    yield from itertools.chain(*below)


def _entry_groups(mapping: Any, name: str = "") -> Iterator[Group]:
    """Yield the groups of the entries of a mapping from names to sections, as a section ``name``; else none."""
    if typing.get_origin(mapping) is not dict:
        return
    entry = typing.get_args(mapping)[1]
    kind, *metadata = typing.get_args(entry) if typing.get_origin(entry) is Annotated else (entry,)
    if variants := next((item for item in metadata if isinstance(item, Variants)), None):
        yield from _merged(replace(variants, section=name), name, kind.__doc__ or "")
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from groups(kind, name and f"{name}.")


def _of_alias(alias: Alias, mapping: Any) -> Iterator[Group]:
    """Yield the groups of a section that stands for an entry, with the key that adds it."""
    first, *rest = _entry_groups(mapping, alias.section)
    yield first._replace(keys=(Key(alias.switch, bool, _allowed(bool), False, alias.about), *first.keys))
    yield from rest


def _merged(variants: Variants, name: str, doc: str) -> Iterator[Group]:
    """Yield the section ``name`` with the keys of all its variants, each key once."""
    sections: dict[str, str] = {}
    keys: dict[str, dict[tuple[str, str, str], tuple[Key, list[str]]]] = {}
    for value, kind in variants.classes.items():
        for group in groups(kind, name and f"{name}."):
            sections.setdefault(group.name, _first_paragraph(doc) if group.name == name else group.description)
            for key in group.keys:
                keys.setdefault(key.name, {}).setdefault(_text(key), (key, []))[1].append(value)
    merged = {key: _merged_key([*definitions.values()], variants) for key, definitions in keys.items()}
    for section, description in sections.items():
        yield Group(section, description, tuple(key for key in merged.values() if key.section == section))


def _with_switch(groups_of_variant: Iterable[Group], variants: Variants) -> Iterator[Group]:
    """Describe the key that chooses as that of the whole section, not as the one value that its variant has."""
    for group in groups_of_variant:
        yield group._replace(
            keys=tuple(_switch(key, variants) if key.name == variants.switch else key for key in group.keys)
        )


def _switch(key: Key, variants: Variants) -> Key:
    kind = Literal[tuple(variants.classes)]  # type: ignore[valid-type]
    return replace(key, annotation=kind, allowed=_allowed(kind), default=variants.default)


def _merged_key(definitions: Sequence[tuple[Key, Sequence[str]]], variants: Variants) -> Key:
    """Describe a key that variants define, in one way or in several."""
    key, values = definitions[0]
    if key.name == variants.switch:
        return _switch(key, variants)
    readers = [value for value in variants.classes if any(value in read for _, read in definitions)]
    if len(readers) == len(variants.classes) and len(definitions) == 1:
        return key
    texts: dict[str, list[str]] = {}
    for definition, read in definitions:
        texts.setdefault(definition.description, []).extend(read)
    inner = key.section != variants.section  # which says so itself
    text = key.description if inner else key.description + _scope(readers, variants)
    if len(texts) > 1:
        text = " ".join(f"With {_code(read)}: {description}" for description, read in texts.items())
    if len({dump(definition.default) for definition, _ in definitions}) > 1:
        defaults = (f"{dump(definition.default)} for {_code(read)}" for definition, read in definitions)
        text += f" The default is {'; '.join(defaults)}."
    allowed = key.allowed
    if len({definition.allowed for definition, _ in definitions}) > 1:
        allowed = "; ".join(f"{definition.allowed} for {', '.join(read)}" for definition, read in definitions)
    return replace(key, allowed=allowed, description=text, readers=tuple(readers), switch=variants.switch)


def _scope(readers: Sequence[str], variants: Variants) -> str:
    """Say which variants have a key, in the shorter way."""
    missing = [value for value in variants.classes if value not in readers]
    if not missing:
        return ""
    return f" Not with {_code(missing)}." if len(missing) < len(readers) else f" Only with {_code(readers)}."


def _text(key: Key) -> tuple[str, str, str]:
    return key.description, key.allowed, dump(key.default)


def _code(values: Sequence[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _first_paragraph(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


@cache
def all_keys(schema: type[BaseModel]) -> Mapping[str, Key]:
    """Return the keys of a schema by name; computed once."""
    return types.MappingProxyType({key.name: key for group in groups(schema) for key in group.keys})


def key_at(name: str, keys: Mapping[str, Key]) -> Key | None:
    """Return the key that ``name`` is or lies below (``env.kwargs`` of ``env.kwargs.level``), if there is one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        key = keys.get(".".join(parts[:length]))
        if key is None:
            continue
        if length == len(parts) or not (entries := key.entries):
            return key
        inner = key_at(".".join(parts[length + 1 :]), entries)
        entry = ".".join(parts[: length + 1])
        return inner and replace(inner, name=f"{entry}.{inner.name}", switch=inner.switch and f"{entry}.{inner.switch}")
    return None


def is_key(name: str, keys: Mapping[str, Key]) -> bool:
    """Return whether ``name`` is a key, or an entry of a free-form mapping."""
    owner = key_at(name, keys)
    return owner is not None and (name == owner.name or owner.free_form)


def help_text(schema: type[BaseModel], usage: str, topic: str | None = None) -> str | None:
    """Return the text of ``--help``, at most 100 columns wide: usage, and the sections by name.

    With a ``topic`` (a section, or a key), return its keys with type, default and description; ``None`` if there is no
    such section or key. ``all`` is every key.
    """
    sections = list(groups(schema))
    if topic is not None:
        chosen = [
            group._replace(keys=keys)
            for group in sections
            if (keys := tuple(key for key in group.keys if topic == "all" or _below(key.name, topic)))
        ]
        lines = [line for group in chosen for line in ("", *_section_lines(group))]
        return "\n".join([*_usage(usage), *lines] if topic == "all" else lines[1:]) if chosen else None
    lines = [*_usage(usage), "", "sections (--help SECTION shows the keys of one):", ""]
    width = max(len(group.name) for group in sections) + 2
    for group in sections:
        about = group.description.partition(". ")[0].rstrip(".")
        lines.append(f"  {group.name:{width}}{textwrap.shorten(about, _COLUMNS - 2 - width, placeholder=' ...')}")
    return "\n".join(lines)


def _usage(usage: str) -> list[str]:
    return [
        f"usage: {usage} [--config FILE.yaml]... [key=value]...",
        "           [--dry-run [--all] [--plan-for GPUS@GIB]]",
        f"       {usage} --help [SECTION | KEY | --all]",
        "",
        "  key=value      set a key; values are YAML (actor.lr=1e-4, trainer.logger=[console, jsonl],",
        "                 env.kwargs.x=1)",
        "  --config FILE  read keys from a file; later files win over earlier ones, key=value over all files",
        "  --dry-run      print what differs from the defaults and where it came from, try what a run begins",
        "                 with, and stop; with --all, print every key; with --plan-for 4@80, place the run on",
        "                 a machine with 4 GPUs of 80 GiB instead of this one (2x8@80: on two with 8 each)",
        "  --help         this; --help actor: the keys of a section; --help actor.lr: a key; --help --all:",
        "                 every key",
    ]


def _section_lines(group: Group) -> Iterator[str]:
    yield from _wrapped(f"{group.name}: {group.description}", 0, 2)
    for key in group.keys:
        yield from _wrapped(f"{key.name} = {dump(key.default)}   ({key.allowed})", 2, 4)
        yield from _wrapped(key.description, 6, 6)


def _below(name: str, topic: str) -> bool:
    return name == topic or name.startswith(f"{topic}.")


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    """Return lines of at most 100 columns; a longer word is broken."""
    return textwrap.wrap(
        text, _COLUMNS, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False
    )


def _description(schema: type[BaseModel], name: str) -> str | None:
    """Return a field's description, or that of the field of a base class that it overrides."""
    owners = (kind for kind in schema.__mro__ if issubclass(kind, BaseModel) and name in kind.model_fields)
    return next((text for kind in owners if (text := kind.model_fields[name].description)), None)


def _key(name: str, info: FieldInfo, description: str | None) -> Key:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined or not description:
        raise TypeError(f"configuration key {name}: a default and a description are needed")
    text = " ".join(description.split())
    return Key(name, info.annotation, _allowed(info.annotation, info.metadata), default, text)


def _allowed(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe the values that a type with its constraints accepts."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:  # pydantic's ``Field`` holds constraints, too
        constraints = [
            entry for item in arguments[1:] for entry in (item.metadata if isinstance(item, FieldInfo) else [item])
        ]
        return _allowed(arguments[0], [*constraints, *metadata])
    if annotation is type(None):
        return "null"
    if origin in (Union, types.UnionType):
        return ", or ".join(_allowed(part, metadata) for part in arguments)
    if origin is Literal:
        words = list(map(str, arguments))
        return " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return f"a list of {len(arguments)}: {'; '.join(_allowed(part) for part in arguments)}"
        return f"{_allowed(arguments[0])}, or a list of such"
    if origin is dict:
        return "a mapping"
    bounds = [
        f"{sign} {bound if isinstance(bound := getattr(constraint, attribute), int) else f'{bound:g}'}"
        for attribute, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        for constraint in metadata
        if hasattr(constraint, attribute)
    ]
    bounds += [f"like `{pattern}`" for entry in metadata if (pattern := getattr(entry, "pattern", None))]
    return " ".join([_SCALARS[annotation], " and ".join(bounds)]).strip()


def _scalar_types(annotation: Any) -> set[type]:
    """Return the scalar types that a type accepts, apart from null; ``dict`` for a mapping."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return set(map(type, arguments))
    if origin is dict:
        return {dict}
    if arguments:
        return set().union(*map(_scalar_types, arguments))
    return {annotation} if isinstance(annotation, type) and annotation is not type(None) else set()
