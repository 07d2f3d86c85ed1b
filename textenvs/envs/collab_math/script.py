"""A script for collab-math from the phrase tables of training problems: it asks, reads by words, and calculates."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...attack import Attack
from ...messages import Messages
from ..collab.script import Words, asides, interview, opening_sentences, pattern_of, sentences
from .tasks import grammar


@functools.cache
def _learned() -> Mapping[str, Any]:
    """Return training's grammar."""
    return grammar("train")


_NOUN = re.compile(r"\b(?:many|my|of|with|number of|the|too few) ([a-z]{3,}s)\b")


@functools.cache
def _sayings() -> dict[str, Sequence[str]]:
    """Return training's sentences of each kind of event."""
    return {
        **{name: step["sayings"] for name, step in _learned()["begin"].items()},
        **{
            name: [saying for event in kind["events"] for saying in event["sayings"]]
            for name, kind in _learned()["kinds"].items()
        },
        "aside": asides(),
    }


_FILLED = {"n": "7", "thing": "", "things": "", "holder": "", "holders": ""}


@functools.cache
def _kind_words() -> Words:
    """Return kinds of event by their words."""
    return Words({name: [text.format(**_FILLED) for text in texts] for name, texts in _sayings().items()})


@functools.cache
def _wants() -> dict[str, Sequence[str]]:
    """Return training's questions of each kind."""
    return {name: [want.format(**_FILLED) for want in kind["wants"]] for name, kind in _learned()["kinds"].items()}


@functools.cache
def _goal_words() -> Words:
    """Return kinds of question by their words."""
    return Words(_wants())


_BEGIN = ("holders", "contents", "stock")
#: The order in which events take effect.
_ORDER = ("holders", "contents", "stock", "gain", "loss", "times", "price", "share", "to", "income", "expense", "split")


_SURE = 20.0  # added to the log-likelihood of a sentence of training
_FIELDS = {name: r"\d+" if name == "n" else r"\w+" for name in _FILLED}


@functools.cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Return patterns of training's sentences, with their kinds."""
    return [(pattern_of(saying, _FIELDS), name) for name, sayings in _sayings().items() for saying in sayings]


def _goals(conversation: Messages) -> Mapping[str, float]:
    """Return scores of the kinds of the last event, by the user's opening."""
    wants = [text for text in opening_sentences(conversation) if not re.search(r"\d|, too|\bthe [a-z ]+[.,]", text)]
    return _goal_words().scores(" ".join(wants))


def _kinds(sentence: str) -> list[tuple[str, float]]:
    """Return the likeliest kinds of a sentence."""
    sure = {name for pattern, name in _patterns() if pattern.fullmatch(sentence)}
    return [(name, score + _SURE * (name in sure)) for name, score in _kind_words().scores(sentence).items()][:5]


def _story(conversation: Messages) -> list[tuple[str, int]] | None:
    """Read what the user said as a coherent story: the likeliest one, or ``None`` where there is none."""
    facts = [sentence for sentence in sentences(conversation) if re.search(r"\d", sentence)][:7]
    numbers = [int(re.findall(r"\d+", sentence)[0]) for sentence in facts]
    goals = _goals(conversation)
    best, chosen = -math.inf, None
    for kinds in itertools.product(*map(_kinds, facts)):
        names = [name for name, _ in kinds]
        events = sorted(_ORDER.index(name) for name in names if name not in (*_BEGIN, "aside"))
        begun = sorted(name for name in names if name in _BEGIN)
        if not events or begun not in (["contents", "holders"], ["stock"]) or len(begun) + len(events) < 3:
            continue
        score = sum(value for _, value in kinds) + goals.get(_ORDER[events[-1]], -99.0)
        if score > best:
            best, chosen = score, [fact for fact in zip(names, numbers, strict=True) if fact[0] != "aside"]
    return chosen


def _complete(conversation: Messages) -> bool:
    story, kinds = (
        _story(conversation),
        [_kinds(text)[0][0] for text in sentences(conversation) if re.search(r"\d", text)],
    )
    return story is not None and [name for name, _ in story] == [name for name in kinds if name != "aside"]


def _questions(conversation: Messages) -> list[str]:
    mentioned = re.findall(r"\bthe ([a-z ]+?)(?=[,.]| and )", " ".join(opening_sentences(conversation)[-2:]))
    noun = next(iter(_NOUN.findall(" ".join(opening_sentences(conversation)))), "things")
    return [
        f"How many {noun} are there at first? How many {noun} in each?",
        *(f"What about the {topic}?" for topic in mentioned),
        "What else should I know?",
        "What is the price? Between how many do you share or divide it?",
        "How many do you need?",
        "What comes first?",
    ]


def _deliver(conversation: Messages) -> str:
    facts = sorted(_story(conversation) or [], key=lambda fact: _ORDER.index(fact[0]))
    result = 0
    for place, (kind, number) in enumerate(facts):
        sign = {**{name: event["sign"] for name, event in _learned()["kinds"].items()}, "contents": "*"}.get(kind, "+")
        if place == 0:
            result = number
        elif sign == "*":
            result *= number
        elif sign == "/":
            result //= max(1, number)
        elif sign == "to":
            result = number - result
        else:
            result += number if sign == "+" else -number
    return f"#### {result}"


SCRIPT = Attack(
    "script",
    "asks, takes up hints, and reads by the words of training problems",
    interview(_questions, _deliver, _complete),
)
