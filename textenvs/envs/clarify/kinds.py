"""The kinds of requests that :mod:`~textenvs.envs.clarify.tasks` draws from, read from ``requests.yaml``.

A kind has sentences with *slots* (numbers, days, colours), what a slot may be, the words by which a question is known
to ask for it, and how the answer follows from the slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from ...tools.calculator import as_text, evaluate

Value = int | str

#: Every slot has at least this many values.
MIN_VALUES = 7


@dataclass(frozen=True)
class Slot:
    """Something a request may say or leave out.

    Args:
        name: Its name.
        values: What it may be; each as likely as any other.
        says: How the request says it; ``{}`` stands for the value.
        blank: What stands there when it is left out.
        ask: The expert's question for it; ``{name}`` and ``{thing}`` are the request's.
        tell: The user's answer to that; ``{value}`` is the slot's.
        about: A regular expression for the words by which a question is known to be about it.
    """

    name: str
    values: tuple[Value, ...]
    ask: str
    tell: str
    about: str
    says: str = "{}"
    blank: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of request.

    Args:
        name: Its name.
        request: The sentences, with ``{name}``, ``{thing}`` and every slot's name.
        slots: What a request of this kind may leave out.
        things: What ``{thing}`` may be.
        work: The calculations that lead to the answer, with slots' names and ``{0}`` for the first one's result; none
            where the answer is the values themselves.
        order: The slots in the order of the answer, where there is nothing to work out. It is another order than the
            request's, so that copying the request is no answer.
        result: A regular expression for the words of a question that only asks the user for the answer.
    """

    name: str
    request: str
    slots: tuple[Slot, ...]
    things: tuple[str, ...] = ("",)
    work: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    result: str = r"(?!)"

    @property
    def form(self) -> str:
        """What an answer consists of, for the request's last sentence."""
        return " ".join(self.order) if self.order else "and the number"

    def equations(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """The calculations of the worked answer, of which the last gives the result."""
        results: list[str] = []
        equations = []
        for expression in self.work:
            written = expression.format(*results, **values)
            results.append(as_text(evaluate(written)))
            equations.append(f"{written}={results[-1]}")
        return tuple(equations)


def _slot(name: str, given: Mapping[str, Any], words: Mapping[str, list[str]]) -> Slot:
    fields = dict(given)
    if span := fields.pop("range", None):
        first, last, *step = span
        fields.pop("words", None)
        return Slot(name, tuple(range(first, last + 1, *step)), **fields)
    return Slot(name, tuple(words[fields.pop("words")]), **fields)


def _kind(name: str, given: Mapping[str, Any], shared: Mapping[str, Any], words: Mapping[str, list[str]]) -> Kind:
    fields = dict(given)
    slots = tuple(
        _slot(slot, {**shared.get(slot, {}), **(own or {})}, words) for slot, own in fields.pop("slots").items()
    )
    given_things = fields.pop("things", [""])
    things = tuple(words[given_things] if isinstance(given_things, str) else given_things)
    lists: dict[str, Any] = {key: tuple(fields.pop(key, ())) for key in ("work", "order")}
    return Kind(name, slots=slots, things=things, **lists, **fields)


_DATA: dict[str, Any] = yaml.load(files(__package__).joinpath("requests.yaml").read_text("utf-8"), yaml.CSafeLoader)

#: Whom requests are about.
NAMES: tuple[str, ...] = tuple(_DATA["names"])
#: The kinds of each level, by name.
KINDS: Mapping[str, Mapping[str, Kind]] = {
    level: {name: _kind(name, given, _DATA["slots"], _DATA["words"]) for name, given in kinds.items()}
    for level, kinds in _DATA["kinds"].items()
}
