"""An hour's script for search-qa, from the training wordings: which facts a question is about, and how pages say them.

It takes the names from the question, finds the fact whose training wordings share the most words with the question,
searches for a name, and reads the answer off the page by the sentences of training pages; for two hops it does both
twice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...attack import Attack, Cheater, first_user_text
from ...messages import Message, Messages, text_of
from ...task import split_choices
from ...text import load_yaml
from ...tools.formats import Hermes, call

_NAME = re.compile(r"(?:The )?[A-Z]\w+(?: [A-Z]\w+)*")


@functools.cache
def _facts() -> list[tuple[str, Mapping[str, Any]]]:
    """Return training's facts."""
    return [
        (name, fact)
        for kind in load_yaml(__package__, "world.yaml")["kinds"].values()
        for name, fact in kind["facts"].items()
    ]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", re.sub(r"\{\w+\}|'", " ", text).lower()))


def _wordings(fact: Mapping[str, Any], use: str) -> Sequence[str]:
    return split_choices(fact[use], "train") if use in fact else ()


_FIRST_WORDS = frozenset(
    "What Who Which Where When Why How In On At From For By Of With Since Whose To".split()  # noqa: SIM905
)


def _most_like(text: str, use: str) -> tuple[float, Mapping[str, Any]]:
    """Return the similarity and the fact of the training wording that is most similar to ``text``."""
    words = _words(text)

    def likeness(fact: Mapping[str, Any]) -> float:
        return max((len(words & _words(one)) / len(words | _words(one)) for one in _wordings(fact, use)), default=0.0)

    fact = max((fact for _, fact in _facts()), key=likeness)
    return likeness(fact), fact


def _value(fact: Mapping[str, Any], page: str, question: str) -> str:
    """Read a fact from a page by a training sentence; else a year, name or word of the sentence most like one.

    That sentence shares the most words with a training sentence and the question.
    """
    sentences = [sentence.strip() for sentence in re.findall(r"[^.]+\.", page)] or [""]
    wordings = _wordings(fact, "page")
    for wording in wordings:
        pattern = re.escape(wording).replace(r"\{value\}", "(.+?)")
        if match := next(filter(None, (re.fullmatch(pattern, sentence) for sentence in sentences)), None):
            return match[1]
    likest = max(
        sentences,
        key=lambda sentence: max(len(_words(sentence) & (_words(one) | _words(question))) for one in wordings),
    )
    if "words" in fact:
        return re.sub(r".* (?:the |its )?", "", likest.rstrip("."))
    names = [name for name in _NAME.findall(likest) if name not in ("It", "Its", "The", "All", "A")]
    return next(iter(re.findall(r"\d{3,4}", likest) if "years" in fact else names), "unknown")


class _Reader:
    """One episode: generators yield replies, ``page`` is what the last search found first."""

    page = ""

    def search(self, name: str) -> Iterator[str | Message]:
        yield Hermes().write("", [call("search", query=name)])
        pages = re.split(r"\n(?=\[\d+\])", self.page)
        self.page = next((page for page in pages if name in page.split("\n")[0]), pages[0]).partition("\n")[2]

    def answer(self, question: str) -> Iterator[str | Message]:
        quoted = re.findall(r"'([^']+)'", question)
        start = question[0].lower() if question.split()[0] in _FIRST_WORDS else question[0]
        names = list(dict.fromkeys(quoted or _NAME.findall(start + question[1:])))[:2] or ["unknown"]
        rest = question
        for name in names:
            rest = rest.replace(name, "")
        if len(names) == 2:
            _, fact = _most_like(rest, "between")
            years = []
            for name in names:
                yield from self.search(name)
                years.append(int(re.sub(r"\D", "", _value(fact, self.page, rest)) or 0))
            yield f"Answer: {abs(years[0] - years[1])}"
        direct, fact = _most_like(rest, "ask")
        hops = [
            (min(_most_like(rest.replace(via, ""), "ask")[0], 0.99), via_fact, rest.replace(via, ""))
            for _, via_fact in _facts()
            for frame in _wordings(via_fact, "via")
            if (via := frame.replace("{it}", "").replace("''", "").strip(" '")) and via in rest
        ]
        yield from self.search(names[0])
        if hops and (best := max(hops, key=lambda hop: hop[0]))[0] > direct:
            yield from self.search(_value(best[1], self.page, rest))
            _, fact = _most_like(best[2], "ask")
        yield f"Answer: {_value(fact, self.page, rest)}"


def _start(rng: np.random.Generator, seen: Sequence[Messages]) -> Cheater:
    reader = _Reader()
    replies: list[Iterator[str | Message]] = []

    def reply(conversation: Messages) -> str | Message:
        if not replies:
            replies.append(reader.answer(first_user_text(conversation)))
        elif conversation[-1]["role"] == "tool":
            reader.page = text_of(conversation[-1])
        return next(replies[0], "Answer: unknown")

    return reply


SCRIPT = Attack(
    "script", "an hour's script from the training wordings of questions and pages", _start, fakes_solving=False
)
