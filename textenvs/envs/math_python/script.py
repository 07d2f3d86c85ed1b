"""An hour's script for math-python, from the training wordings: the kind of the problem, its numbers, its program.

A problem is of the kind whose training wordings share the most words with it. Where one of these fits it exactly, the
numbers go by the names that stand there; else by the order in which the first of them has the names. The program is
the kind's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

import numpy as np

from ...attack import Attack, Cheater, first_user_text
from ...messages import Message, Messages, text_of
from ...task import split_choices
from ...text import load_yaml
from ...tools.formats import call, make_format

_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"\$(?:\{(\w+?)\}|([a-z]+))")
#: Lists of numbers: how many stand in them, and how a program has them.
_LISTS = {"listed": r"[\d, ()and]*\d\)?"}


@functools.cache
def _wordings() -> list[tuple[Mapping[str, Any], str]]:
    """Return the kinds of problems, each with every one of its training wordings."""
    return [
        (kind, wording)
        for kinds in load_yaml(__package__, "problems.yaml").values()
        for kind in kinds.values()
        for wording in split_choices(kind["questions"], "train")
    ]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[+*^<]", _NAME.sub(" ", text).lower()))


def _names(wording: str) -> list[str]:
    return [braced or plain for braced, plain in _NAME.findall(wording)]


def _fitted(wording: str, question: str) -> dict[str, str] | None:
    """Return the values of the wording's names; ``None`` where the question is not of this wording."""
    pattern, end, seen = "", 0, set[str]()
    for match in _NAME.finditer(wording):
        name = match[1] or match[2]
        group = f"(?P={name})" if name in seen else f"(?P<{name}>{_LISTS.get(name, _NUMBER.pattern)})"
        pattern, end = pattern + re.escape(wording[end : match.start()]) + group, match.end()
        seen.add(name)
    whole = re.fullmatch(pattern + re.escape(wording[end:]), question)
    return None if whole is None else whole.groupdict()


def _program(question: str) -> str:
    words = _words(question)
    kind, wording = max(_wordings(), key=lambda one: len(words & _words(one[1])) / len(words | _words(one[1])))
    values = next((fitted for text in kind["questions"] if (fitted := _trained(kind, text, question))), None)
    if values is None:
        listed = next(
            iter(re.findall(r"\d+(?:, \d+)+ and \d+|\(\d+, \d+\)(?:, \(\d+, \d+\))* and \(\d+, \d+\)", question)), ""
        )
        numbers = _NUMBER.findall(question.replace(listed, " ") if listed else question)
        names = list(dict.fromkeys(name for name in _names(wording) if name not in _LISTS))
        for number in _NUMBER.findall(_NAME.sub(" ", wording)):  # those of the wording itself
            if number in numbers:
                numbers.remove(number)
        values = {**dict(zip(names, dict.fromkeys(numbers), strict=False)), "listed": listed}
    if "listed" in values:
        numbers = _NUMBER.findall(values["listed"])
        values["coins"] = f"[{', '.join(numbers)}]"
        pairs = zip(numbers[::2], numbers[1::2], strict=False)
        values["blocked"] = ", ".join(f"({x}, {y})" for x, y in pairs)
    for size, last in (("width", "right"), ("height", "top")):
        if last in values:
            values[size] = str(int(values[last]) + 1)
    return Template(kind["program"]).safe_substitute(values)


def _trained(kind: Mapping[str, Any], wording: str, question: str) -> dict[str, str] | None:
    return _fitted(wording, question) if wording in split_choices(kind["questions"], "train") else None


def _start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    def reply(conversation: Messages) -> str | Message:
        printed = [text_of(message) for message in conversation if message["role"] == "tool"]
        if printed:
            return f"\\boxed{{{printed[-1].strip()[:100]}}}"
        return make_format("hermes").write("", [call("python", code=_program(first_user_text(conversation)))])

    return reply


SCRIPT = Attack("script", "an hour's script from the training wordings and their programs", _start, fakes_solving=False)
