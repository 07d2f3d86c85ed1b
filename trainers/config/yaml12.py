"""YAML with the scalars of version 1.2's core schema; values are shown on one line.

PyYAML reads version 1.1, where ``1e-4`` is text, ``no`` is false and ``1:30`` is ninety. Dumped values read the same
under both versions.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import yaml

from textenvs.bounded_files import BoundedLoader

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(
    r"""[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$
        |\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)
_SCALARS = (
    ("null", re.compile(r"(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
)


class Loader(BoundedLoader):
    """Loader of version 1.2's scalars; a duplicate key in a mapping is a ``yaml.MarkedYAMLError``."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # type: ignore[misc]

    def names(self, node: yaml.MappingNode) -> list[Any]:
        names: list[Any] = []
        for key, _ in node.value:
            if (name := self.construct_object(key, deep=True)) in names:
                raise yaml.MarkedYAMLError(problem=f"{name!r} stands twice", problem_mark=key.start_mark)
            names.append(name)
        return names

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.names(node)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes all text that either version would read as something else."""


for _name, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(_TAG + _name, _pattern, _first)
    _Dumper.add_implicit_resolver(_TAG + _name, _pattern, _first)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """Represent text; escape line breaks rather than break the line."""
    style = '"' if len(value.splitlines()) > 1 or value != value.strip() else None
    return dumper.represent_scalar(_TAG + "str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(tuple, lambda dumper, value: dumper.represent_list(value))
_Dumper.ignore_aliases = lambda self, data: True  # type: ignore[method-assign,assignment]


def dump(value: Any) -> str:
    """Return a value on one line, as on a command line or in a file."""
    if value is None or isinstance(value, bool | int):
        return json.dumps(value)  # the same, a hundred times as fast
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=float("inf"), allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return f"{error.problem or error.context}{place}"
    return " ".join(str(error).split())
