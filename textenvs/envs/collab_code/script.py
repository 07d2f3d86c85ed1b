"""A script for collab-code from the phrase tables of training functions: it asks, and puts their code together."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...attack import Attack, first_user_text
from ...messages import Messages
from ...task import split_choices
from ..collab.script import Words, interview, sentences
from ..collab.tasks import PHRASES
from .tasks import _CONTENT, NAMES

_TABLES = ("filters", "changes", "results")
_GROUP = re.compile(r"\\\{(k|low|high|letter|mark)\\\}")
_VALUES = {"k": r"\d+", "low": r"-?\d+", "high": r"-?\d+", "letter": r"\w", "mark": r"[^\w]"}


@functools.cache
def _kinds(argument: str) -> Words:
    """Tell the sentences of training functions with this argument apart by what they are about."""
    subject, pieces = _subject(argument), _CONTENT["pieces"]

    def sayings(piece: str) -> list[str]:
        return [saying.format(v="", thing="") for saying in split_choices(pieces[piece]["sayings"], "train")]

    def words(table: str) -> list[str]:
        return [text for behaviour in subject[table]["behaviours"] for text in _wordings(behaviour)]

    tables = {
        table: [*sayings(piece), *words(table)]
        for table, piece in zip(_TABLES, ("condition", "change", "result"), strict=True)
    }
    return Words({"aside": split_choices(PHRASES["asides"], "train"), "empty": sayings("empty"), **tables})


@functools.cache
def _behaviours(argument: str, table: str) -> list[tuple[re.Pattern[str], str]]:
    """Return training's wordings of each behaviour of a table, and its code; the longest wordings first."""
    behaviours = _subject(argument)[table]["behaviours"]
    listed = [(words, behaviour["code"]) for behaviour in behaviours for words in _wordings(behaviour)]
    found = []
    for words, code in sorted(listed, key=lambda item: -len(item[0])):
        pattern = _GROUP.sub(lambda match: f"(?P<{match[1]}>{_VALUES[match[1]]})", re.escape(words))
        found.append((re.compile(pattern), code))
    return found


@functools.cache
def _guesses(argument: str, table: str) -> Words:
    """Tell the codes of a table's behaviours apart by the words of training."""
    behaviours = _subject(argument)[table]["behaviours"]
    return Words({behaviour["code"]: _wordings(behaviour) for behaviour in behaviours})


def _subject(argument: str) -> Mapping[str, Any]:
    return next(subject for subject in _CONTENT["subjects"] if subject["argument"] == argument)


def _wordings(behaviour: Mapping[str, Any]) -> Sequence[str]:
    return split_choices(behaviour["words"], "train")


def _code(argument: str, table: str, sentence: str) -> str:
    """The code of a behaviour: as training says it, or the likeliest by its words, with the values in the sentence."""
    sentence = sentence.replace("a space", '" "')
    for pattern, code in _behaviours(argument, table):
        if match := pattern.search(sentence):
            return code.format(**match.groupdict())
    numbers, quoted = re.findall(r"-?\d+", sentence), re.findall(r'"(.)"', sentence)
    shape = (min(2, len(numbers)), bool(quoted))
    scores = _guesses(argument, table).scores(sentence)
    code = next((code for code in scores if _shape(code) == shape), next(iter(scores)))
    numbers, quoted = numbers or ["2"], quoted or ["-"]
    values = {"k": numbers[0], "low": numbers[0], "high": numbers[-1], "letter": quoted[0], "mark": quoted[0]}
    return code.format(**values)


def _shape(code: str) -> tuple[int, bool]:
    """Count the numbers in the text of a behaviour, and say whether it has something in quotes."""
    return 2 if "{low}" in code else int("{k}" in code), "{letter}" in code or "{mark}" in code


def _argument(conversation: Messages) -> str:
    return "numbers" if re.search(r"number|integer", first_user_text(conversation)) else "text"


def _told(conversation: Messages) -> dict[str, str]:
    """Return what the user said of the name, the condition, and so on, by a sentence each."""
    argument, told = _argument(conversation), {}
    for sentence in sentences(conversation)[1:]:
        if set(re.findall(r"\w+", sentence)) & set(NAMES):
            told["name"] = sentence
            continue
        exact = [
            table for table in _TABLES if any(pattern.search(sentence) for pattern, _ in _behaviours(argument, table))
        ]
        scores = _kinds(argument).scores(sentence)
        kind = exact[0] if len(exact) == 1 else next((name for name in scores if name not in told), "aside")
        if kind != "aside":
            told.setdefault(kind, sentence)
    return told


def _complete(conversation: Messages) -> bool:
    return _told(conversation).keys() >= {"name", "filters", "results"}


def _deliver(conversation: Messages) -> str:
    argument, told = _argument(conversation), _told(conversation)
    name = next((word for word in re.findall(r"\w+", told.get("name", "")) if word in NAMES), "pick")
    codes = {table: _code(argument, table, told.get(table, "")) for table in _TABLES}
    parts = "numbers" if argument == "numbers" else "text.split()"
    lines = [f"def {name}({argument}):", f"    xs = [x for x in {parts} if {codes['filters']}]"]
    if "empty" in told:
        value = next(iter(re.findall(r"-1|None|'none'", told["empty"])), "None")
        lines += ["    if not xs:", f"        return {value}"]
    if "changes" in told:
        lines.append(f"    xs = [{codes['changes']} for x in xs]")
    return "\n".join(["```python", *lines, f"    return {codes['results']}", "```"])


_QUESTIONS = (
    "What should the function be called? Which ones should count?",
    "What should it return? Is each of them changed?",
    "What if nothing is left?",
    "What else should I know?",
)
SCRIPT = Attack(
    "script",
    "asks, and puts code together by the wordings of training functions",
    interview(lambda conversation: _QUESTIONS, _deliver, _complete),
)
