"""A scripted user who asks for something, keeps to itself what it was not asked for, and answers good questions.

Replies are read by rules, generous to any phrasing:

* a reply with ``####`` and a number or one of the request's words (a day, a colour) after it is an *answer*;
* else it is a *question* if it has a question mark, an interrogative or a word such as "tell", "need" or "missing". It
  asks for every slot of which it uses one of the words, sentence by sentence; a sentence that only asks for the result
  ("How many are left?") asks for no slot;
* anything else is neither.

What the request left out is told when it is asked for, and not before. The sentences are short and few, so that a tiny
model can learn to read them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from ...messages import Message, visible_text
from ...scoring.gsm8k import normalize
from .tasks import Request
from .templates import Kind

_MARKED = re.compile(r"(?<!#)####(?!#)([^\n]*)")
_SENTENCE = re.compile(r"[^.?!\n]+[.?!\n]?")
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
    """What the user makes of a reply.

    Args:
        sort: Whether it answers, asks, or does neither.
        answer: The parts of an answer, in order: numbers, and words that are values of the request's slots.
        asked: The slots that a question is about.
    """

    sort: Literal["answer", "question", "neither"]
    answer: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Speech:
    """What the user says next.

    Args:
        text: Its words.
        told: The slots it tells with them.
        needless: Whether it was asked only for what it had said already.
    """

    text: str
    told: tuple[str, ...] = ()
    needless: bool = False


def read(reply: Message, request: Request) -> Reading:
    """Understand a reply, without its private reasoning; takes time linear in the text and never fails."""
    text = visible_text(reply)
    marked = None
    for marked in _MARKED.finditer(text):  # noqa: B007 (the last one is wanted)
        pass
    if marked and (parts := _parts(marked[1], request.kind)):
        return Reading("answer", parts)
    sentences = [sentence for sentence in _SENTENCE.findall(text) if _INTERROGATIVE.search(sentence)]
    if not sentences:
        return Reading("neither")
    about, result = _patterns(request.kind)
    asking = [sentence for sentence in sentences if not result.search(sentence)]
    asked = {name for name, words in about.items() if any(words.search(sentence) for sentence in asking)}
    return Reading("question", asked=frozenset(asked))


def is_right(reading: Reading, request: Request) -> bool:
    """Whether a reply is the right answer."""
    return reading.answer == tuple(_part(part) for part in request.answer)


def respond(reading: Reading, request: Request, told: Collection[str], needless: int) -> Speech:
    """The user's words to a reply that is not an answer.

    Args:
        reading: The reply.
        request: The user's request.
        told: What the user told so far of what the request left out.
        needless: How many needless questions there were so far; the user gets a little impatient.
    """
    if reading.sort == "neither":
        return Speech("Ask me, or answer with ####.")
    open_slots = [name for name in request.missing if name not in told]
    telling = [slot for slot in request.kind.slots if slot.name in open_slots and slot.name in reading.asked]
    if telling:
        return Speech(" ".join(map(request.telling, telling)), told=tuple(slot.name for slot in telling))
    if open_slots and not reading.asked:
        return Speech("What do you want to know?")
    again = "As I said, " if needless else ""
    if open_slots:
        return Speech(f"{again or 'But '}I have told you that.", needless=True)
    return Speech(f"{again}I have told you all.", needless=True)


def _parts(line: str, kind: Kind) -> tuple[str, ...]:
    words = {value.casefold() for slot in kind.slots for value in slot.values if isinstance(value, str)}
    found = map(_part, _PART.findall(line))
    return tuple(part for part in found if not part.isalpha() or part in words)


def _part(part: str) -> str:
    # A number too long to read is nobody's answer, but an answer.
    return part.casefold() if part.isalpha() else normalize(part) or "?"


@functools.cache
def _patterns(kind: Kind) -> tuple[dict[str, re.Pattern[str]], re.Pattern[str]]:
    about = {slot.name: re.compile(rf"\b(?:{slot.about})\b", re.IGNORECASE) for slot in kind.slots}
    return about, re.compile(rf"\b(?:{kind.result})\b", re.IGNORECASE)
