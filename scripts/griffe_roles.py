"""An extension of Griffe: docstrings here use Sphinx's roles and literal blocks, and the site is Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_LITERAL = re.compile(r"(?m)(?<=\S)::$")
_ALONE = re.compile(r"(?m)^\s*::$")


class Roles(griffe.Extension):
    """Writes ``:class:`~a.b.Name``` as code, and ends of paragraphs that begin a literal block as Markdown has them."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Of every object that has a docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(lambda found: f"`{found[1]}`", obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", _ALONE.sub("", text))
