"""The kinds of requests that :mod:`~textenvs.envs.clarify.tasks` draws from: what they say, and what they leave out.

A kind is data: sentences with *slots* (numbers, days, colours), what a slot may be, the words by which a question is
known to ask for it, and how the answer follows from the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Value = int | str

#: Every slot has at least this many values.
MIN_VALUES = 7

_THINGS = ("apples", "books", "cards", "shells", "pens", "stamps", "marbles", "toys")
_GOODS = ("cap", "book", "pen", "cake", "ball", "lamp", "kite", "bag")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_COLOURS = ("red", "blue", "green", "black", "white", "pink", "brown", "grey")
_MATERIALS = ("wool", "cotton", "silk", "linen", "denim", "leather", "velvet")


@dataclass(frozen=True)
class Slot:
    """Something a request may say or leave out.

    Args:
        name: Its name.
        values: What it may be; each as likely as any other.
        known: How the request says it; ``{}`` stands for the value.
        unknown: What stands there when it is left out.
        ask: The expert's question for it; ``{name}`` and ``{thing}`` are the request's.
        tell: The user's answer to that; ``{value}`` is the slot's.
        about: A regular expression for the words by which a question is known to be about it.
    """

    name: str
    values: tuple[Value, ...]
    known: str
    unknown: str
    ask: str
    tell: str
    about: str


@dataclass(frozen=True)
class Kind:
    """A kind of request.

    Args:
        name: Its name.
        request: The sentences, with ``{name}``, ``{thing}`` and every slot's name.
        form: What an answer consists of, for the request's last sentence.
        slots: What a request of this kind may leave out.
        things: What ``{thing}`` may be.
        work: From the values to the equations of the worked answer, of which the last gives the result; ``None`` where
            the answer is the values themselves, in the order of the slots.
        result: A regular expression for the words of a question that only asks the user for the answer.
    """

    name: str
    request: str
    form: str
    slots: tuple[Slot, ...]
    things: tuple[str, ...] = ("",)
    work: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    result: str = r"(?!)"


def _sum(v: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"{v['have']}+{v['more']}={v['have'] + v['more']}",)


def _left(v: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"{v['have']}-{v['gone']}={v['have'] - v['gone']}",)


def _change(v: Mapping[str, Any]) -> tuple[str, ...]:
    return (f"{v['paid']}-{v['price']}={v['paid'] - v['price']}",)


def _shop(v: Mapping[str, Any]) -> tuple[str, ...]:
    cost = v["count"] * v["price"]
    return f"{v['count']}*{v['price']}={cost}", f"{v['paid']}-{cost}={v['paid'] - cost}"


def _trip(v: Mapping[str, Any]) -> tuple[str, ...]:
    driven = v["hours"] * v["speed"]
    return f"{v['hours']}*{v['speed']}={driven}", f"{driven}+{v['rest']}={driven + v['rest']}"


def _cakes(v: Mapping[str, Any]) -> tuple[str, ...]:
    needed = v["cakes"] * v["eggs"]
    return f"{v['cakes']}*{v['eggs']}={needed}", f"{needed}-{v['have']}={needed - v['have']}"


_NUMBER = "and the number"
_HAVE = r"have|has|had|start\w*|begin\w*|first|before|initial\w*|original\w*|already|own\w*"
_PRICE = r"prices?|costs?|expensive|cheap|worth|charge[sd]?|each|(?:pay|pays|paid) for"
_PAID = r"pay|pays|paid|paying|payment|hand(?:s|ed)?|notes?|budget|gives?|gave|spends?|spent|money"
_DAY = r"days?|dates?|when|arriv\w+|weekday"
_COLOUR = r"colou?r\w*|shade|which one"
_SIZE = r"sizes?|big|large|small|fits?|measure\w*"

EASY: tuple[Kind, ...] = (
    Kind(
        "sum",
        "{name} has {have} {thing} and gets {more} more. How many {thing} does {name} have now?",
        _NUMBER,
        (
            Slot(
                "have",
                tuple(range(2, 12)),
                "{}",
                "some",
                "How many {thing} did {name} have?",
                "{name} had {value}.",
                _HAVE,
            ),
            Slot(
                "more",
                tuple(range(1, 11)),
                "{}",
                "some",
                "How many {thing} did {name} get?",
                "{name} got {value}.",
                r"gets?|got|getting|gain\w*|more|receiv\w+|add\w*|new|extra|additional|given",
            ),
        ),
        _THINGS,
        _sum,
        r"now|in all|in total|total|altogether|end up|finally",
    ),
    Kind(
        "left",
        "{name} has {have} {thing} and gives away {gone}. How many {thing} are left?",
        _NUMBER,
        (
            Slot(
                "have",
                tuple(range(11, 21)),
                "{}",
                "some",
                "How many {thing} did {name} have?",
                "{name} had {value}.",
                _HAVE,
            ),
            Slot(
                "gone",
                tuple(range(1, 11)),
                "{}",
                "some",
                "How many {thing} did {name} give away?",
                "{name} gave away {value}.",
                r"gives?|gave|giving|given|away|los[et]\w*|gone|part with",
            ),
        ),
        _THINGS,
        _left,
        r"left|remain\w*|now|keep|keeps",
    ),
    Kind(
        "change",
        "{name} buys a {thing}{price} and pays{paid}. How many coins does {name} get back?",
        _NUMBER,
        (
            Slot(
                "price",
                tuple(range(1, 11)),
                " for {} coins",
                "",
                "What is the price?",
                "The price is {value} coins.",
                _PRICE,
            ),
            Slot(
                "paid",
                tuple(range(11, 21)),
                " with {} coins",
                "",
                "How many coins did {name} pay?",
                "{name} paid {value} coins.",
                _PAID,
            ),
        ),
        _GOODS,
        _change,
        r"back|change|return\w*",
    ),
    Kind(
        "table",
        "Book a table for {name}{people}{day}{hour}.",
        "people day hour",
        (
            Slot(
                "people",
                tuple(range(2, 10)),
                ", {} people",
                "",
                "How many people?",
                "{value} people.",
                r"people|persons?|guests?|seats?|how many|party|group|attend\w*|diners?",
            ),
            Slot("day", _DAYS, ", {}", "", "What day?", "On {value}.", _DAY),
            Slot(
                "hour",
                tuple(range(1, 10)),
                ", at {}",
                "",
                "What hour?",
                "At {value}.",
                r"hours?|times?|when|clock|late",
            ),
        ),
    ),
    Kind(
        "cap",
        "Order a cap for {name}{colour}{size}.",
        "colour size",
        (
            Slot("colour", _COLOURS, ", in {}", "", "What colour?", "In {value}.", _COLOUR),
            Slot("size", tuple(range(1, 10)), ", size {}", "", "What size?", "Size {value}.", _SIZE),
        ),
    ),
)

MEDIUM: tuple[Kind, ...] = (
    Kind(
        "shop",
        "{name} buys {count} {thing}{price} and pays{paid}. How many coins does {name} get back?",
        _NUMBER,
        (
            Slot(
                "count",
                tuple(range(2, 10)),
                "{}",
                "some",
                "How many {thing} did {name} buy?",
                "{name} bought {value} {thing}.",
                r"how many (?!coins)|number|quantity|buys?|bought|buying|purchas\w+",
            ),
            Slot(
                "price",
                tuple(range(2, 10)),
                " at {} coins each",
                "",
                "What is the price?",
                "The price is {value} coins each.",
                rf"{_PRICE}|per|one",
            ),
            Slot(
                "paid",
                tuple(range(90, 101)),
                " with {} coins",
                "",
                "How many coins did {name} pay?",
                "{name} paid {value} coins.",
                _PAID,
            ),
        ),
        _THINGS,
        _shop,
        r"back|change|return\w*",
    ),
    Kind(
        "trip",
        "{name} drives{hours}{speed} and then {rest} km more. How many km is that in all?",
        _NUMBER,
        (
            Slot(
                "hours",
                tuple(range(2, 10)),
                " for {} hours",
                "",
                "How many hours does {name} drive?",
                "{name} drives for {value} hours.",
                r"hours|long|time|duration|minutes",
            ),
            Slot(
                "speed",
                tuple(range(30, 120, 10)),
                " at {} km an hour",
                "",
                "How fast does {name} drive?",
                "{name} drives at {value} km an hour.",
                r"fast|speed|quick\w*|pace|rate|an hour|per hour|km/h|kmh|kph",
            ),
            Slot(
                "rest",
                tuple(range(5, 55, 5)),
                "{}",
                "some",
                "How many km more does {name} drive then?",
                "{name} then drives {value} km more.",
                r"more|then|after\w*|extra|additional\w*|further|rest|last|second part",
            ),
        ),
        ("",),
        _trip,
        r"in all|in total|total|altogether|whole",
    ),
    Kind(
        "cakes",
        "{name} bakes {cakes} cakes with {eggs} eggs each and has {have} eggs already. "
        "How many more eggs does {name} need?",
        _NUMBER,
        (
            Slot(
                "cakes",
                tuple(range(4, 12)),
                "{}",
                "some",
                "How many cakes does {name} bake?",
                "{name} bakes {value} cakes.",
                r"cakes|bakes?|baking|baked",
            ),
            Slot(
                "eggs",
                tuple(range(4, 12)),
                "{}",
                "some",
                "How many eggs does each cake need?",
                "Each cake needs {value} eggs.",
                r"each|per|one cake|a cake|every|recipe|single",
            ),
            Slot(
                "have",
                tuple(range(1, 16)),
                "{}",
                "some",
                "How many eggs does {name} have already?",
                "{name} has {value} eggs already.",
                rf"{_HAVE}|now|there",
            ),
        ),
        ("",),
        _cakes,
        r"more eggs|still|in all|in total",
    ),
    Kind(
        "room",
        "Book a room for {name}{guests}{day}{nights}{floor}.",
        "guests day nights floor",
        (
            Slot(
                "guests",
                tuple(range(2, 10)),
                ", {} guests",
                "",
                "How many guests?",
                "{value} guests.",
                r"guests?|people|persons?|party|group|travell?ers|adults",
            ),
            Slot("day", _DAYS, ", from {}", "", "From what day?", "From {value}.", rf"{_DAY}|start\w*|from|check.?in"),
            Slot(
                "nights",
                tuple(range(2, 10)),
                ", {} nights",
                "",
                "How many nights?",
                "{value} nights.",
                r"nights?|how long|stay\w*|duration|length",
            ),
            Slot(
                "floor",
                tuple(range(1, 10)),
                ", on floor {}",
                "",
                "On what floor?",
                "On floor {value}.",
                r"floors?|level|stor(?:e?y|eys|ies)|high",
            ),
        ),
    ),
    Kind(
        "shirts",
        "Order shirts for {name}{count}{colour}{size}{material}.",
        "pieces colour size material",
        (
            Slot(
                "count",
                tuple(range(2, 10)),
                ", {} pieces",
                "",
                "How many shirts?",
                "{value} shirts.",
                r"how many|number|quantity|pieces|count",
            ),
            Slot("colour", _COLOURS, ", in {}", "", "What colour?", "In {value}.", _COLOUR),
            Slot("size", tuple(range(1, 10)), ", size {}", "", "What size?", "Size {value}.", _SIZE),
            Slot(
                "material",
                _MATERIALS,
                ", of {}",
                "",
                "What material?",
                "Of {value}.",
                r"materials?|fabrics?|cloth|textile|made of|made from",
            ),
        ),
    ),
)
