"""An hour's script for clarify, from the tables of training wordings: the kind of a request, and what it leaves out.

A request is of the kind whose training wordings share the most words with it. Its values are found by how the tables
say them; bare numbers are taken in order, and "some" is one that is missing. It asks for that, reads the answer, and
computes by the kind's formulas.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attack import Attack, Cheater, first_user_text
from ...messages import Messages, text_of
from ...task import split_choices
from ...tools.calculator import as_text, evaluate
from .tasks import KINDS, Kind, Slot

_BARE = re.compile(r"\b(?:some|\d+)\b", re.IGNORECASE)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", text).lower()))


#: Of each kind the words of its training wordings.


@functools.cache
def _vocabulary() -> Any:
    """Return the training vocabulary of each kind of request."""
    return {
        (level, name): [_words(wording) for wording in split_choices(kind.requests, "train")]
        for level, kinds in KINDS.items()
        for name, kind in kinds.items()
    }


def _kind_of(request: str) -> Kind:
    """Return the kind of the most similar training wording."""
    wording, form = request.rpartition(" Answer with ")[::2]
    words = _words(wording)

    def likeness(place: tuple[str, str]) -> tuple[bool, float]:
        kind = KINDS[place[0]][place[1]]
        shared = max(len(words & vocabulary) / len(words | vocabulary) for vocabulary in _vocabulary()[place])
        return form == f"#### {kind.form}.", shared

    level, name = max(_vocabulary(), key=likeness)
    return KINDS[level][name]


def _read(request: str, kind: Kind) -> dict[str, str]:
    """Return the values that a request says, by the names of their slots."""
    rest, values = request.rpartition(" Answer with ")[0], dict[str, str]()
    bare: list[Slot] = []
    for slot in kind.slots:
        if slot.says == "{}":
            bare.append(slot)
            continue
        any_value = "|".join(re.escape(str(value)) for value in sorted(map(str, slot.values), key=len, reverse=True))
        pattern = re.escape(slot.says).replace(r"\{\}", f"({any_value})")
        if match := re.search(rf"{pattern}(?!\w)", rest):
            values[slot.name] = match[1]
            rest = f"{rest[: match.start()]} {rest[match.end() :]}"
    for slot, value in zip(bare, _BARE.findall(rest), strict=False):
        if value.isdigit():
            values[slot.name] = value
    return values


def _answer(kind: Kind, values: dict[str, str]) -> str:
    if kind.order:
        return " ".join(values[name] for name in kind.order)
    results: list[str] = []
    for expression in kind.work:
        results.append(as_text(evaluate(expression.format(*results, **values))))
    return results[-1]


def _start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    values: dict[str, str] = {}
    requested: list[Slot] = []

    def reply(conversation: Messages) -> str:
        request = first_user_text(conversation)
        kind = _kind_of(request)
        if not requested:
            values.update(_read(request, kind))
        else:
            slot, answer = requested[-1], text_of(conversation[-1])
            matches = [str(value) for value in slot.values if re.search(rf"\b{re.escape(str(value))}\b", answer)]
            values[slot.name] = matches[0] if matches else str(slot.values[0])
        missing = [slot for slot in kind.slots if slot.name not in values]
        if missing:
            requested.append(missing[0])
            return missing[0].ask.format(name="", thing="things")
        try:
            return f"#### {_answer(kind, values)}"
        except (LookupError, ValueError):
            return "#### 1"

    return reply


SCRIPT = Attack("script", "an hour's script from the tables of training wordings", _start, fakes_solving=False)
