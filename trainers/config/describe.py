"""Descriptions of a schema: its keys, their allowed values, and the text of ``--help``."""

from __future__ import annotations

import itertools
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple, Union

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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

    @property
    def entries(self) -> dict[str, Key]:
        """Keys of each entry of a mapping from names to sections; else empty."""
        below = typing.get_args(self.annotation)[1:] if self.free_form else ()
        return all_keys(below[0]) if below and isinstance(below[0], type) and issubclass(below[0], BaseModel) else {}

    @property
    def wants_text(self) -> bool:
        """True if only text is accepted, so that ``experiment_name=007`` means the three characters."""
        return _scalar_types(self.annotation) == {str}


class Group(NamedTuple):
    """The keys of one section, and its description."""

    name: str
    description: str
    keys: tuple[Key, ...]


def groups(schema: type[BaseModel], prefix: str = "") -> Iterator[Group]:
    """Yield all sections with keys of their own, in the order of the schema."""
    keys: list[Key] = []
    below: list[Iterable[Group]] = []
    for name, info in schema.model_fields.items():
        dotted = f"{prefix}{name}"
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            below.append(groups(info.annotation, f"{dotted}."))
        elif (key := _key(dotted, info)).entries:  # sections whose names are the user's
            below.append([Group(dotted, key.description, (key,))])
        else:
            keys.append(key)
    if keys:
        yield Group(prefix.rstrip("."), " ".join((schema.__doc__ or "").split("\n\n")[0].split()), tuple(keys))
    yield from itertools.chain(*below)


def all_keys(schema: type[BaseModel]) -> dict[str, Key]:
    return {key.name: key for group in groups(schema) for key in group.keys}


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
        return inner and replace(inner, name=f"{'.'.join(parts[: length + 1])}.{inner.name}")
    return None


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


def _key(name: str, info: FieldInfo) -> Key:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined or not info.description:
        raise TypeError(f"configuration key {name}: a default and a description are needed")
    description = " ".join(info.description.split())
    return Key(name, info.annotation, _allowed(info.annotation, info.metadata), default, description)


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
