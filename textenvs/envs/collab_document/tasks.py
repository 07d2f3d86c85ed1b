"""Short structured documents that come in pieces: an invitation, a notice, a description of goods.

The document follows from what the user tells: a title, facts (one line each, behind a label), and by level a tone, an
order and a length. Labels, blank lines and stock sentences are the house style: nobody tells them, and BLEU is earned
by learning them. Every piece carries a requirement, by which the user can see whether a document respects it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..collab.draft import Draft, begin, told
from ..collab.tasks import Piece

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("January", "March", "April", "May", "June", "July", "September", "October", "November")
_PEOPLE = ("Ms Hill", "Mr Stone", "Ms Baker", "Mr Young", "Ms Fox", "Mr Reed", "Ms Lake", "Mr Wood")


@dataclass(frozen=True)
class _Fact:
    """A line of the document: its label, the values it may have, and how it is told and asked for."""

    topic: str
    label: str
    values: tuple[str, ...]
    keywords: str
    question: str
    sayings: tuple[str, ...]

    def draw(self, rng: random.Random) -> str:
        """A value; ``{...}`` in it is drawn, too."""
        return rng.choice(self.values).format(
            day=rng.choice(_DAYS),
            date=rng.randint(1, 28),
            month=rng.choice(_MONTHS),
            hour=rng.randint(8, 20),
            person=rng.choice(_PEOPLE),
            room=rng.randint(1, 60),
            price=rng.randint(5, 400),
            percent=5 * rng.randint(1, 10),
            left=rng.randint(2, 90),
        )


@dataclass(frozen=True)
class _Kind:
    """A kind of document: what it is called, who it greets, its stock sentences by tone, and its facts."""

    name: str
    wants: tuple[str, ...]
    titles: tuple[str, ...]
    readers: tuple[str, ...]
    stock: dict[str, str]
    facts: tuple[_Fact, ...]


_WHEN = _Fact(
    "time", "When", ("{day}, {date} {month}, {hour}:00", "{day}, {date} {month}"), "when time date day hour",
    "When is it?", ("It is on {v}.", "The date is {v}.", "Put down {v} as the time."),
)  # fmt: skip
_CONTACT = _Fact(
    "contact", "Contact", ("{person}, room {room}", "{person}, office {room}"), "who contact whom person ask call",
    "Who is the contact?", ("The contact is {v}.", "People can turn to {v}.", "Name {v} as the contact."),
)  # fmt: skip

_KINDS = (
    _Kind(
        "invitation",
        ("I need an invitation.", "Can you write an invitation for me?", "Please help me with an invitation."),
        ("Summer Party", "Garden Fair", "Book Evening", "Choir Concert", "Open House", "Film Night", "Chess Day",
         "Harvest Feast", "Spring Walk", "Quiz Night"),
        ("guests", "friends", "neighbours", "members", "colleagues"),
        {"": "You are invited.", "formal": "We have the honour of inviting you.", "friendly": "Come and join us!"},
        (
            _WHEN,
            _Fact("place", "Where", ("the town garden", "the old mill", "Harbour Street {room}", "the school hall",
                  "the library, room {room}", "Park Lane {room}", "the market square"), "where place venue location",
                  "Where is it?", ("It takes place at {v}.", "The place is {v}.", "We meet at {v}.")),
            _Fact("things to bring", "Please bring", ("a cake", "a chair", "warm clothes", "a good book", "a torch",
                  "your own cup", "a friend", "good shoes"), "bring carry take need",
                  "Should people bring anything?",
                  ("They should bring {v}.", "Ask them to bring {v}.", "Everybody is to bring {v}.")),
        ),
    ),
    _Kind(
        "notice",
        ("I need a notice for our building.", "Can you write a notice for me?", "Please help me with a notice."),
        ("Lift out of Order", "No Hot Water", "Painting Work", "Lost Keys", "Bicycle Cellar", "New Bins",
         "Window Cleaning", "Fire Drill", "Noise at Night", "Parking"),
        ("residents", "tenants", "neighbours", "visitors"),
        {"": "Please take note.", "formal": "We ask for your kind attention.", "friendly": "Just so that you know!"},
        (
            _WHEN,
            _Fact("part of the building", "Where", ("floor {date}", "the cellar", "the yard", "staircase {room}",
                  "the roof", "entrance {room}", "flat {room}"), "where part place floor which",
                  "Where in the building is it?", ("It is about {v}.", "It concerns {v}.", "The place is {v}.")),
            _CONTACT,
        ),
    ),
    _Kind(
        "product description",
        ("I need a product description for our shop.", "Can you write a product description for me?",
         "Please help me with a product description."),
        ("Desk Lamp", "Rain Coat", "Tea Pot", "Travel Bag", "Wall Clock", "Garden Chair", "Wool Scarf", "Bread Box",
         "Bird House", "Picnic Rug"),
        ("customers", "visitors", "readers", "buyers"),
        {"": "New in our shop.", "formal": "We are pleased to present this article.", "friendly": "You will love it!"},
        (
            _Fact("price", "Price", ("${price}", "${price}, now {percent}% off"), "price cost much",
                  "What is the price?", ("The price is {v}.", "It sells for {v}.", "Write {v} as the price.")),
            _Fact("colour", "Colour", ("dark green", "sky blue", "black and white", "warm red", "grey", "light brown",
                  "cream", "navy blue", "bright yellow"), "colour color look", "What colour is it?",
                  ("The colour is {v}.", "It comes in {v}.", "We have it in {v}.")),
            _Fact("stock", "In stock", ("{left} pieces", "{left} pieces, sent within {date} days"),
                  "stock many available left deliver", "How many are in stock?",
                  ("There are {v}.", "We have {v}.", "Say that there are {v}.")),
        ),
    ),
)  # fmt: skip

_GREETINGS = {"formal": "Dear {reader},", "friendly": "Hi {reader}!"}
_CLOSINGS = {"": "", "formal": "Kind regards", "friendly": "See you soon!"}
_TONE = {
    "formal": (
        'Keep it formal, with "Dear {reader}" at the beginning.',
        'I want it formal. Begin with "Dear {reader}".',
        'The tone should be formal: "Dear {reader}".',
    ),
    "friendly": (
        'Make it friendly, with "Hi {reader}" at the beginning.',
        'I like it friendly. Begin with "Hi {reader}".',
        'The tone should be friendly: "Hi {reader}".',
    ),
}


def draft_document(rng: random.Random, level: str) -> Draft:
    """Draw a document.

    Easy ones have a title and two facts; medium ones three facts and a tone; hard ones also an order and a length.
    """
    kind = rng.choice(_KINDS)
    title = rng.choice(kind.titles)
    facts = kind.facts if level != "easy" else (kind.facts[0], rng.choice(kind.facts[1:]))
    values = [fact.draw(rng) for fact in facts]
    tone, reader = ("", "") if level == "easy" else (rng.choice(("formal", "friendly")), rng.choice(kind.readers))
    lines = list(range(len(facts)))
    if level == "hard":
        first, second = rng.sample(lines, 2)
        lines = [line for line in lines if line != first]
        lines.insert(lines.index(second), first)
    length = rng.choice(("short", "long")) if level == "hard" else ""
    document = _compose(kind, title, [(facts[i].label, values[i]) for i in lines], tone, reader, length)

    pieces = [
        Piece(
            "title",
            told(('The title is "{v}".', 'Call it "{v}".', 'It should have the title "{v}".'), v=title),
            ("title", "call", "head", "name", "about"),
            "What is the title?",
            _needs("first_line", [title]),
        )
    ]
    for fact, value in zip(facts, values, strict=True):
        keywords = tuple(fact.keywords.split())
        pieces.append(
            Piece(fact.topic, told(fact.sayings, v=value), keywords, fact.question, _needs("contains", [value]))
        )
    if tone:
        greeting = _GREETINGS[tone].format(reader=reader)[:-1]
        pieces.append(
            Piece(
                "tone",
                told(_TONE[tone], reader=reader),
                ("tone", "formal", "friendl", "style", "greet", "reader", "audience"),
                "What tone should it have?",
                _needs("contains", [greeting]),
            )
        )
    if level == "hard":
        pieces += [_order(facts[first], facts[second], values[first], values[second]), _length(length, document)]
    request = " ".join([f"Write this {kind.name}.", *(piece.sayings[0] for piece in pieces)])
    return Draft(
        opening=begin(rng, kind.wants),
        request=request,
        pieces=tuple(pieces),
        ground_truth=document,
        content=document,
        extra={"kind": kind.name},
    )


def _compose(kind: _Kind, title: str, facts: Sequence[tuple[str, str]], tone: str, reader: str, length: str) -> str:
    paragraphs = [title]
    if tone:
        paragraphs.append(_GREETINGS[tone].format(reader=reader))
    if length != "short":
        paragraphs.append(kind.stock[tone])
    paragraphs.append("\n".join(f"{label}: {value}" for label, value in facts))
    if length == "long":
        paragraphs.append("All questions are welcome.")
    if _CLOSINGS[tone]:
        paragraphs.append(_CLOSINGS[tone])
    return "\n\n".join(paragraphs)


def _order(first: _Fact, second: _Fact, value: str, after: str) -> Piece:
    return Piece(
        "order",
        told(
            (
                "Put the {first} before the {second}.",
                "The {first} should come before the {second}.",
                "First the {first}, then the {second}, please.",
            ),
            first=first.topic,
            second=second.topic,
        ),
        ("order", "first", "sequence", "arrange", "before"),
        "In which order should it come?",
        _needs("order", [value, after]),
    )


def _length(length: str, document: str) -> Piece:
    keywords, question = ("long", "length", "short", "words", "detail"), "How long should it be?"
    if length == "short":
        most = len(document.split())
        sayings = (
            "Keep it short: no more than {n} words.",
            "It must not have more than {n} words.",
            "At most {n} words.",
        )
        return Piece("length", told(sayings, n=most), keywords, question, {"kind": "max_words", "words": most})
    sayings = (
        "It may be longer: add that all questions are welcome.",
        "Make it a bit longer and say that all questions are welcome.",
        "It can be longer. All questions are welcome, say that as well.",
    )
    return Piece("length", sayings, keywords, question, _needs("contains", ["All questions are welcome"]))


def _needs(kind: str, texts: list[str]) -> dict[str, Any]:
    return {"kind": kind, "texts": texts}
