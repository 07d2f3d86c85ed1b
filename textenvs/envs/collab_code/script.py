"""A script for collab-code from the phrase tables of training functions: it asks, and puts their code together."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from ...attack import Attack, first_user_text
from ...messages import Messages
from ...task import split_choices
from ..collab.script import Words, asides, interview, pattern_of, sentences
from .tasks import _CONTENT, NAMES


@functools.cache
def _pieces() -> dict[str, list[str]]:
    """Return training's sayings of each piece."""
    return {
        name: [saying.format(v="", thing="") for saying in split_choices(piece["sayings"], "train")]
        for name, piece in _CONTENT["pieces"].items()
    }


@functools.cache
def _kinds() -> dict[str, Words]:
    """Return training's sentences about each argument, by what they are about."""
    return {
        subject["argument"]: Words(
            {
                "aside": asides(),
                "empty": _pieces()["empty"],
                **{
                    table: [
                        *_pieces()[piece],
                        *(
                            words
                            for behaviour in subject[table]["behaviours"]
                            for words in split_choices(behaviour["words"], "train")
                        ),
                    ]
                    for table, piece in (("filters", "condition"), ("changes", "change"), ("results", "result"))
                },
            }
        )
        for subject in _CONTENT["subjects"]
    }


_VALUES = {"k": r"\d+", "low": r"-?\d+", "high": r"-?\d+", "letter": r"\w", "mark": r"[^\w]"}
_FIELDS = {name: f"(?P<{name}>{value})" for name, value in _VALUES.items()}


def _behaviours(subject: Mapping[str, Any], table: str) -> list[tuple[re.Pattern[str], str]]:
    """Return training's wordings of each behaviour of a table, and its code; the longest wordings first."""
    listed = [
        (words, behaviour["code"])
        for behaviour in subject[table]["behaviours"]
        for words in split_choices(behaviour["words"], "train")
    ]
    return [(pattern_of(words, _FIELDS), code) for words, code in sorted(listed, key=lambda item: -len(item[0]))]


@functools.cache
def _tables() -> dict[tuple[str, str], list[tuple[re.Pattern[str], str]]]:
    """Return patterns of each behaviour with its code, by argument and table."""
    return {
        (subject["argument"], table): _behaviours(subject, table)
        for subject in _CONTENT["subjects"]
        for table in ("filters", "changes", "results")
    }


@functools.cache
def _guesses() -> dict[tuple[str, str], Words]:
    """Return codes of behaviours by the words of training, by argument and table."""
    return {
        (subject["argument"], table): Words(
            {
                behaviour["code"]: split_choices(behaviour["words"], "train")
                for behaviour in subject[table]["behaviours"]
            }
        )
        for subject in _CONTENT["subjects"]
        for table in ("filters", "changes", "results")
    }


def _code(argument: str, table: str, sentence: str) -> str:
    """Return the code of a behaviour: as training says it, or the likeliest, with the values of the sentence."""
    sentence = sentence.replace("a space", '" "')
    for pattern, code in _tables()[argument, table]:
        if match := pattern.search(sentence):
            return code.format(**match.groupdict())
    numbers, quoted = re.findall(r"-?\d+", sentence), re.findall(r'"(.)"', sentence)
    shape = (min(2, len(numbers)), bool(quoted))
    scores = _guesses()[argument, table].scores(sentence)
    code = next((code for code in scores if _shape(code) == shape), next(iter(scores)))
    numbers, quoted = numbers or ["2"], quoted or ["-"]
    values = {"k": numbers[0], "low": numbers[0], "high": numbers[-1], "letter": quoted[0], "mark": quoted[0]}
    return code.format(**values)


def _shape(code: str) -> tuple[int, bool]:
    """Return how many numbers the text of a behaviour has, up to two, and whether it has something in quotes."""
    return 2 if "{low}" in code else int("{k}" in code), "{letter}" in code or "{mark}" in code


def _argument(conversation: Messages) -> str:
    return "numbers" if re.search(r"number|integer", first_user_text(conversation)) else "text"


def _facts(conversation: Messages) -> dict[str, str]:
    """Return what the user said of the name, the condition, and so on, by a sentence for each."""
    argument, facts = _argument(conversation), {}
    for sentence in sentences(conversation)[1:]:
        if set(re.findall(r"\w+", sentence)) & set(NAMES):
            facts["name"] = sentence
            continue
        exact = [
            table
            for table in ("filters", "changes", "results")
            if any(pattern.search(sentence) for pattern, _ in _tables()[argument, table])
        ]
        scores = _kinds()[argument].scores(sentence)
        kind = exact[0] if len(exact) == 1 else next((name for name in scores if name not in facts), "aside")
        if kind != "aside":
            facts.setdefault(kind, sentence)
    return facts


def _complete(conversation: Messages) -> bool:
    return _facts(conversation).keys() >= {"name", "filters", "results"}


def _deliver(conversation: Messages) -> str:
    argument, facts = _argument(conversation), _facts(conversation)
    name = next((word for word in re.findall(r"\w+", facts.get("name", "")) if word in NAMES), "pick")
    codes = {table: _code(argument, table, facts.get(table, "")) for table in ("filters", "changes", "results")}
    parts = "numbers" if argument == "numbers" else "text.split()"
    lines = [f"def {name}({argument}):", f"    xs = [x for x in {parts} if {codes['filters']}]"]
    if "empty" in facts:
        value = next(iter(re.findall(r"-1|None|'none'", facts["empty"])), "None")
        lines += ["    if not xs:", f"        return {value}"]
    if "changes" in facts:
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
    interview(_QUESTIONS, _deliver, _complete),
)
