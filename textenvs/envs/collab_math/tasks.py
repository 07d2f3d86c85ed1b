"""Word problems that come in pieces: a chain of calculations, each of whose numbers the user holds back.

The stories are in ``stories.yaml``, whose head says how they are built.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...scoring.final_answer import final_answer
from ...text import load_yaml
from ..collab.tasks import Draft, Family, Piece, begin, piece_of

_LARGEST = 100_000
_STEPS = {"easy": 3, "medium": 4, "hard": 5}
_NUMBER = re.compile(r"\d+")
_CONTENT = load_yaml(__package__, "stories.yaml")


def draft_math(rng: random.Random, level: str) -> Draft | None:
    """Draw a problem; ``None`` where the numbers drawn make none.

    The result is whole, at least 2, and none of the numbers that the user may say.
    """
    story = rng.choice(_CONTENT["stories"])
    pieces: list[Piece] = []
    equations: list[str] = []
    result = 0
    for step in story["steps"][: _STEPS[level]]:
        number, sign = _draw(rng, step, result), step["sign"]
        if number is None:
            return None
        if sign == "=":
            result = number
        else:
            left, sign, right = (number, "-", result) if sign == "to" else (result, sign, number)
            result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[sign]
            equations.append(f"{left}{sign}{right}={result}")
        pieces.append(piece_of(step, n=number))
    wants = story["wants"][len(pieces) - 3]
    if not 2 <= result <= _LARGEST or str(result) in _numbers(pieces):
        return None
    return Draft(
        opening=begin(rng, wants),
        request=" ".join([*(piece.sayings[0] for piece in pieces), wants[0]]),
        pieces=tuple(pieces),
        ground_truth=str(result),
        content="\n".join(equations),
        extra={"answer": "\n".join([*equations, f"#### {result}"])},
    )


def _draw(rng: random.Random, step: Mapping[str, Any], result: int) -> int | None:
    low, high = step["low"], step["high"]
    if step["sign"] == "-":
        high = min(high, result - 1)
    elif step["sign"] == "to":
        low, high = low + result, high + result
    elif step["sign"] == "/":
        divisors = [number for number in range(low, high + 1) if result % number == 0]
        return rng.choice(divisors) if divisors else None
    return rng.randint(low, high) if low <= high else None


def _numbers(pieces: Sequence[Piece]) -> set[str]:
    return {number for piece in pieces for saying in piece.sayings for number in _NUMBER.findall(saying)}


def _gold(reference: str, metadata: Mapping[str, Any]) -> str:
    found = final_answer(reference) or (reference if len(reference) <= 60 else None)
    if found is None:
        raise ValueError(f"has no final answer in \\boxed{{...}} or after ####; it ends in {reference[-40:]!r}")
    return found


FAMILY = Family(
    domain="math",
    description="question answering",
    ability="math",
    openings=tuple(_CONTENT["openings"]),
    example="math-hard",
    draft=draft_math,
    gold=_gold,
)
