"""Cheap policies against worlds as pages: they end at once, refuse, and use what they come across first."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeAlias

import numpy as np

from ...attack import Attack, Cheater, always, first_user_text, sequence
from ...messages import Message, Messages, ToolCall, text_of
from ...tools.formats import Hermes, call
from ..worlds.tools import FINISH
from .browser import FILL, OPEN, PRESS

_WRITE = Hermes().write
_ELEMENT = re.compile(r'\[(\d+)\] (link|field|button) "(.*?)"')
_VALUE = re.compile(r'^[a-z][a-z ]*: (?:\[\d+\] link ")?(.*?)(?: \(\w+\)")?$', re.M)
_RECORD = re.compile(r"\([A-Z]\d{4,5}\)$")
_FINISH = call(FINISH)

#: Calls, one reply after another; it is sent the conversation before each.
_Plan: TypeAlias = "Generator[list[ToolCall], Messages, None]"


def _page(conversation: Messages) -> str:
    """Return the last page that is shown: of the last result that is one, or of the system prompt."""
    for message in reversed(conversation):
        if message["role"] in ("tool", "system") and "Page /" in (text := text_of(message)):
            return text[text.index("Page /") :]
    return ""


def _elements(conversation: Messages, kind: str) -> list[tuple[int, str]]:
    """Return the numbers and labels of the elements of a kind on the last page."""
    return [(int(number), label) for number, called, label in _ELEMENT.findall(_page(conversation)) if called == kind]


def _score(conversation: Messages, label: str) -> int:
    """Return how many words of a label the request has; the beginnings of words are compared."""
    words = {word[:5] for word in re.findall(r"\w{3,}", first_user_text(conversation).casefold())}
    return len(words & {word[:5] for word in label.casefold().split()})


def _addresses(conversation: Messages) -> list[str]:
    """Return the addresses of the lists of the first page, those that the request names first."""
    scored = []
    for line in _page(conversation).splitlines():
        application, *kinds = [label for _, _, label in _ELEMENT.findall(line)] or [""]
        scored += [(_score(conversation, kind), f"/{application}/{kind}".replace(" ", "_")) for kind in kinds]
    return [address for _, address in sorted(scored, key=lambda one: -one[0])]


def _with_id(conversation: Messages) -> list[ToolCall]:
    """Return what fills in the id of the record that is open; nothing where none is."""
    number = re.search(r"^id: (\w+)$", _page(conversation), re.M)
    fields = [field for field, label in _elements(conversation, "field") if label == "id"]
    return [call(FILL, field=fields[0], value=number[1])] if number and fields else []


def _clicks(acts: bool) -> _Plan:
    """Search all lists for the name in the request; press the likeliest button of what is found, or read it out."""
    conversation = yield []
    request = first_user_text(conversation)
    names = re.findall(r'"([^"]+)"', request) or re.findall(r"([A-Z]\w+ [A-Z]\w+)", request) or [""]
    for address in _addresses(conversation):
        conversation = yield [call(OPEN, to=address)]
        fields, buttons = _elements(conversation, "field"), _elements(conversation, "button")
        if not fields or not buttons:
            continue
        conversation = yield [call(FILL, field=fields[0][0], value=names[-1]), call(PRESS, button=buttons[0][0])]
        records = [number for number, label in _elements(conversation, "link") if _RECORD.search(label)]
        if records:
            conversation = yield [call(OPEN, to=records[0])]
            break
    buttons, values = _elements(conversation, "button"), _VALUE.findall(_page(conversation))
    if acts and buttons:
        button = max(buttons, key=lambda one: _score(conversation, one[1]))[0]
        yield [*_with_id(conversation), call(PRESS, button=button)]
    while True:
        yield [_FINISH if acts or not values else call(FINISH, answer=values[-1])]


def _wander(rng: np.random.Generator) -> _Plan:
    """Open any links, press any buttons, and finish at some time."""
    conversation = yield []
    while True:
        links, buttons = _elements(conversation, "link"), _elements(conversation, "button")
        luck = rng.random()
        if luck < 0.1 or not links:
            conversation = yield [_FINISH]
        elif luck < 0.4 and buttons:
            button = buttons[int(rng.integers(len(buttons)))][0]
            conversation = yield [*_with_id(conversation), call(PRESS, button=button)]
        else:
            conversation = yield [call(OPEN, to=links[int(rng.integers(len(links)))][0])]


def _started(make: Callable[[np.random.Generator], _Plan]) -> Callable[..., Cheater]:
    def start(rng: np.random.Generator, seen: object) -> Cheater:
        plan = make(rng)
        next(plan)

        def reply(conversation: Messages) -> str | Message:
            return _WRITE("", plan.send(conversation))

        return reply

    return start


ATTACKS: tuple[Attack, ...] = (
    always("finish", "finishes at once", lambda conversation: _WRITE("", [_FINISH])),
    always("refuse", "finishes at once, and refuses", lambda conversation: _WRITE("", [call(FINISH, refused="P1000")])),
    sequence("answer-one", "answers 1", [_WRITE("", [call(FINISH, answer=1)])]),
    Attack("wander", "opens any links, presses any buttons", _started(_wander), fakes_solving=False),
    Attack(
        "first-match",
        "searches for a name in the request, and presses a button of the first record",
        _started(lambda rng: _clicks(acts=True)),
        fakes_solving=False,
    ),
    Attack(
        "read-first",
        "searches for a name in the request, and answers with what it reads",
        _started(lambda rng: _clicks(acts=False)),
        fakes_solving=False,
    ),
)
