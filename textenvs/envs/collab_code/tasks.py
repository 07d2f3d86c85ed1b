"""Small Python functions that come in pieces: a name, what counts, what is done with it, what is returned.

A function takes a list of numbers or a sentence, picks some of its parts, perhaps changes them, and returns something
made of them; every step is drawn from a table of behaviours. Its tests are calls with the values they should give.
They are drawn so that each step matters: leaving one out fails at least one test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..collab.draft import Draft, begin, told
from ..collab.sets import Family
from ..collab.tasks import Piece, split_request, test_module

#: How many calls a function is tested with.
TESTS = 6

_NAMES = (
    "pick scan sift digest gather collect work_out summarize reckon tally resolve extract measure condense get_result "
    "run_over look_up handle evaluate inspect_all"
)
_WORDS = (
    "apple bee car door east fig green hat idea jump key lemon moon nine oak pear quiet river sun tea under violet "
    "window yes zebra old umbrella a on it"
)


@dataclass(frozen=True)
class _Step:
    """A behaviour: in words, as an expression (over ``x``, or ``xs`` for results), and as a function."""

    words: str
    code: str
    apply: Callable[[Any], Any]


@dataclass(frozen=True)
class _Subject:
    """What the functions of one kind take, and the tables of what they can do."""

    wants: tuple[str, ...]
    argument: str
    parts: str  # the expression for the parts of the argument
    thing: str  # what a part is called
    nothing: Any  # an argument without parts
    split: Callable[[Any], list[Any]]
    draw_input: Callable[[random.Random], Any]
    draw_filter: Callable[[random.Random], _Step]
    draw_change: Callable[[random.Random], _Step]
    draw_result: Callable[[random.Random], _Step]


def _number_filter(rng: random.Random) -> _Step:
    k, low = rng.randint(2, 12), rng.randint(-10, 5)
    high = low + rng.randint(4, 14)
    return rng.choice(
        (
            _Step("even numbers", "x % 2 == 0", lambda x: x % 2 == 0),
            _Step("odd numbers", "x % 2 == 1", lambda x: x % 2 == 1),
            _Step("positive numbers", "x > 0", lambda x: x > 0),
            _Step("negative numbers", "x < 0", lambda x: x < 0),
            _Step(f"numbers above {k}", f"x > {k}", lambda x: x > k),
            _Step(f"numbers below {k}", f"x < {k}", lambda x: x < k),
            _Step(f"numbers divisible by {k}", f"x % {k} == 0", lambda x: x % k == 0),
            _Step(f"numbers from {low} to {high}", f"{low} <= x <= {high}", lambda x: low <= x <= high),
            _Step(f"numbers outside of {low} to {high}", f"not {low} <= x <= {high}", lambda x: not low <= x <= high),
        )
    )


def _number_change(rng: random.Random) -> _Step:
    k = rng.randint(2, 12)
    return rng.choice(
        (
            _Step("square each of them", "x * x", lambda x: x * x),
            _Step(f"multiply each of them by {k}", f"x * {k}", lambda x: x * k),
            _Step(f"add {k} to each of them", f"x + {k}", lambda x: x + k),
            _Step(f"take {k} from each of them", f"x - {k}", lambda x: x - k),
            _Step("turn the sign of each of them around", "-x", lambda x: -x),
            _Step(f"divide each of them by {k}, rounding down", f"x // {k}", lambda x: x // k),
        )
    )


def _number_result(rng: random.Random) -> _Step:
    once = "a list of them, each value only once, in ascending order"
    return rng.choice(
        (
            _Step("their sum", "sum(xs)", sum),
            _Step("the largest of them", "max(xs)", max),
            _Step("the smallest of them", "min(xs)", min),
            _Step("a list of them in ascending order", "sorted(xs)", sorted),
            _Step("a list of them in descending order", "sorted(xs)[::-1]", lambda xs: sorted(xs)[::-1]),
            _Step(once, "sorted(set(xs))", lambda xs: sorted(set(xs))),
            _Step("the largest minus the smallest of them", "max(xs) - min(xs)", lambda xs: max(xs) - min(xs)),
        )
    )


def _word_filter(rng: random.Random) -> _Step:
    k, letter = rng.randint(3, 5), rng.choice("aeioulnrst")
    return rng.choice(
        (
            _Step(f"words of more than {k} letters", f"len(x) > {k}", lambda x: len(x) > k),
            _Step(f"words of less than {k} letters", f"len(x) < {k}", lambda x: len(x) < k),
            _Step(f'words with the letter "{letter}"', f'"{letter}" in x', lambda x: letter in x),
            _Step(f'words without the letter "{letter}"', f'"{letter}" not in x', lambda x: letter not in x),
            _Step("words that begin with a vowel", 'x[0] in "aeiou"', lambda x: x[0] in "aeiou"),
            _Step("words that end with a vowel", 'x[-1] in "aeiou"', lambda x: x[-1] in "aeiou"),
        )
    )


def _word_change(rng: random.Random) -> _Step:
    k, mark = rng.randint(2, 3), rng.choice("!*+#")
    return rng.choice(
        (
            _Step("put each of them in capital letters", "x.upper()", str.upper),
            _Step("turn each of them around", "x[::-1]", lambda x: x[::-1]),
            _Step(f"keep the first {k} letters of each of them", f"x[:{k}]", lambda x: x[:k]),
            _Step(f"keep the last {k} letters of each of them", f"x[-{k}:]", lambda x: x[-k:]),
            _Step(f'put a "{mark}" after each of them', f'x + "{mark}"', lambda x: x + mark),
            _Step("double each of them", "x + x", lambda x: x + x),
        )
    )


def _word_result(rng: random.Random) -> _Step:
    mark = rng.choice("-,/_ ")
    said = "a space" if mark == " " else f'"{mark}"'
    return rng.choice(
        (
            _Step(f"one text with {said} between them", f'"{mark}".join(xs)', lambda xs: mark.join(xs)),
            _Step("a list of them in alphabetical order", "sorted(xs)", sorted),
            _Step("the first of them", "xs[0]", lambda xs: xs[0]),
            _Step("the last of them", "xs[-1]", lambda xs: xs[-1]),
            _Step("a list of them in reverse order", "xs[::-1]", lambda xs: xs[::-1]),
        )
    )


_SUBJECTS = (
    _Subject(
        ("I need a Python function that takes a list of numbers.", "Can you write a function for a list of numbers?",
         "Please write me some Python for a list of numbers."),
        "numbers", "numbers", "number", [], list,
        lambda rng: [rng.randint(-20, 30) for _ in range(rng.randint(3, 8))],
        _number_filter, _number_change, _number_result,
    ),
    _Subject(
        ("I need a Python function that takes a sentence.", "Can you write a function for the words of a sentence?",
         "Please write me some Python for the words of a text."),
        "text", "text.split()", "word", "", str.split,
        lambda rng: " ".join(rng.choice(_WORDS.split()) for _ in range(rng.randint(3, 8))),
        _word_filter, _word_change, _word_result,
    ),
)  # fmt: skip

_EMPTY = (-1, None, "none")


def draft_code(rng: random.Random, level: str) -> Draft | None:
    """Draw a function; ``None`` where no tests were found that need each of its steps.

    Easy ones have a name, a condition and a result; medium ones also change what they pick; hard ones also have a value
    of their own for picking nothing.
    """
    subject = rng.choice(_SUBJECTS)
    name = rng.choice(_NAMES.split())
    condition, result = subject.draw_filter(rng), subject.draw_result(rng)
    change = None if level == "easy" else subject.draw_change(rng)
    empty = (rng.choice(_EMPTY),) if level == "hard" else None

    def works(value: Any, *, condition: _Step | None = condition, change: _Step | None = change) -> Any:
        xs = [x for x in subject.split(value) if condition is None or condition.apply(x)]
        if not xs:
            return empty[0] if empty else None
        return result.apply(xs if change is None else [change.apply(x) for x in xs])

    inputs = _inputs(rng, subject, condition, with_empty=empty is not None)
    if inputs is None:
        return None
    expected = [works(value) for value in inputs]
    without = [{"condition": None}, *([{"change": None}] if change else [])]
    if len({repr(value) for value in expected}) < 3 or any(
        expected == [works(value, **left_out) for value in inputs] for left_out in without
    ):
        return None
    code = _code(subject, name, condition, change, result, empty)
    pieces = _pieces(subject, name, condition, change, result, empty)
    return Draft(
        opening=begin(rng, subject.wants),
        request=" ".join([subject.wants[0], *(piece.sayings[0] for piece in pieces)]),
        pieces=pieces,
        ground_truth=code,
        content=code.replace(name, "f", 1),
        extra={
            "entry_point": name,
            # As text: calls give values of different types, and a column of Parquet has one.
            "tests": [
                {"expression": f"{name}({value!r})", "expected": repr(wanted)}
                for value, wanted in zip(inputs, expected, strict=True)
            ],
        },
    )


def _inputs(rng: random.Random, subject: _Subject, condition: _Step, *, with_empty: bool) -> list[Any] | None:
    """Inputs of which something is picked, and with ``with_empty`` two of which nothing is."""
    some: list[Any] = []
    none: list[Any] = []
    for _ in range(200):
        value = subject.draw_input(rng)
        picked = any(condition.apply(x) for x in subject.split(value))
        (some if picked else none).append(value)
        wanted = TESTS - 2 if with_empty else TESTS
        if len(some) >= wanted and (none or not with_empty):
            return [*some[:wanted], *([none[0], subject.nothing] if with_empty else [])]
    return None


def _code(
    subject: _Subject,
    name: str,
    condition: _Step,
    change: _Step | None,
    result: _Step,
    empty: tuple[Any] | None,
) -> str:
    lines = [f"def {name}({subject.argument}):", f"    xs = [x for x in {subject.parts} if {condition.code}]"]
    if empty:
        lines += ["    if not xs:", f"        return {empty[0]!r}"]
    if change:
        lines.append(f"    xs = [{change.code} for x in xs]")
    return "\n".join([*lines, f"    return {result.code}"])


def _pieces(
    subject: _Subject,
    name: str,
    condition: _Step,
    change: _Step | None,
    result: _Step,
    empty: tuple[Any] | None,
) -> tuple[Piece, ...]:
    pieces = [
        _piece("name", "name call", "What should the function be called?", name,
               ("Call the function {v}.", "Its name should be {v}.", "The function is called {v}.")),
        _piece("condition", "which count only condition filter use", f"Which {subject.thing}s should count?",
               condition.words, ("Only {v} count.", "It should use {v} only.", "Leave out everything but {v}.")),
    ]  # fmt: skip
    if change:
        pieces.append(
            _piece("change", "chang done do each transform modif", "Is each of them changed?", change.words,
                   ("Then {v}.", "After that, {v}.", "As the next step, {v}."))
        )  # fmt: skip
    pieces.append(
        _piece("result", "return result output back end", "What should it return?", result.words,
               ("Return {v}.", "The result is {v}.", "In the end I want {v}."))
    )  # fmt: skip
    if empty:
        nothing = (
            f"If no {subject.thing} is left, return {{v}}.",
            f"Return {{v}} when there is no such {subject.thing}.",
            f"Without any such {subject.thing} the result is {{v}}.",
        )
        pieces.append(
            _piece("empty case", "empty nothing none no without left edge", "What if nothing is left?",
                   repr(empty[0]), nothing)
        )  # fmt: skip
    return tuple(pieces)


def _piece(topic: str, keywords: str, question: str, value: str, sayings: Sequence[str]) -> Piece:
    return Piece(topic, told(sayings, v=value), tuple(keywords.split()), question)


def _gold(reference: str, metadata: Mapping[str, Any]) -> str:
    if test_module(metadata, reference) is None:
        raise ValueError("has no tests: there are none in 'test' of the metadata, nor of the reference as JSON")
    return reference


FAMILY = Family(
    domain="code",
    description="code generation",
    ability="code",
    openings=(
        "I need a Python function.",
        "Can you write some Python code for me?",
        "I need help with a program.",
        "There is a function that I want written.",
        "Could you program something for me?",
    ),
    example="bigcodebench",
    draft=draft_code,
    gold=_gold,
    split=split_request,
)
