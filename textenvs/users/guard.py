"""Which values a message states, to see whether a user told what it was not asked for."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SMALL += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_UNITS = {word: n for n, word in enumerate(_SMALL)}
_ALONE = [word for word in _SMALL if word != "one"]  # "one thing" states no number
_WORD = re.compile(rf"\b(?:({'|'.join(_TENS)})(?:[ -]({'|'.join(_SMALL[1:10])}))?|({'|'.join(_ALONE)}))\b")


def values_in(text: str) -> set[str]:
    """The numbers in ``text`` in digits, also those that it has in words ("nine", "twenty-one"; up to 99)."""
    found = set(_NUMBER.findall(text))
    for tens, unit, small in _WORD.findall(text.lower()):
        found.add(str(_TENS[tens] + _UNITS.get(unit, 0) if tens else _UNITS[small]))
    return found
