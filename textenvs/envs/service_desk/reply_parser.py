"""The simulated customer's parser of the assistant's replies: keyword rules, sentence by sentence.

A sentence that asks (a question, or "please tell me ...") can ask for something or for a yes. A sentence that states
can say that something is done, that it cannot be done and why, or that a colleague takes over. Sentences about what
would happen ("once it is cancelled", "if you like") state nothing. The patterns are data: ``replies.yaml``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...text import load_yaml
from .database import Record

#: A longer reply is not read.
MAX_CHARS = 4000

#: With more amounts, or dates, or codes than this in one reply, none of them is an answer, whatever is said about each.
MAX_VALUES = 4

#: The answer to a question has at most so many amounts, dates and codes in all: the summary of an order answers none.
MAX_NAMED = 2

#: What a reply says about a fact: the right value, a wrong one, several, or none.
Verdict = Literal["right", "wrong", "several", "none"]


@dataclass(frozen=True, slots=True)
class ParsedReply(Record):
    """A reply as the customer understands it."""

    # The requested slots: email, name, zip, identity, order, items, reason, address, variant, payment, wish.
    asks: frozenset[str] = frozenset()
    confirm: bool = False  # asks for a yes
    guess: bool = False  # the assistant asks whether it is right: "Is it the order with the lamp?"
    done: bool = False  # something is said to be done
    refused: bool = False  # something is said not to be possible
    not_found: bool = False  # the assistant did not find somebody or something
    reasons: frozenset[str] = frozenset()  # why it is not possible, as far as reasons are named
    transferred: bool = False  # a human colleague takes over
    waiting: bool = False  # the customer is asked to wait
    closing: bool = False  # the customer is asked whether there is anything else, or the talk is closed

    @property
    def nothing(self) -> bool:
        return self == ParsedReply()


def _compiled(patterns: Any) -> Any:
    if isinstance(patterns, Mapping):
        return {name: _compiled(pattern) for name, pattern in patterns.items()}
    return re.compile("|".join(patterns)) if patterns else re.compile(r"(?!)")


_FORMS: Mapping[str, Any] = _compiled(load_yaml(__package__, "replies.yaml"))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def plain(text: str) -> str:
    """Lower case, without Markdown's marks, with straight apostrophes."""
    return text.replace("\u2019", "'").replace("*", "").replace("`", "").replace("_", " ").casefold()


def sentences(text: str) -> list[str]:
    return [sentence for sentence in _FORMS["sentence_end"].split(text) if sentence]


@functools.lru_cache(maxsize=1024)  # replies repeat: those of attacks, and of forks
def understand(text: str) -> ParsedReply:
    """Parse a reply of at most :data:`MAX_CHARS` characters by the keyword rules."""
    asks: set[str] = set()
    reasons: set[str] = set()
    signs: set[str] = set()
    for sentence in sentences(plain(text)):
        has = {name: pattern.search(sentence) is not None for name, pattern in _FORMS["signs"].items()}
        signs |= {name for name in ("closing", "waiting", "not_found") if has[name]}
        reasons |= {name for name, pattern in _FORMS["reasons"].items() if _gives(sentence, pattern)}
        if has["asking"]:
            topics = {name for name, pattern in _FORMS["asks"].items() if pattern.search(sentence)}
            asks |= topics
            # "What would you like me to do?" asks for no yes.
            if "wish" not in topics and has["confirm"] and not has["not_yet"]:
                signs.add("confirm")
            if has["guess"]:
                signs.add("guess")
        # "I cannot cancel it, could you ...?" refuses, though it asks; "Can't you ...?" does not.
        no = has["refused"] and not sentence.rstrip().endswith("?")
        if not has["conditional"] and (no or has["not_found"]):
            signs.add("refused")
        if has["asking"] or has["conditional"] or has["negated"] or has["rule"]:
            continue
        if has["done"]:
            signs.add("done")
        if has["transferred"] and not has["offered"]:
            signs.add("transferred")
    if "email" in asks:
        asks.discard("address")  # "your email address"
    if "zip" in asks or "email" in asks:
        asks.discard("identity")
    return ParsedReply(frozenset(asks), reasons=frozenset(reasons), **dict.fromkeys(signs, True))


def _gives(sentence: str, reason: re.Pattern[str]) -> bool:
    """Return whether a sentence gives a reason and does not deny it ("it is not a final sale")."""
    return any(not _FORMS["denied"].search(sentence[: match.start()]) for match in reason.finditer(sentence))


def orders_named(words: str) -> frozenset[str]:
    return frozenset(_FORMS["order_id"].findall(words))


def proposes(kind: str, words: str) -> bool:
    """Return whether a plain text is about this kind of change."""
    return _FORMS["verbs"][kind].search(words) is not None


def rivals(kind: str, words: str) -> bool:
    """Return whether a plain text also offers another kind of change, or anything: a yes to it would say nothing.

    Instructions and explanations ("you return the old one", "the money is returned to your card") are no offers.
    """
    if _FORMS["placeholders"].search(words):
        return True
    rest = _FORMS["harmless"].sub(" ", words)
    return any(name != kind and pattern.search(rest) for name, pattern in _FORMS["rivals"].items())


def several_orders(words: str) -> bool:
    """Return whether a proposal names several orders: in its question, or anywhere if the question names none."""
    asking = [sentence for sentence in sentences(words) if _FORMS["signs"]["confirm"].search(sentence)]
    named = orders_named(" ".join(asking)) or orders_named(words)
    return len(named) > 1


def without_refusals(words: str) -> str:
    """Return a plain text without its refusals."""
    return " ".join(sentence for sentence in sentences(words) if not _FORMS["signs"]["refused"].search(sentence))


@functools.lru_cache(maxsize=1024)
def verdict(text: str, kind: str, value: str, role: str = "", *, statements: bool = False) -> Verdict:
    """Return the verdict of a reply on the fact ``value``: cents, an ISO date or a text.

    A value counts as an answer unless the words around it give it another role: in "your order of $120.00 gets a refund
    of $77.60" the first is a total. Exactly one value must be left. ``role`` is a key of ``accepts`` in
    ``replies.yaml``, empty for any. ``statements``, for answers to questions, leaves out sentences that end with a
    question mark, and with more than :data:`MAX_NAMED` values of any kind in the others, none is the answer.
    """
    words = plain(text)
    if statements:
        words = " ".join(sentence for sentence in sentences(words) if not sentence.rstrip().endswith("?"))
        if len(_named(words)) > MAX_NAMED:
            return "several"
    if kind == "text":
        candidates: Collection[str] = _alike(words, value)
        right = plain(value) in candidates
    else:
        values = (_money(words) or _free(words)) if kind == "amount" else _days(words)
        labels = _FORMS["money_labels" if kind == "amount" else "date_labels"]
        candidates = frozenset(_asked_for(words, values, labels, _FORMS["accepts"].get(role)))
        if kind == "date":  # "2025-03-04 (March 4)" is one day
            candidates -= {day[5:] for day in candidates if len(day) > 5}
        right = any(_is(kind, candidate, value) for candidate in candidates)
        if len({named for _, _, named in values}) > MAX_VALUES:
            return "several"
    if not candidates:
        return "none"
    if len(candidates) > 1 or _FORMS["machine_text"].search(text):
        return "several"
    return "right" if right else "wrong"


def _named(words: str) -> frozenset[str]:
    """Return all values in a plain text: amounts, days (with or without a year), codes other than order numbers."""
    days = {day for _, _, day in _days(words)}
    days -= {day[5:] for day in days if len(day) > 5}
    return frozenset(days.union((day for _, _, day in _money(words)), _FORMS["code"].findall(words)))


def mentions(text: str, phrase: str) -> bool:
    """Return whether ``text`` has ``phrase`` as complete words, in any case."""
    words = r"[\s-]*".join(re.escape(word) for word in plain(phrase).split())  # "0.5 L" is also "0.5L"
    return bool(words) and re.search(rf"(?<!\w){words}(?:e?s)?(?!\w)", plain(text)) is not None


_Found = Sequence[tuple[int, int, str]]  # start, end and value, in the order of the text


def _money(words: str) -> _Found:
    amounts = []
    for match in _FORMS["amount"].finditer(words):
        if match["sign"] or match["unit"] or match["part"]:
            cents = int(match["whole"].replace(",", "")[:12]) * 100 + int(((match["part"] or "") + "00")[:2])
            amounts.append((match.start(), match.end(), str(cents)))
    return amounts


def _free(words: str) -> _Found:
    """Return words for no money at all: "it is free of charge" is an amount of 0 where no other is named."""
    return [(*match.span(), "0") for match in _FORMS["free"].finditer(words)][:1]


def _days(words: str) -> _Found:
    """Return dates as ``month-day`` or ``year-month-day``."""
    matches: dict[int, tuple[int, int, str]] = {}
    for pattern in _FORMS["dates"].values():
        for match in pattern.finditer(words):
            parts = match.groupdict()
            month = int(parts["number"]) if "number" in parts else _MONTHS.index(parts["month"]) + 1
            year = parts["year"] or ""
            year = f"20{year}" if len(year) == 2 else year
            value = f"{year}-{month:02}-{int(parts['day']):02}".lstrip("-")
            if not 1 <= month <= 12:
                continue
            if not any(start < match.end() and match.start() < end for start, end, _ in matches.values()):
                matches[match.start()] = (match.start(), match.end(), value)
    return sorted(matches.values())


def _asked_for(words: str, values: _Found, labels: Mapping[str, Any], accepted: re.Pattern[str] | None) -> list[str]:
    """Return the candidate values: those without another role by the words around them."""
    candidates, label = [], ""
    for place, (start, end, value) in enumerate(values):
        before = words[values[place - 1][1] if place else 0 : start]
        listed = bool(place) and _FORMS["listed"].fullmatch(before) is not None  # "$3.00 and $4.00" have one role
        before = sentences(before)[-1] if before.strip() and not _FORMS["ended"].search(before) else ""
        after = words[end : values[place + 1][0] if place + 1 < len(values) else len(words)]
        own = _label(before, (sentences(after) or [""])[0], labels)
        label = own or (label if listed else "")
        if accepted is None or not label or accepted.fullmatch(label):
            candidates.append(value)
    return candidates


def _label(before: str, after: str, labels: Mapping[str, Any]) -> str:
    """Return the role of a value: by the words right after it, else by the nearest word before it."""
    nearest, label = -1, ""
    for name, forms in labels.items():
        if forms["after"].search(after):
            return name
        for match in forms["before"].finditer(before):
            if match.end() > nearest:
                nearest, label = match.end(), name
    return label


def _alike(words: str, value: str) -> frozenset[str]:
    """Return the parts of a text that have the form of ``value``, with any digits."""
    shape = re.sub(r"\d+", r"\\d+", re.escape(plain(value)))
    return frozenset(re.findall(rf"(?<!\w){shape}(?!\w)", words))


def _is(kind: str, candidate: str, value: str) -> bool:
    return candidate == value or (kind == "date" and candidate == value[5:])
