r"""GSM8K's answer check: find the number a reply answers with, and compare it by value.

Three ways to find it:

* ``"marked"``: the last answer marked in one of the ways that models write: ``#### N``, ``\boxed{N}``, "The answer is
  N" (:func:`~textenvs.scoring.final_answer.final_answer`), or a reply that is nothing but the number. Words, units and
  a calculation (``3+4=7``) may stand beside the number; two different numbers ("5 or 6") are no answer, and nor
  are plain digits beside raised ones or those of another script (``12\u00b2``).
* ``"strict"``: the last ``#### N`` of the reply, GSM8K's own convention. Text after the number is ignored.
* ``"flexible"``: the last number of the reply, wherever it stands.

All take the *last* one, as verl's scorer does, so that a reply may correct itself and many answers in one reply gain
nothing. What differs from verl: a minus counts only where it is a sign (``7-2`` ends in 2), commas only between groups
of three digits (``1,2`` ends in 2), and the comparison is by value (``72.0`` is 72) and not by text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from ..text import quoted
from .final_answer import final_answer

Method = Literal["marked", "strict", "flexible"]
METHODS: tuple[str, ...] = get_args(Method)

#: A number with more digits than this is no answer to anything; it is read as none at all, in linear time.
MAX_DIGITS = 100

_MINUS = "-\u2212\u2010\u2011\u2012\u2013"  # hyphen-minus, the minus sign, and the dashes that stand in for it
_CURRENCY = "$\u20ac\u00a3\u00a5\u20b9"
# The sign may stand before or after the currency ("-$5", "$-5"), and counts only where neither an operand nor another
# minus stands right before it.
_NUMBER = (
    rf"(?P<sign>(?:(?<![{_MINUS}\w.)%])[{_MINUS}])?[{_CURRENCY}]?|[{_CURRENCY}][{_MINUS}])"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))"
    r"(?:\.(?P<fraction>[0-9]+))?"
)
_ANYWHERE = re.compile(_NUMBER)
_DIGITS = "0123456789"
_MARKED = re.compile(rf"(?<!#)####(?!#)[ \t]*\+?{_NUMBER}")
_ALONE = re.compile(rf"\s*\+?{_NUMBER}\s*(?:[%.]\s*)?")
# Digits of other scripts, and raised ones, beside plain ones: another number than the plain ones alone.
_MIXED = re.compile(r"[0-9][.,]?(?:(?![0-9])\d|[\xb2\xb3\xb9\u2070-\u2079])|(?![0-9])\d[.,]?[0-9]")
_LATEX_SPACE = re.compile(r"\\[,!]|\{(?=,\})|(?<=\{,)\}")  # in "1{,}234" and "1\\,234"
_LONGEST_CLAIM = 200  # characters of a marked answer that are read; keeps the time linear


def _canonical(match: re.Match[str]) -> str | None:
    whole = match["whole"].replace(",", "")
    fraction = match["fraction"] or ""
    if len(whole) + len(fraction) > MAX_DIGITS:
        return None
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    digits = f"{whole}.{fraction}" if fraction else whole
    negative = any(character in _MINUS for character in match["sign"]) and digits != "0"
    return f"-{digits}" if negative else digits


def normalize(number: object) -> str | None:
    """Return the canonical spelling of a number, or ``None`` where ``number`` is not a single number.

    Commas, currency and percent signs, a trailing period and needless zeros go; units stay (``50%`` is 50).
    """
    match = _ALONE.fullmatch(str(number))
    return _canonical(match) if match else None


def extract(text: str, method: Method = "strict") -> str | None:
    """Return the number that ``text`` answers with, normalized, or ``None``; takes time linear in the text.

    For the methods see the module's docstring; another is a ``ValueError``.
    """
    _check(method)
    if method == "marked":
        claim = final_answer(text)
        return normalize(text) if claim is None else _only_number(claim)
    last = None
    matches = _MARKED.finditer(text) if method == "strict" else _ANYWHERE.finditer(text, _last_digits(text))
    for last in matches:  # noqa: B007 (the last one is wanted)
        pass
    return _canonical(last) if last else None


def _only_number(claim: str) -> str | None:
    """Return the one number of a marked answer, after its last equals sign."""
    result = _LATEX_SPACE.sub("", claim[:_LONGEST_CLAIM]).rpartition("=")[2]
    numbers = {_canonical(match) for match in _ANYWHERE.finditer(result)}
    if _MIXED.search(result):
        return None
    return numbers.pop() if len(numbers) == 1 else None


def _last_digits(text: str) -> int:
    """Return where to search for the last number: before its digits, with room for its sign and currency."""
    end = max(map(text.rfind, _DIGITS)) + 1
    return max(0, len(text[:end].rstrip(f"{_DIGITS}.,")) - 3) if end else len(text)


def score(text: str, ground_truth: object, method: Method = "strict") -> float:
    """Return 1.0 when ``text`` answers with ``ground_truth``, else 0.0; a ValueError where that is no number."""
    return float(extract(text, method) == _gold(ground_truth))


def compare(answer: str, ground_truth: object) -> int:
    """Return -1, 0 or 1 as ``answer`` is below, equal to or above ``ground_truth``, exactly."""
    answer_number, gold_number = normalize(answer), normalize(ground_truth)
    if answer_number is None or gold_number is None:
        raise ValueError(f"cannot compare {quoted(answer)} with {quoted(ground_truth)}: both must be numbers")
    a, b = Decimal(answer_number), Decimal(gold_number)
    return (a > b) - (a < b)


@dataclass(frozen=True)
class Verdict:
    """The verdict on a reply; ``answer`` is the number that counts by the method asked for."""

    answer: str | None
    correct: bool
    #: Whether there is an answer in the form asked for: an answer line for ``"strict"``, else any marked answer.
    well_formed: bool
    #: Which methods accept the reply.
    accepted: Mapping[str, bool]

    def metrics(self) -> dict[str, float]:
        return {**{name: float(right) for name, right in self.accepted.items()}, "well_formed": float(self.well_formed)}


def judge(text: str, ground_truth: object, method: Method = "strict") -> Verdict:
    """Check a reply in all ways; ``method`` says which counts."""
    _check(method)
    gold = _gold(ground_truth)
    answers = {way: extract(text, way) for way in get_args(Method)}
    form = answers["strict" if method == "strict" else "marked"]
    accepted = {name: answer == gold for name, answer in answers.items()}
    return Verdict(answers[method], accepted[method], form is not None, accepted)


def _check(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, not {method!r}")


def _gold(ground_truth: object) -> str:
    if (gold := normalize(ground_truth)) is not None:
        return gold
    raise ValueError(f"the ground truth {quoted(ground_truth)} is not a number: no answer can be checked against it")
