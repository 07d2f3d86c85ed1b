"""Short structured documents that come in pieces: an invitation, a notice, a job advertisement, ...

The document follows from the user's pieces: a title, facts (one line each), and by level a tone, an order and a
length. Every piece carries a requirement, by which the user sees whether a document respects it. The kinds of
documents, and the texts of their pieces, are in ``kinds.yaml``.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...scoring.documents import Requirement
from ...task import Split, split_choices
from ...text import load_yaml
from ..collab.tasks import (
    Draft,
    Family,
    Piece,
    begin,
    content_words,
    draw_sayings,
    keywords_of,
    piece_of,
    split_request,
)

#: How many points of a document that came without pieces are told.
MOST_POINTS = 8

_CONTENT: Mapping[str, Any] = load_yaml(__package__, "kinds.yaml")
_PIECES = ("title", "formal", "friendly", "order", "short", "long")


def draft_document(rng: random.Random, level: str, split: Split = "train") -> Draft:
    """Draw a document.

    Easy ones have a title and two facts; medium ones three facts and a tone; hard ones also an order and a length.
    """
    kind = rng.choice(_kinds(split))
    title = rng.choice(kind["titles"])
    facts = kind["facts"] if level != "easy" else (kind["facts"][0], rng.choice(kind["facts"][1:]))
    drawn = [_draw(rng, fact["values"]) for fact in facts]
    values = [value for value, _ in drawn]
    tone, reader = ("", "") if level == "easy" else (rng.choice(("formal", "friendly")), rng.choice(kind["readers"]))
    order = list(range(len(facts)))
    if level == "hard":
        first, second = rng.sample(order, 2)
        order.remove(first)
        order.insert(order.index(second), first)
    length = rng.choice(("short", "long")) if level == "hard" else ""
    greeting = _CONTENT["greetings"][tone].format(reader=reader)
    paragraphs = [
        title,
        greeting,
        kind["stock"][tone] if length != "short" else "",
        "\n".join(f"{facts[i]['label']}: {values[i]}" for i in order),
        _CONTENT["long"] if length == "long" else "",
        _CONTENT["closings"][tone],
    ]
    document = "\n\n".join(filter(None, paragraphs))

    entries = {name: draw_sayings(split, rng, piece) for name, piece in _CONTENT["pieces"].items() if name in _PIECES}
    other_titles = [other for other in kind["titles"] if other != title]
    pieces = [piece_of(entries["title"], {"kind": "first_line", "texts": [title], "rivals": other_titles}, v=title)]
    for fact, (value, rivals) in zip(facts, drawn, strict=True):
        sayings, other = draw_sayings(split, rng, fact, _CONTENT["frames"]), value
        while other == value:
            other, _ = _draw(rng, fact["values"])
        pieces.append(
            piece_of(
                sayings, {"kind": "line", "texts": [value], "rivals": rivals}, v=value, w=other, topic=fact["topic"]
            )
        )
    if tone:
        other_greetings = [
            form.format(reader=reader_name)[:-1]
            for form in _CONTENT["greetings"].values()
            for reader_name in kind["readers"]
            if form and form.format(reader=reader_name) != greeting
        ]
        ask: Requirement = {"kind": "opens_line", "texts": [greeting[:-1]], "rivals": other_greetings}
        pieces.append(piece_of(entries[tone], ask, v=reader))
    if level == "hard":
        topics = {"first": facts[first]["topic"], "second": facts[second]["topic"]}
        pieces.append(piece_of(entries["order"], {"kind": "order", "texts": [values[first], values[second]]}, **topics))
        words = len(document.split()) + 5  # other labels may be a little longer
        short: Requirement = {"kind": "max_words", "words": words}
        long: Requirement = {"kind": "contains", "texts": [_CONTENT["long"].rstrip(".")]}
        pieces.append(piece_of(entries[length], short if length == "short" else long, v=words))
    return Draft(
        opening=begin(rng, kind["wants"]),
        request=" ".join([f"Write this {kind['name']}.", *(piece.sayings[0] for piece in pieces)]),
        pieces=tuple(pieces),
        ground_truth=document,
        content=document,
        extra={"kind": kind["name"]},
    )


@functools.cache
def _kinds(split: Split) -> Sequence[Mapping[str, Any]]:
    names = split_choices([kind["name"] for kind in _CONTENT["kinds"]], split)
    return [kind for kind in _CONTENT["kinds"] if kind["name"] in names]


def _draw(rng: random.Random, values: Sequence[str]) -> tuple[str, list[str]]:
    """Draw a value of a fact, and the other values that it might have had."""
    words = {name: rng.choice(choices) for name, choices in _CONTENT["draws"].items()}
    template = rng.choice(values)
    numbers = {name: step * rng.randint(low, high) for name, (low, high, step) in _CONTENT["numbers"].items()}
    value = template.format(**words, **numbers)
    rivals = [other for other in values if "{" not in other and other != value]
    for name, choices in _CONTENT["draws"].items():
        if f"{{{name}}}" in template:
            rivals += [other for other in choices if other != words[name]]
    return value, rivals


def outline(prompt: str, document: str) -> tuple[Piece, ...]:
    """Return the pieces of a document that comes without any: its request, its length, and a point per paragraph.

    CollabLLM's requests for articles contain the whole article; that part is left out, and so is the wording: a point
    names a paragraph's most frequent, longest words only. At most :data:`MOST_POINTS` points are told.
    """
    request = prompt.replace(document.strip(), " ")
    pieces = list(split_request(request)) if request.strip() else []
    most = -(-len(document.split()) // 50) * 50
    pieces.append(piece_of(_CONTENT["pieces"]["most"], {"kind": "max_words", "words": most}, v=most))
    entry, points = _CONTENT["pieces"]["point"], 0
    for paragraph in re.split(r"\n\s*\n", document):
        counts = Counter(content_words(paragraph))
        common = sorted(counts, key=lambda word: (-counts[word], -len(word)))[:4]
        if len(common) < 3 or points == MOST_POINTS:
            continue
        points += 1
        listed = f"{', '.join(common[:-1])} and {common[-1]}"
        own = {
            "topic": entry["topic"].format(n=points),
            "question": entry["question"].format(n=points),
            "keywords": " ".join([entry["keywords"], f"{points}", *keywords_of(listed)]),
        }
        pieces.append(piece_of({**entry, **own}, {"kind": "contains", "texts": common}, v=listed))
    return tuple(pieces)


FAMILY = Family(
    domain="document",
    description="document editing",
    ability="writing",
    openings=tuple(_CONTENT["openings"]),
    example="medium",
    draft=draft_document,
    split=outline,
)
