"""Pages of a world as text: words, and numbered links, fields and buttons.

A page is immutable. Its numbers follow those of the page before it, so that a number is of one page alone: the ones of
a page that was left are never taken for those of another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ...tools.schema import ToolError
from .forms import Path

#: The form of a field that every button of the page sends.
SHARED = -1
_json = json.JSONEncoder(ensure_ascii=False).encode


class Link(NamedTuple):
    """A way to another page."""

    label: str
    address: str


class Field(NamedTuple):
    """A place of a form for a value.

    Args:
        hint: What fits, in a word or two.
        path: Of its value within the arguments of the form's tool.
        form: The number of the form on the page; :data:`SHARED`: it is part of every form.
        initial: Its value when the page is loaded; empty for none.
    """

    label: str
    hint: str
    path: Path
    form: int
    initial: Any = ""


class Button(NamedTuple):
    """A button that runs a tool of the world with what its form has.

    Args:
        tool: The tool's name.
        form: The number of its form on the page; its fields come before it.
        fixed: Arguments that are no fields.
    """

    label: str
    tool: str
    form: int = 0
    fixed: tuple[tuple[str, Any], ...] = ()


Element: TypeAlias = "Link | Field | Button"
_CALLED: Mapping[type, str] = {Link: "link", Field: "field", Button: "button"}
ElementT = TypeVar("ElementT", Link, Field, Button)


@dataclass(frozen=True)
class Page:
    """A page as it was loaded.

    Args:
        address: Opens it again.
        body: Words and elements, in order.
        first: The number of its first element.
        record: The id of the record that it is of; empty for none.
        loaded: Whether it has what it should; ``False``: the service did not answer.
    """

    address: str = "/"
    body: tuple[str | Element, ...] = ()
    first: int = 1
    record: str = ""
    loaded: bool = True

    @cached_property
    def elements(self) -> Sequence[Element]:
        """The links, fields and buttons, in the order of their numbers."""
        return [part for part in self.body if not isinstance(part, str)]

    @property
    def end(self) -> int:
        """The number after its last one."""
        return self.first + len(self.elements)

    def text(self, filled: Mapping[int, Any], problems: Mapping[int, str]) -> str:
        """Return the page with what its fields hold.

        Args:
            filled: Entries by the number of the field, where they differ from the field's own.
            problems: What is wrong with an entry, by the number of the field.
        """
        parts, number = [], self.first
        for part in self.body:
            if isinstance(part, str):
                parts.append(part)
                continue
            parts.append(_shown(part, number, filled))
            if number in problems:
                parts.append(f" (error: {problems[number]})")
            number += 1
        return "".join(parts)

    def field_text(self, number: int, filled: Mapping[int, Any]) -> str:
        """Return one field with its entry."""
        return _shown(self.elements[number - self.first], number, filled)

    def element(self, number: int, kind: type[ElementT]) -> ElementT:
        """Return the element of a number; :class:`ToolError`: it is of another page, or of another kind."""
        if not 0 <= number - self.first < len(self.elements):
            was = "was on a page that you have left" if 0 < number < self.first else "is nowhere"
            raise ToolError(f"[{number}] {was}; this page, {self.address}, has [{self.first}] to [{self.end - 1}]")
        element = self.elements[number - self.first]
        if not isinstance(element, kind):
            raise ToolError(f'[{number}] is the {_CALLED[type(element)]} "{element.label}", not a {_CALLED[kind]}')
        return element

    def numbered(self, kind: type[ElementT]) -> list[tuple[int, ElementT]]:
        """Return the elements of a kind with their numbers."""
        return [(number, one) for number, one in enumerate(self.elements, self.first) if isinstance(one, kind)]

    def sent_by(self, button: Button) -> list[tuple[int, Field]]:
        """Return the fields that a button sends, with their numbers."""
        return [one for one in self.numbered(Field) if one[1].form in (button.form, SHARED)]

    def number(self, kind: type[ElementT], fits: Callable[[ElementT], bool]) -> int | None:
        """Return the number of the first element of a kind that fits; ``None``: the page has none."""
        return next((number for number, one in self.numbered(kind) if fits(one)), None)


def _shown(element: Element, number: int, filled: Mapping[int, Any]) -> str:
    if not isinstance(element, Field):
        return f'[{number}] {_CALLED[type(element)]} "{element.label}"'
    entry = filled.get(number, element.initial)
    text = '""' if entry == "" else _json(entry)
    return f'[{number}] field "{element.label}" ({element.hint}) = {text}'
