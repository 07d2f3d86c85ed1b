"""An extension of Griffe: docstrings here use Sphinx's roles and literal blocks, and the site is Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_LITERAL = re.compile(r"(?m)(?<=\S)::$")
_ALONE = re.compile(r"(?m)^\s*::$")


class Roles(griffe.Extension):
    """Converts ``:class:`~a.b.Name``` to code, and ends of paragraphs before a literal block to Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of an object."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda match: f"`{match[1]}`", obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", _ALONE.sub("", text))
