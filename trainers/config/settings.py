"""Settings from arguments and YAML files: a dotted key, a value, and its origin."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from textenvs.bounded_files import YAML_FILE, UnreadableFile, read_text

from .describe import Key, key_at
from .yaml12 import Loader, dump, reason

#: Receives a problem: the key, what is wrong with it, and where it was written.
Report: TypeAlias = Callable[[str, str, str], None]

COMMAND_LINE = "command line"
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class Setting:
    """Value of ``key``, written at ``where`` (``command line``, or ``FILE:LINE``)."""

    key: str
    value: Any
    where: str


def extract_flags(
    arguments: Sequence[str], flags: Collection[str], report: Report
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the ``flags`` of a command line with their values (``--flag VALUE``, ``--flag=VALUE``), and the rest."""
    values, rest, words = [], [], iter(arguments)
    for argument in words:
        flag, equals, value = argument.partition("=")
        if flag not in flags:
            rest.append(argument)
        elif value := value if equals else next(words, ""):
            values.append((flag, value))
        else:
            report(flag, "needs a value after it", COMMAND_LINE)
    return values, rest


def from_arguments(arguments: Sequence[str], keys: Mapping[str, Key], report: Report) -> list[Setting]:
    """Return the settings of ``key=value`` arguments; what cannot be read is reported and skipped."""
    settings: list[Setting] = []
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name or name.startswith("-"):
            text = "expected key=value, --config FILE, --dry-run [--plan-for GPUS@GIB] or --help"
            report(argument, text, COMMAND_LINE)
            continue
        try:
            loader = Loader(text)
            if (node := loader.get_single_node()) is None:  # `key=` is null
                settings.append(Setting(name, None, COMMAND_LINE))
            else:
                settings += _leaves(name, node, loader, keys, lambda line: COMMAND_LINE)
        except yaml.YAMLError as error:
            report(name, f"{text!r} is not YAML: {reason(error)}", COMMAND_LINE)
    return settings


def from_file(path: str, keys: Mapping[str, Key], report: Report) -> list[Setting]:
    """Return the settings of a YAML file, nested or with dotted keys; what cannot be read is reported."""
    try:
        loader = Loader(read_text(path, YAML_FILE))
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            return list(_leaves("", node, loader, keys, lambda line: f"{path}:{line + 1}"))
        if node is not None:  # an empty file sets nothing
            report("--config", "the file must be a mapping of keys to values", path)
    except UnreadableFile as error:
        report("--config", str(error), COMMAND_LINE)
    except yaml.YAMLError as error:
        report("--config", f"is not YAML: {reason(error)}", path)
    except (ValueError, OverflowError) as error:  # a date of no calendar
        report("--config", f"has a value that cannot be read: {error}", path)
    return []


def _leaves(
    name: str, node: yaml.Node, loader: Loader, keys: Mapping[str, Key], where: Callable[[int], str]
) -> Iterator[Setting]:
    """Yield a node's settings: walk mappings as far as the schema has sections; what lies below a key is its value."""
    key = key_at(name, keys)
    inside = key is not None and not key.entries
    empty = not node.value and not _is_section(name, keys)  # nothing to walk down to: no entries, or an unknown key
    if isinstance(node, yaml.MappingNode) and not inside and not empty:
        for last, (_, below) in zip(loader.names(node), node.value, strict=True):
            own = last if isinstance(last, str) else "" if last is None else dump(last)
            child = f"{name}.{own}" if name else own
            if below.tag == _NULL and (_is_section(child, keys) or _is_mapping(child, keys)):
                continue  # all its lines are commented out
            yield from _leaves(child, below, loader, keys, where)
        return
    if key is not None and name == key.name and key.wants_text:
        _as_text(node)
    yield Setting(name, loader.construct_object(node, deep=True), where(node.start_mark.line))


def _is_section(name: str, keys: Mapping[str, Key]) -> bool:
    """Return whether ``name`` is a section: keys lie below it; the whole configuration is ``""``."""
    if not name or any(key.startswith(f"{name}.") for key in keys):
        return True
    for key in keys.values():
        if name.startswith(f"{key.name}.") and key.entries:
            rest = name.removeprefix(f"{key.name}.").partition(".")[2]
            return bool(rest) and _is_section(rest, key.entries)
    return False


def _is_mapping(name: str, keys: Mapping[str, Key]) -> bool:
    """Return whether ``name`` is a key whose value is a mapping, and never null."""
    key = key_at(name, keys)
    return key is not None and key.name == name and key.free_form and not key.nullable


def _as_text(node: yaml.Node) -> None:
    """Read the numbers and booleans below a node as text."""
    if isinstance(node, yaml.ScalarNode) and node.tag != _NULL:
        node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _as_text(item)
