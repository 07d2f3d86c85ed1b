"""Small Python functions that come in pieces: a name, a filter, a transformation, a result.

A function takes a list of numbers or a sentence, picks some of its parts, perhaps changes them, and returns something
made of them; every step is drawn from the tables in ``functions.yaml``. Its tests are calls with the values they should
give. They are drawn so that each step matters: leaving one out fails at least one test.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...task import Split, split_choices
from ...text import load_yaml
from ..collab.tasks import Draft, Family, begin, draw_sayings, piece_of
from .unit_tests import test_module

#: How many calls a function is tested with.
TESTS = 6

_CONTENT: Mapping[str, Any] = load_yaml(__package__, "functions.yaml")
NAMES: tuple[str, ...] = tuple(_CONTENT["names"].split())
_WORDS = _CONTENT["words"].split()


class _Step(NamedTuple):
    """A behavior; its ``code`` is an expression over ``x``, or ``xs`` for results."""

    words: str
    code: str
    apply: Callable[[Any], Any]


def _draw_step(rng: random.Random, table: Mapping[str, Any], split: Split) -> _Step:
    values: dict[str, Any] = {}
    for name, drawn in table["draws"].items():
        if isinstance(drawn, str):
            values[name] = rng.choice(drawn)
        else:
            values[name] = rng.randint(*drawn[-2:]) + (values[drawn[0]] if len(drawn) == 3 else 0)
    step = rng.choice(table["behaviours"])
    code = step["code"].format(**values)
    words: str = rng.choice(split_choices(step["words"], split))
    return _Step(words.format(**values).replace('" "', "a space"), code, _function(code))


@functools.cache
def _function(code: str) -> Callable[[Any], Any]:
    """Compile ``code``, which is this package's own."""
    function: Callable[[Any], Any] = eval(f"lambda xs: {code}" if "xs" in code else f"lambda x: {code}")
    return function


def draft_code(rng: random.Random, level: str, split: Split = "train") -> Draft | None:
    """Draw a function; ``None`` where no tests are found that need each of its steps.

    Medium ones also change what they pick; hard ones also have a value of their own for picking nothing.
    """
    subject = rng.choice(_CONTENT["subjects"])
    name = rng.choice(NAMES)
    condition, result = (_draw_step(rng, subject[table], split) for table in ("filters", "results"))
    change = None if level == "easy" else _draw_step(rng, subject["changes"], split)
    with_empty = level == "hard"
    empty = rng.choice(_CONTENT["empty"]) if with_empty else None

    def works(value: Any, condition: _Step | None = condition, change: _Step | None = change) -> Any:
        xs = [x for x in _parts(value) if condition is None or condition.apply(x)]
        return result.apply(xs if change is None else [change.apply(x) for x in xs]) if xs else empty

    inputs = _inputs(rng, subject, condition, with_empty)
    if inputs is None:
        return None
    expected = [works(value) for value in inputs]
    left_out = [[works(value, condition=None) for value in inputs]]
    if change is not None:
        left_out.append([works(value, change=None) for value in inputs])
    if len({repr(value) for value in expected}) < 3 or expected in left_out:
        return None

    lines = [f"def {name}({subject['argument']}):", f"    xs = [x for x in {subject['parts']} if {condition.code}]"]
    entries = {name: draw_sayings(split, rng, piece) for name, piece in _CONTENT["pieces"].items()}
    wants, thing = split_choices(subject["wants"], split), subject["thing"]
    asks = {**entries["condition"], "question": entries["condition"]["question"].format(thing=thing)}
    pieces = [piece_of(entries["name"], v=name), piece_of(asks, v=condition.words)]
    if with_empty:
        lines += ["    if not xs:", f"        return {empty!r}"]
    if change is not None:
        lines.append(f"    xs = [{change.code} for x in xs]")
        pieces.append(piece_of(entries["change"], v=change.words))
    lines.append(f"    return {result.code}")
    pieces.append(piece_of(entries["result"], v=result.words))
    if with_empty:
        pieces.append(piece_of(entries["empty"], v=repr(empty), thing=thing))
    code = "\n".join(lines)
    # As text: calls give values of different types, and a column of Parquet has one.
    calls = zip([f"{name}({value!r})" for value in inputs], map(repr, expected), strict=True)
    return Draft(
        opening=begin(rng, wants),
        request=" ".join([wants[0], *(piece.sayings[0] for piece in pieces)]),
        pieces=tuple(pieces),
        ground_truth=code,
        content=code.replace(name, "f", 1),
        extra={
            "entry_point": name,
            "tests": [{"expression": call, "expected": literal} for call, literal in calls],
        },
    )


def _parts(value: list[int] | str) -> list[Any]:
    return value.split() if isinstance(value, str) else value


def _inputs(
    rng: random.Random, subject: Mapping[str, Any], condition: _Step, with_empty: bool
) -> list[list[int] | str] | None:
    """Return inputs of which something is picked, and with ``with_empty`` two of which nothing is."""
    some: list[list[int] | str] = []
    none: list[list[int] | str] = []
    needed = TESTS - 2 if with_empty else TESTS
    for _ in range(200):
        count = range(rng.randint(3, 8))
        numbers = subject["nothing"] == []
        value = [rng.randint(-20, 30) for _ in count] if numbers else " ".join(rng.choice(_WORDS) for _ in count)
        (some if any(condition.apply(x) for x in _parts(value)) else none).append(value)
        if len(some) >= needed and (none or not with_empty):
            return [*some[:needed], *([none[0], subject["nothing"]] if with_empty else [])]
    return None


def _gold(reference: str, metadata: Mapping[str, Any]) -> str:
    if test_module(metadata, reference) is None:
        raise ValueError("has no tests: there are none in 'test' of the metadata, nor of the reference as JSON")
    return reference


FAMILY = Family(
    domain="code",
    description="code generation",
    ability="code",
    openings=tuple(_CONTENT["openings"]),
    example="bigcodebench",
    draft=draft_code,
    gold=_gold,
)
