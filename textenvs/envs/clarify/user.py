"""A scripted user who asks for something, tells only what it is asked for, and answers good questions.

Replies are read by rules, generous to any phrasing. A reply with ``####`` and a number or one of the request's words (a
day, a colour) after it is an *answer*; else it is a *question* if it has a question mark, an interrogative or a word
such as "tell", "need" or "missing". Each part of such a sentence (between commas and "and") asks for one slot: that of
which it uses a word first. A part that only asks for the result ("How many are left?") asks for no slot.

What the request left out is disclosed when it is asked for, and not before, one thing a reply. A question for several
things of which one is known is needless, so asking for everything at once does not pay. The sentences are short and
few, so that a tiny model can learn to read them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ...messages import Message, visible_text
from ...scoring.gsm8k import normalize
from ...users.base import Fact
from ...users.guard import values_in
from ...users.moves import Move
from .tasks import Kind, Request

_MARKED = re.compile(r"(?<!#)####(?!#)([^\n]*)")
_SENTENCE = re.compile(r"[^.?!\n]+[.?!\n]?")
_BETWEEN_PARTS = re.compile(r"[,;:/&]|\b(?:and|or)\b", re.IGNORECASE)
_INTERROGATIVE = re.compile(
    r"\?|\b(?:what|which|how|when|who|where|tell|know|need|needs|missing|specify|clarify|clarification|provide|confirm"
    r"|could you|can you|would you|do you|please (?:give|say|state|share)|not given|not stated|not mentioned"
    r"|unclear|unknown|unspecified)\b",
    re.IGNORECASE,
)
# A number, with commas between groups of three digits only and a sign only where no operand is on its left; or a word.
_PART = re.compile(r"(?:(?<![\w.)%])[-\u2212])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|[^\W\d_]+")


@dataclass(frozen=True)
class Reading:
    """The user's interpretation of a reply."""

    sort: Literal["answer", "question", "neither"]
    #: The parts of an answer, in order: numbers, and words that are values of the request's slots.
    answer: tuple[str, ...] = ()
    #: For each thing that a question asks for, the slots that may be requested ("When?" may be the day or the hour).
    slots: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True)
class Speech:
    """The user's next message, the slots it tells, and whether the question was about what was said already."""

    text: str
    disclosed: tuple[str, ...] = ()
    needless: bool = False
    move: Move | None = None  #: ``None`` where a model plays the user


def read(reply: Message, request: Request) -> Reading:
    """Understand a reply, without its private reasoning; takes time linear in the text and never fails."""
    text = visible_text(reply)
    marked = None
    for marked in _MARKED.finditer(text):  # noqa: B007 (only the last one counts)
        pass
    if marked and (parts := _parts(marked[1], request.kind)):
        return Reading("answer", parts)
    sentences = [sentence for sentence in _SENTENCE.findall(text) if _INTERROGATIVE.search(sentence)]
    if not sentences:
        return Reading("neither")
    slots = (_slots_of(part, request.kind) for sentence in sentences for part in _BETWEEN_PARTS.split(sentence))
    return Reading("question", slots=tuple(filter(None, slots)))


def is_right(reading: Reading, request: Request) -> bool:
    return reading.answer == tuple(_part(part) for part in request.answer)


def respond(reading: Reading, request: Request, disclosed: Collection[str], needless: int) -> Speech:
    """Return the user's answer to a reply that is not an answer, after having told the slots in ``disclosed``.

    After ``needless`` questions that were needless the user is a little impatient.
    """
    if reading.sort == "neither":
        return Speech("Ask me, or answer with ####.", move="complains")
    again = "As I said, " if needless else ""
    still_open = [slot for slot in request.kind.slots if slot.name in request.missing and slot.name not in disclosed]
    if not still_open:
        return Speech(f"{again}I have told you all.", needless=True, move="repeats")
    if not reading.slots:
        return Speech("What do you want to know?", move="complains")
    requested = [next((slot for slot in still_open if slot.name in slots), None) for slots in reading.slots]
    first = next((slot for slot in requested if slot is not None), None)
    if first is None:
        return Speech(f"{again or 'But '}I have told you that.", needless=True, move="repeats")
    reminder = " One thing at a time, please." if len(requested) > 1 else ""
    text = f"{request.telling(first)}{reminder}"
    return Speech(text, disclosed=(first.name,), needless=None in requested, move="reveals")


def told_too_much(
    text: str, context: str, requested: Collection[str], hidden: Collection[str], request: Request
) -> str | None:
    """Return an error if a message tells the answer, or a hidden slot that was not requested; else ``None``."""
    if any(request.tells(name, text, context) for name in hidden if name not in requested):
        return "it tells what the assistant did not ask for"
    answer, values = request.answer[-1], [str(request.values[name]) for name in hidden]
    if not request.kind.order and answer not in values and answer in values_in(text) - values_in(context):
        return "it does the assistant's work"
    return None


def facts_of(request: Request) -> list[Fact]:
    """Return what the request leaves out, and the answer, which a user never tells."""
    about, _ = _patterns(request.kind)
    facts = [
        Fact(slot.name, request.telling(slot), functools.partial(request.tells, slot.name), about[slot.name].search)
        for slot in request.kind.slots
        if slot.name in request.missing
    ]
    answer = request.answer[-1]
    if not request.kind.order and answer not in {str(request.values[name]) for name in request.missing}:
        facts.append(Fact("answer", answer, lambda text, context: answer in values_in(text) - values_in(context)))
    return facts


def _slots_of(part: str, kind: Kind) -> frozenset[str]:
    """Return the slots whose words ``part`` uses first; of words that begin at one place, the longest counts."""
    about, result = _patterns(kind)
    if result.search(part):
        return frozenset()
    places = {name: (match.start(), -match.end()) for name, words in about.items() if (match := words.search(part))}
    return frozenset(name for name, place in places.items() if place == min(places.values()))


def _parts(line: str, kind: Kind) -> tuple[str, ...]:
    words = {value.casefold() for slot in kind.slots for value in slot.values if isinstance(value, str)}
    parts = map(_part, _PART.findall(line))
    return tuple(part for part in parts if not part.isalpha() or part in words)


def _part(part: str) -> str:
    # A number too long to read is an answer, and a wrong one.
    return part.casefold() if part.isalpha() else normalize(part) or "?"


@functools.cache
def _patterns(kind: Kind) -> tuple[dict[str, re.Pattern[str]], re.Pattern[str]]:
    about = {slot.name: re.compile(rf"\b(?:{slot.about})\b", re.IGNORECASE) for slot in kind.slots}
    return about, re.compile(rf"\b(?:{kind.result})\b", re.IGNORECASE)
