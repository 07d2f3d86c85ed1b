"""Short structured documents that come in pieces: an invitation, a notice, a job advertisement, ...

The document follows from what the user tells: a title, facts (one line each), and by level a tone, an order and a
length. Every piece carries a requirement, by which the user sees whether a document respects it. What kinds of
documents there are, and how they are told, is in ``kinds.yaml``.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..collab.draft import Draft, begin, content, told
from ..collab.sets import Family
from ..collab.tasks import Piece, content_words, keywords_of, split_request

#: How many points of a document that came without pieces are told.
MOST_POINTS = 8
_POINT_WORDS = ("point", "cover", "topic", "section", "content", "includ", "main", "key")

_CONTENT: Mapping[str, Any] = content(__package__, "kinds.yaml")


@dataclass(frozen=True)
class _Fact:
    """A line of the document: its label, the values it may have, and how it is told and asked for."""

    topic: str
    label: str
    values: Sequence[str]
    keywords: str
    question: str
    sayings: Sequence[str]

    def draw(self, rng: random.Random) -> tuple[str, list[str]]:
        """A value, and the other values that it might have had."""
        drawn = {name: rng.choice(choices) for name, choices in _CONTENT["draws"].items()}
        numbers = {"date": (2, 28), "hour": (8, 20), "room": (1, 60), "price": (5, 400), "left": (2, 90)}
        template = rng.choice(self.values)
        value = template.format(
            **drawn,
            **{name: rng.randint(low, high) for name, (low, high) in numbers.items()},
            percent=5 * rng.randint(1, 10),
        )
        others = [other for other in self.values if "{" not in other and other != value]
        for name, choices in _CONTENT["draws"].items():
            if f"{{{name}}}" in template:
                others += [other for other in choices if other != drawn[name]]
        return value, others


@dataclass(frozen=True)
class _Kind:
    """A kind of document: what it is called, who it greets, its stock sentences by tone, and its facts."""

    name: str
    wants: Sequence[str]
    titles: Sequence[str]
    readers: Sequence[str]
    stock: Mapping[str, str]
    facts: Sequence[_Fact]


_KINDS = [_Kind(**{**kind, "facts": [_Fact(**fact) for fact in kind["facts"]]}) for kind in _CONTENT["kinds"]]


def draft_document(rng: random.Random, level: str) -> Draft:
    """Draw a document.

    Easy ones have a title and two facts; medium ones three facts and a tone; hard ones also an order and a length.
    """
    kind = rng.choice(_KINDS)
    title = rng.choice(kind.titles)
    facts = kind.facts if level != "easy" else (kind.facts[0], rng.choice(kind.facts[1:]))
    drawn = [fact.draw(rng) for fact in facts]
    values = [value for value, _ in drawn]
    tone, reader = ("", "") if level == "easy" else (rng.choice(("formal", "friendly")), rng.choice(kind.readers))
    lines = list(range(len(facts)))
    if level == "hard":
        first, second = rng.sample(lines, 2)
        lines = [line for line in lines if line != first]
        lines.insert(lines.index(second), first)
    length = rng.choice(("short", "long")) if level == "hard" else ""
    document = _compose(kind, title, [f"{facts[i].label}: {values[i]}" for i in lines], tone, reader, length)

    other_titles = [other for other in kind.titles if other != title]
    pieces = [_piece("title", {"kind": "first_line", "texts": [title], "rivals": other_titles}, v=title)]
    for fact, (value, rivals) in zip(facts, drawn, strict=True):
        requirement = {"kind": "line", "texts": [value], "rivals": rivals}
        keywords = tuple(fact.keywords.split())
        pieces.append(Piece(fact.topic, told(fact.sayings, v=value), keywords, fact.question, requirement))
    if tone:
        greeting = _CONTENT["greetings"][tone].format(reader=reader)[:-1]
        pieces.append(_piece(tone, {"kind": "opens_line", "texts": [greeting]}, v=reader))
    if level == "hard":
        asked = {"kind": "order", "texts": [values[first], values[second]]}
        pieces.append(_piece("order", asked, first=facts[first].topic, second=facts[second].topic))
        words = len(document.split()) + 5  # labels of one's own may be a little longer
        short = {"kind": "max_words", "words": words}
        pieces.append(
            _piece(
                length,
                short if length == "short" else {"kind": "contains", "texts": [_CONTENT["long"].rstrip(".")]},
                v=words,
            )
        )
    request = " ".join([f"Write this {kind.name}.", *(piece.sayings[0] for piece in pieces)])
    return Draft(
        opening=begin(rng, kind.wants),
        request=request,
        pieces=tuple(pieces),
        ground_truth=document,
        content=document,
        extra={"kind": kind.name},
    )


def _compose(kind: _Kind, title: str, lines: Sequence[str], tone: str, reader: str, length: str) -> str:
    paragraphs = [
        title,
        _CONTENT["greetings"][tone].format(reader=reader) if tone else "",
        kind.stock[tone] if length != "short" else "",
        "\n".join(lines),
        _CONTENT["long"] if length == "long" else "",
        _CONTENT["closings"][tone],
    ]
    return "\n\n".join(filter(None, paragraphs))


def _piece(name: str, requirement: Mapping[str, Any], **values: object) -> Piece:
    said = _CONTENT["pieces"][name]
    keywords = tuple(said["keywords"].split())
    return Piece(said["topic"], told(said["sayings"], **values), keywords, said["question"], requirement)


def outline(prompt: str, document: str) -> tuple[Piece, ...]:
    """The pieces of a document that comes without any: what its request says, its length, and a point per paragraph.

    CollabLLM's requests for articles contain the whole article; that part is left out, and so is the wording: a point
    names a paragraph's most frequent, longest words only. At most :data:`MOST_POINTS` points are told.
    """
    request = prompt.replace(document.strip(), " ")
    pieces = list(split_request(request)) if request.strip() else []
    most = -(-len(document.split()) // 50) * 50
    sayings = (f"It should have no more than {most} words.", f"Please write {most} words at most.")
    pieces.append(
        Piece("length", sayings, ("long", "length", "words", "short"), "How long should it be?",
              {"kind": "max_words", "words": most})
    )  # fmt: skip
    points = 0
    for paragraph in re.split(r"\n\s*\n", document):
        counts = Counter(content_words(paragraph))
        common = sorted(counts, key=lambda word: (-counts[word], -len(word)))[:4]
        if len(common) < 3 or points == MOST_POINTS:
            continue
        points += 1
        listed = f"{', '.join(common[:-1])} and {common[-1]}"
        pieces.append(
            Piece(
                f"point {points}",
                (f"It should say something about {listed}.", f"One point is {listed}.", f"Write about {listed}, too."),
                (*_POINT_WORDS, f"{points}", *keywords_of(listed)),
                f"What should it cover as point {points}?",
                {"kind": "contains", "texts": common},
            )
        )
    return tuple(pieces)


def _gold(reference: str, metadata: Mapping[str, Any]) -> str:
    return reference


FAMILY = Family(
    domain="document",
    description="document editing",
    ability="writing",
    openings=tuple(_CONTENT["openings"]),
    example="medium",
    draft=draft_document,
    gold=_gold,
    split=outline,
)
