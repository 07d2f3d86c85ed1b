"""A script for collab-document from the phrase tables of training documents: it asks, and cuts values out."""

from __future__ import annotations

import functools
import re

from ...attack import Attack
from ...messages import Messages
from ...task import split_choices
from ..collab.script import Words, interview, sentences
from ..collab.tasks import PHRASES
from .tasks import _CONTENT, _kinds

#: What is a value wherever it stands.
_VALUE = re.compile(
    r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day(?:, \d+ \w+| at| to \w+day)?(?:,? ?(?:from )?\d+:00)?"
    r"|\$\d+(?:[^.]*% off| a \w+| an hour)?|M[rs]s? \w+(?:, (?:room|office) \d+)?"
)


@functools.cache
def _sayings() -> list[str]:
    """How training documents' users say facts."""
    facts = {fact["topic"]: fact for kind in _kinds("train") for fact in kind["facts"]}
    return [
        *split_choices(_CONTENT["frames"], "train"),
        *(saying for fact in facts.values() for saying in split_choices(fact["sayings"], "train")),
    ]


@functools.cache
def _patterns() -> list[re.Pattern[str]]:
    return [
        re.compile(
            re.escape(saying).replace(r"\{v\}", "(.+?)").replace(r"\{w\}", ".+").replace(r"\{topic\}", r"[\w -]+")
        )
        for saying in _sayings()
    ]


@functools.cache
def _classes() -> Words:
    """Tell facts from all else that users say."""
    pieces = _CONTENT["pieces"]
    rest = {name: split_choices(pieces[name]["sayings"], "train") for name in ("order", "short", "long")}
    return Words({"fact": _sayings(), "aside": split_choices(PHRASES["asides"], "train"), **rest})


@functools.cache
def _frame() -> set[str]:
    """The words of the sayings around values."""
    return {word for saying in _sayings() for word in re.findall(r"[a-z]+", re.sub(r"\{\w+\}", "", saying).lower())}


def _value(sentence: str) -> str:
    """The value in a sentence about a fact: as training has it, by its looks, or the longest part of unusual words."""
    for pattern in _patterns():
        if match := pattern.fullmatch(sentence):
            looks = _VALUE.search(match[1])
            return looks[0] if looks else str(match[1])
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


def _told(conversation: Messages) -> tuple[str, str, list[str]]:
    """A title, a greeting, and values or sentences that the document has to have."""
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
    known = any(pattern.fullmatch(sentence) for pattern in _patterns())
    return known or _VALUE.search(sentence) is not None or _classes().best(sentence) == "fact"


def _complete(conversation: Messages) -> bool:
    title, _, lines = _told(conversation)
    return bool(title) and len(lines) > 1


def _deliver(conversation: Messages) -> str:
    title, greeting, lines = _told(conversation)
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
    interview(lambda conversation: _QUESTIONS, _deliver, _complete),
)
