"""Algorithms of other packages, by entry points."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any, TypeVar

from trainers.section import Section

log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=Section)


def with_plugins(group: str, tag: str, base: type[Any], own: Iterable[type[Kind]]) -> dict[str, type[Kind]]:
    """Return the classes of ``own``, by the default of their field ``tag``, and those of a group of entry points.

    An entry point whose class cannot be imported, is no subclass of ``base``, lacks a method of it, has another name
    than its ``tag``, or has the name of another is left out with a warning, so that a broken package does not stop
    every command.
    """
    classes = {str(kind.model_fields[tag].default): kind for kind in own}
    for point in entry_points(group=group):
        try:
            kind: type[Kind] = point.load()
            if not (isinstance(kind, type) and issubclass(kind, base)):
                raise TypeError(f"it is {kind!r}, not a subclass of {base.__module__}.{base.__name__}")
            if (name := kind.model_fields[tag].default) != point.name:
                raise ValueError(f"its {tag} is {name!r}; it must be {point.name!r}, the entry point's name")
            if missing := getattr(kind, "__abstractmethods__", None):
                raise TypeError(f"it has no method {', '.join(sorted(missing))}")
            if point.name in classes:
                raise ValueError("there is one of that name already")
        except Exception as error:  # whatever a package of others raises
            log.warning("%s: the entry point %s = %s is left out: %s", group, point.name, point.value, error)
        else:
            classes[point.name] = kind
    return classes
