"""Word problems that come in pieces: a chain of calculations, each of whose numbers the user holds back.

Every story is a chain of five quantities. The first three, four or all five of them make a problem, by its level, and
each length has a question of its own: the vague request that the talk begins with.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..collab.draft import PIECES, Draft, begin, told
from ..collab.tasks import Piece

_LARGEST = 100_000
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Step:
    """One quantity: how it changes the result so far, its range, and how it is told and asked for.

    Signs: ``=`` begins the chain; ``+ - * /`` change it; ``to`` takes the result so far from a whole.
    """

    sign: str
    low: int
    high: int
    topic: str
    keywords: str
    question: str
    sayings: tuple[str, ...]


@dataclass(frozen=True)
class _Story:
    """Five steps, and what is asked for after three, four and five of them."""

    steps: tuple[_Step, _Step, _Step, _Step, _Step]
    wants: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


# In a chain, a keyword of the more special quantity may be one of the more general, too: "How many rolls per tray?" has
# two of the second's and one of the first's, "How many trays?" one of each, and then the first is meant.
_STORIES = (
    _Story(
        (
            _Step("=", 3, 12, "trays", "tray batch", "How many trays do you bake?",
                  ("I bake {n} trays of rolls.", "There are {n} trays of rolls.", "It is {n} trays of rolls.")),
            _Step("*", 6, 24, "rolls on a tray", "tray each per fit hold", "How many rolls fit on each tray?",
                  ("Each tray holds {n} rolls.", "{n} rolls fit on a tray.", "There are {n} rolls on each tray.")),
            _Step("-", 2, 30, "burnt rolls", "burn lost bad spoil wast", "Are any of them lost?",
                  ("{n} rolls get burnt.", "I throw away {n} burnt rolls.", "I lose {n} rolls, which burn.")),
            _Step("*", 2, 5, "price of a roll", "price cost sell", "What is the price of a roll?",
                  ("A roll sells for ${n}.", "I sell every roll for ${n}.", "The price of a roll is ${n}.")),
            _Step("-", 5, 90, "cost of flour", "spend expens pay flour", "What do you spend on baking?",
                  ("I spend ${n} on flour.", "The flour costs me ${n}.", "I pay ${n} for the flour.")),
        ),
        (
            ("How many good rolls do I get?", "I want to know how many good rolls I get."),
            ("How much money do I take with my rolls?", "I wonder how much money my rolls bring in."),
            ("How much money is left from my rolls in the end?", "I want to know what my rolls earn me in the end."),
        ),
    ),
    _Story(
        (
            _Step("=", 4, 20, "shelves", "shel", "How many shelves are there?",
                  ("There are {n} shelves.", "The room has {n} shelves.", "It is {n} shelves.")),
            _Step("*", 10, 40, "books on a shelf", "shel book each per hold", "How many books are on each shelf?",
                  ("Each shelf holds {n} books.", "There are {n} books on each shelf.", "A shelf has {n} books.")),
            _Step("-", 5, 90, "books lent", "lent lend loan borrow missing", "Are any books lent or missing?",
                  ("{n} books are lent to people.", "People have borrowed {n} books.", "{n} books are on loan.")),
            _Step("/", 2, 9, "cartons", "carton box pack", "Into how many cartons do they go?",
                  ("The rest is packed evenly into {n} cartons.", "We pack the rest into {n} cartons, all the same.",
                   "The rest goes into {n} cartons, equally.")),
            _Step("+", 2, 30, "new books", "new add more extra", "Are any new ones added?",
                  ("Then each carton gets {n} new books.", "We add {n} new books to each carton.",
                   "At last {n} new books go on top in every carton.")),
        ),
        (
            ("How many books are on the shelves now?", "I have to say how many books are on the shelves now."),
            ("How many books go into a carton?", "I must know how many books go into a carton."),
            ("How many books are in a carton in the end?", "I want to know how many books a carton has in the end."),
        ),
    ),
    _Story(
        (
            _Step("=", 3, 9, "hours a day", "hour", "How many hours do you work?",
                  ("I work {n} hours a day.", "A working day has {n} hours.", "My day is {n} hours of work.")),
            _Step("*", 2, 6, "days a week", "days often", "On how many days do you work?",
                  ("I work on {n} days a week.", "I go there {n} days a week.", "It is {n} days a week.")),
            _Step("*", 8, 30, "wage", "hour wage earn paid pay rate", "How much do you earn an hour?",
                  ("I earn ${n} an hour.", "They pay me ${n} an hour.", "My wage is ${n} an hour.")),
            _Step("*", 2, 8, "weeks", "weeks long", "For how many weeks do you do this?",
                  ("I do this for {n} weeks.", "The job is for {n} weeks.", "It goes on for {n} weeks.")),
            _Step("-", 20, 400, "money spent", "spend spent expens cost", "Do you spend any of it?",
                  ("I spend ${n} of it.", "Of that I spend ${n}.", "My expenses are ${n} in all.")),
        ),
        (
            ("How much do I earn in a week?", "I want to know what I earn in a week."),
            ("How much does my job bring in all?", "I would like to know what my job brings in all."),
            ("How much of my pay do I have left?", "I need to know how much of my pay is left."),
        ),
    ),
    _Story(
        (
            _Step("=", 2, 8, "hours of driving", "hour time", "How many hours do you drive?",
                  ("I drive for {n} hours.", "I am in the car for {n} hours.", "The drive takes {n} hours.")),
            _Step("*", 30, 90, "speed", "speed fast quick", "How fast do you drive?",
                  ("I drive {n} km an hour.", "My speed is {n} km an hour.", "I make {n} km every hour.")),
            _Step("+", 5, 60, "ferry", "ferry boat further train also", "Do you get any further without driving?",
                  ("A ferry takes me {n} km further.", "Then I go {n} km by ferry.", "The ferry adds {n} km.")),
            _Step("to", 20, 300, "whole trip", "whole total entire trip altogether", "How long is the whole trip?",
                  ("The whole trip is {n} km long.", "It is {n} km from door to door.", "In total it is {n} km.")),
            _Step("/", 2, 5, "days for the rest", "day rest remain", "In how many days do you do the rest?",
                  ("I do the rest evenly in {n} days.", "For the rest I take {n} days, all alike.",
                   "The rest is spread evenly over {n} days.")),
        ),
        (
            ("How many km do I get?", "I want to know how far I get, in km."),
            ("How many km are left to go?", "I must know how many km are left to go."),
            ("How many km must I do each day after that?", "I need the km that I must do each day after that."),
        ),
    ),
    _Story(
        (
            _Step("=", 4, 20, "rows", "row", "How many rows are there?",
                  ("The orchard has {n} rows.", "I planted {n} rows.", "There are {n} rows.")),
            _Step("*", 5, 30, "trees in a row", "row tree each per", "How many trees are in each row?",
                  ("Each row has {n} trees.", "There are {n} trees in each row.", "A row is {n} trees.")),
            _Step("-", 2, 40, "trees without fruit", "without dead bare bear none", "Are any trees without fruit?",
                  ("{n} trees bear nothing.", "{n} of the trees are bare.", "On {n} trees there is no fruit.")),
            _Step("*", 5, 20, "kg of a tree", "kg kilo weigh give yield", "How many kg does a tree give?",
                  ("A tree gives {n} kg.", "I pick {n} kg from a tree.", "Every tree yields {n} kg.")),
            _Step("-", 5, 90, "kg kept", "kg keep kept eat", "How many kg do you keep?",
                  ("I keep {n} kg for my family.", "We eat {n} kg of them.", "{n} kg stay in our kitchen.")),
        ),
        (
            ("How many of my trees bear fruit?", "I want to know how many of my trees bear fruit."),
            ("How many kg of apples do I get?", "I need to know how many kg of apples I get."),
            ("How many kg of apples can I sell?", "I would like to know how many kg of apples I can sell."),
        ),
    ),
    _Story(
        (
            _Step("=", 5, 40, "weekly saving", "save put", "How much do you save a week?",
                  ("I save ${n} a week.", "Every week I put ${n} aside.", "It is ${n} a week.")),
            _Step("*", 4, 30, "weeks", "weeks long", "For how many weeks have you done so?",
                  ("I have done so for {n} weeks.", "That was over {n} weeks.", "It has been {n} weeks.")),
            _Step("+", 10, 90, "gift", "add gift present more else", "Does anybody add to it?",
                  ("My aunt adds ${n}.", "I also got ${n} from my aunt.", "My aunt gave me ${n} more.")),
            _Step("-", 5, 95, "shoes", "spend spent buy bought", "Do you spend any of it?",
                  ("I buy shoes for ${n}.", "I spend ${n} on shoes.", "The shoes I bought cost ${n}.")),
            _Step("/", 2, 6, "sharing", "share split divid", "Do you share it?",
                  ("I share it equally with others; we are {n} in all.", "It is split evenly between {n} of us.",
                   "The {n} of us divide it equally.")),
        ),
        (
            ("How much money do I have together?", "I want to know how much money I have together."),
            ("How much of my money is left?", "I need to know how much of my money is left."),
            ("How much of the money is mine in the end?", "I wonder how much of the money is mine in the end."),
        ),
    ),
    _Story(
        (
            _Step("=", 2, 9, "classes", "class", "How many classes come?",
                  ("{n} classes come along.", "There are {n} classes.", "We go with {n} classes.")),
            _Step("*", 15, 30, "pupils in a class", "class pupil child each per", "How many pupils are in each class?",
                  ("Each class has {n} pupils.", "There are {n} pupils in a class.", "A class is {n} pupils.")),
            _Step("+", 2, 15, "adults", "adult teacher parent grown", "How many adults come along?",
                  ("{n} adults come with them.", "We bring {n} adults.", "There are {n} adults as well.")),
            _Step("*", 2, 12, "ticket", "ticket price cost fare", "What does a ticket cost?",
                  ("A ticket costs ${n}.", "Everybody pays ${n} for a ticket.", "Tickets are ${n} each.")),
            _Step("-", 10, 200, "grant", "grant discount support reduc", "Is there any grant or discount?",
                  ("The town gives us ${n}.", "We get a grant of ${n}.", "There is ${n} of support from the town.")),
        ),
        (
            ("How many people come on our school trip?", "I must know how many people come on our school trip."),
            ("How much do the tickets for our trip cost?", "I need to know what the tickets for our trip cost."),
            ("How much do we pay ourselves for our trip?", "I want to know what we pay ourselves for our trip."),
        ),
    ),
    _Story(
        (
            _Step("=", 3, 12, "buckets", "bucket pick", "How many buckets do you pick?",
                  ("I pick {n} buckets of berries.", "It is {n} buckets of berries.", "There are {n} full buckets.")),
            _Step("*", 4, 12, "kg in a bucket", "bucket kg kilo each hold weigh", "How many kg does a bucket hold?",
                  ("A bucket holds {n} kg.", "There are {n} kg in a bucket.", "Each bucket weighs {n} kg.")),
            _Step("-", 2, 20, "spoiled berries", "spoil bad lost wast", "Are any berries spoiled?",
                  ("{n} kg are spoiled.", "I throw away {n} kg, which are bad.", "{n} kg of them are no good.")),
            _Step("*", 2, 5, "jars from a kg", "jar make jam", "How many jars does a kg make?",
                  ("A kg makes {n} jars of jam.", "I get {n} jars from a kg.", "Every kg is enough for {n} jars.")),
            _Step("-", 2, 30, "jars given away", "away gift friend", "Do you give any away?",
                  ("I give {n} jars away.", "{n} jars go to friends.", "My friends get {n} jars.")),
        ),
        (
            ("How many kg of berries can I use?", "I want to know how many kg of berries I can use."),
            ("How many jars of jam do I get?", "I need to know how many jars of jam I get."),
            ("How many jars of jam do I keep?", "I wonder how many jars of jam I keep."),
        ),
    ),
)  # fmt: skip


def draft_math(rng: random.Random, level: str) -> Draft | None:
    """Draw a problem; ``None`` where the numbers drawn make none.

    The result is whole, at least 2, and none of the numbers that the user may say.
    """
    count = PIECES[level]
    story = rng.choice(_STORIES)
    pieces: list[Piece] = []
    equations: list[str] = []
    result = 0
    for step in story.steps[:count]:
        number = _draw(rng, step, result)
        if number is None:
            return None
        if step.sign != "=":
            left, sign, right = (number, "-", result) if step.sign == "to" else (result, step.sign, number)
            result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
            equations.append(f"{left}{sign}{right}={result}")
        else:
            result = number
        pieces.append(Piece(step.topic, told(step.sayings, n=number), tuple(step.keywords.split()), step.question))
    wants = story.wants[count - 3]
    request = " ".join([*(piece.sayings[0] for piece in pieces), wants[0]])
    if not 2 <= result <= _LARGEST or str(result) in _numbers(pieces):
        return None
    return Draft(
        opening=begin(rng, wants),
        request=request,
        pieces=tuple(pieces),
        ground_truth=str(result),
        content="\n".join(equations),
        extra={"answer": "\n".join([*equations, f"#### {result}"])},
    )


def _draw(rng: random.Random, step: _Step, result: int) -> int | None:
    low, high = step.low, step.high
    if step.sign == "-":
        high = min(high, result - 1)
    elif step.sign == "to":
        low, high = low + result, high + result
    elif step.sign == "/":
        divisors = [number for number in range(low, high + 1) if result % number == 0]
        return rng.choice(divisors) if divisors else None
    return rng.randint(low, high) if low <= high else None


def _numbers(pieces: Sequence[Piece]) -> set[str]:
    return {number for piece in pieces for saying in piece.sayings for number in _NUMBER.findall(saying)}
