"""The values that a message states, to detect that a user tells what it was not asked for, or what is false."""

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
    """Return the numbers in ``text`` in digits, also those that it has in words ("nine", "twenty-one"; up to 99)."""
    numbers = set(_NUMBER.findall(text))
    for tens, unit, small in _WORD.findall(text.lower()):
        numbers.add(str(_TENS[tens] + _UNITS.get(unit, 0) if tens else _UNITS[small]))
    return numbers


_SENTENCE_END = re.compile(r"(?<=[.?!;\uff1f])\s+|\n+")
_ASKS = re.compile(
    r"[?\uff1f]|\b(?:what|which|how|when|where|who|whom|whose|why|please|missing|unclear|unknown|unspecified)\b"
    r"|\b(?:tell|give|send|show|let) (?:me|us)\b|\b(?:could|can|would|will|do|did|are|have) you\b|\bmay (?:i|we)\b"
    r"|\b(?:need|want|like|have) to (?:know|ask)\b|\b(?:i|we|you)(?:'d|'ll)?(?: \w+){0,2} (?:need|require)s?\b"
    r"|\b(?:provide|specify|clarify|describe|explain|confirm|verify|share|state|say|name|tell)\b"
    r"|\bnot (?:given|stated|mentioned|specified)\b|(?:\bnot|n't)(?: yet)? know\b",
    re.IGNORECASE,
)


def asking_sentences(text: str) -> list[str]:
    """Return the sentences that ask, each after the sentence before it, to which its words may refer ("its name?").

    They have a question mark, an interrogative, or a word by which one requests. So do the lines after one that asks
    and ends with a colon. The rule is generous, and independent of the parsers of scripted users: what it does not
    return asks for nothing.
    """
    asking, listing, before = [], False, ""
    for sentence in _SENTENCE_END.split(text):
        asks = _ASKS.search(sentence) is not None
        if asks or listing:
            asking.append(f"{before} {sentence}".strip())
        listing = (asks or listing) and (listing or sentence.rstrip().endswith(":"))
        before = sentence
    return asking


#: A list's marker; a number in digits; one in words. Numbers with hundreds and more in words are left to the reader.
_MARKER = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)
_LARGE = re.compile(
    rf"\b(?:(?:{'|'.join((*_SMALL, *_TENS, 'a', 'and'))})[ -])*(?:hundred|thousand|million|dozen)s?\b[a-z -]*", re.I
)


def numbers_in(text: str) -> dict[str, int]:
    """Return the numbers in ``text`` in one form, with the position of each one's last occurrence.

    "1,200" is 1200, "4.50" is 4.5, "nine" is 9.
    """
    for left_out in (_MARKER, _LARGE):
        text = left_out.sub(lambda number: " " * len(number[0]), text)
    places: dict[str, int] = {}
    for match in _NUMBER.finditer(text):
        plain = re.sub(r",(?=\d{3}(?!\d))", "", match[0])
        places[plain.rstrip("0").rstrip(".") if "." in plain else plain] = match.start()
    for match in _WORD.finditer(text.lower()):
        for value in values_in(match[0]):
            places[value] = max(match.start(), places.get(value, -1))
    return places
