"""A script for collab-document from the phrase tables of training documents: it asks, and cuts values out."""

from __future__ import annotations

import functools
import re
from typing import Any

from ...attack import Attack
from ...messages import Messages
from ...task import split_choices
from ..collab.script import Words, asides, interview, pattern_of, sentences
from .tasks import _CONTENT, _kinds


@functools.cache
def _facts() -> dict[str, Any]:
    """Return training's facts by topic."""
    return {fact["topic"]: fact for kind in _kinds("train") for fact in kind["facts"]}


@functools.cache
def _sayings() -> list[str]:
    """Return training's sayings of facts."""
    return [
        *split_choices(_CONTENT["frames"], "train"),
        *(saying for fact in _facts().values() for saying in split_choices(fact["sayings"], "train")),
    ]


@functools.cache
def _patterns() -> list[re.Pattern[str]]:
    """Return patterns of these sayings."""
    return [pattern_of(saying, {"v": "(.+?)", "w": ".+", "topic": r"[\w -]+"}) for saying in _sayings()]


@functools.cache
def _instructions() -> dict[str, Any]:
    """Return training's sayings of each instruction."""
    return {name: split_choices(_CONTENT["pieces"][name]["sayings"], "train") for name in ("order", "short", "long")}


@functools.cache
def _classes() -> Words:
    """Return sentences by what they are about."""
    return Words({"fact": _sayings(), "aside": asides(), **_instructions()})


#: A value wherever it occurs.
_VALUE = re.compile(
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day(?:, \d+ \w+| at| to \w+day)?(?:,? ?(?:from )?\d+:00)?"
    r"|\$\d+(?:[^.]*% off| a \w+| an hour)?|M[rs]s? \w+(?:, (?:room|office) \d+)?"
)


@functools.cache
def _frame() -> set[str]:
    """Return the words of training's sayings, without the values in them."""
    plain = (re.sub(r"\{\w+\}", "", saying).lower() for saying in _sayings())
    return {word for saying in plain for word in re.findall(r"[a-z]+", saying)}


def _value(sentence: str) -> str:
    """Return the value in a sentence about a fact: as in training, by its form, or the longest unusual part."""
    for pattern in _patterns():
        if match := pattern.fullmatch(sentence):
            form = _VALUE.search(match[1])
            return form[0] if form else str(match[1])
    if match := _VALUE.search(sentence):
        return match[0]
    runs, run = [""], ""
    for word in sentence.rstrip(".!").split():
        if word.strip(",:").lower() in _frame():
            run = ""
        else:
            run = f"{run} {word}".strip()
            runs.append(run)
    return max(runs, key=len).strip(",:")


def _contents(conversation: Messages) -> tuple[str, str, list[str]]:
    """Return a title, a greeting, and values or sentences that the document has to have."""
    title, greeting, lines = "", "", []
    for sentence in sentences(conversation)[1:]:  # behind the request
        if quoted := re.search(r'"((Dear |Hi )?[^"]+)"', sentence):
            title, greeting = (title, quoted[1]) if quoted[2] else (quoted[1], greeting)
        elif "uestions are welcome" in sentence:
            lines.append("All questions are welcome")
        elif _is_fact(sentence) and (value := _value(sentence)):
            lines.append(f"Fact: {value}")
    return title, greeting, lines


def _is_fact(sentence: str) -> bool:
    seen_in_training = any(pattern.fullmatch(sentence) for pattern in _patterns())
    return seen_in_training or _VALUE.search(sentence) is not None or _classes().best(sentence) == "fact"


def _complete(conversation: Messages) -> bool:
    title, _, lines = _contents(conversation)
    return bool(title) and len(lines) > 1


def _deliver(conversation: Messages) -> str:
    title, greeting, lines = _contents(conversation)
    return "\n".join(["<document>", title or "A Text", *filter(None, [greeting]), *dict.fromkeys(lines), "</document>"])


_QUESTIONS = (
    "What is the title? When is it?",
    "What else should I know?",
    "What is the price? Who is the contact?",
    "Where is it? What tone should it have?",
    "How long should the text be? In which order should it come?",
)
SCRIPT = Attack(
    "script",
    "asks, takes up hints, and cuts values out by the sentences of training documents",
    interview(_QUESTIONS, _deliver, _complete),
)
