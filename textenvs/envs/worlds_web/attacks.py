"""Cheap policies against worlds as pages: they end at once, refuse, and use what they come across first."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ...attack import Attack, Cheater, always, first_user_text, sequence
from ...messages import Message, Messages, ToolCall, text_of
from ...tools.formats import Hermes, call
from ..worlds.tools import FINISH
from .browser import FILL, OPEN, PRESS

_WRITE = Hermes().write
_ELEMENT = re.compile(r'\[(\d+)\] (link|field|button) "(.*?)"')
_VALUE = re.compile(r'^[a-z][a-z ]*: (?:\[\d+\] link ")?(.*?)"?$', re.M)
_RECORD = re.compile(r"\(([A-Z]\d{4,5})\)$")


def _page(conversation: Messages) -> str:
    """Return the last page that is shown: of the last result that is one, or of the system prompt."""
    for message in reversed(conversation):
        if message["role"] in ("tool", "system") and "Page /" in (text := text_of(message)):
            return text[text.index("Page /") :]
    return ""


def _elements(conversation: Messages, kind: str) -> list[tuple[int, str]]:
    """Return the numbers and labels of the elements of a kind on the last page."""
    found = _ELEMENT.findall(_page(conversation))
    return [(int(number), label) for number, which, label in found if which == kind]


def _words(conversation: Messages) -> set[str]:
    return set(re.findall(r"\w{3,}", first_user_text(conversation).casefold()))


def _most(conversation: Messages, elements: list[tuple[int, str]]) -> int:
    """Return the number of the element with most of the request's words."""
    words = _words(conversation)
    return max(elements, key=lambda one: len(words & set(one[1].casefold().split())))[0]


class _Clicks:
    """Searches for the names in the request, opens the first record, and perhaps presses a button there.

    Args:
        acts: Whether it presses a button; else it answers with a value of the record.
    """

    def __init__(self, acts: bool) -> None:
        self._acts = acts
        self._step = 0

    def __call__(self, conversation: Messages) -> str | Message:
        calls = self._next(conversation)
        self._step += 1
        return _WRITE("", calls)

    def _next(self, conversation: Messages) -> list[ToolCall]:
        links, fields = _elements(conversation, "link"), _elements(conversation, "field")
        buttons = _elements(conversation, "button")
        if self._step == 0:
            return [call(OPEN, to=_most(conversation, links))]
        if self._step == 1 and not fields:  # an application, and not its records
            self._step = 0
            return [call(OPEN, to=links[-1][0])]
        request = first_user_text(conversation)
        names = re.findall(r'"([^"]+)"', request) or re.findall(r"([A-Z]\w+ [A-Z]\w+)", request)
        if self._step == 1 and names and buttons:
            return [call(FILL, field=fields[0][0], value=names[-1]), call(PRESS, button=buttons[0][0])]
        records = [number for number, label in links if _RECORD.search(label)]
        if self._step == 2 and records:
            return [call(OPEN, to=records[0])]
        if self._step == 3 and self._acts and buttons:
            return [call(PRESS, button=_most(conversation, buttons))]
        values = _VALUE.findall(_page(conversation))
        return [call(FINISH) if self._acts or not values else call(FINISH, answer=values[-1])]


class _Wanders:
    """Opens any links, presses any buttons, and finishes at some time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, conversation: Messages) -> str | Message:
        links, buttons = _elements(conversation, "link"), _elements(conversation, "button")
        luck = self._rng.random()
        if luck < 0.1 or not links:
            return _WRITE("", [call(FINISH)])
        if luck < 0.4 and buttons:
            return _WRITE("", [call(PRESS, button=buttons[int(self._rng.integers(len(buttons)))][0])])
        return _WRITE("", [call(OPEN, to=links[int(self._rng.integers(len(links)))][0])])


def _clicks(acts: bool) -> Callable[..., Cheater]:
    return lambda rng, seen: _Clicks(acts)


ATTACKS: tuple[Attack, ...] = (
    always("finish", "finishes at once", _WRITE("", [call(FINISH)])),  # type: ignore[arg-type]
    always("refuse", "finishes at once, and refuses", _WRITE("", [call(FINISH, refused="P1000")])),  # type: ignore[arg-type]
    sequence("answer-one", "answers 1", [_WRITE("", [call(FINISH, answer=1)])]),
    Attack("wander", "opens any links, presses any buttons", lambda rng, seen: _Wanders(rng)),
    Attack(
        "first-match", "searches for a name in the request, and presses a button of the first record", _clicks(True)
    ),
    Attack("read-first", "searches for a name in the request, and answers with what it reads", _clicks(False)),
)
