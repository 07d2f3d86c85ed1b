"""Answers to questions of fact: exact match and F1, as SQuAD defines them.

Both compare texts in lower case, without punctuation and articles, with single spaces (Rajpurkar et al., "SQuAD:
100,000+ Questions for Machine Comprehension of Text", EMNLP 2016, sec. 6.1). Of several right answers, the best counts.
As in MLQA, punctuation is that of every script, and of scripts without spaces every character is a word.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

from ..words import words_of

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)
_STARTS = ("answer", "final answer")
_MARKS = " \t\r>*_#"  # Markdown's, around the word or the answer


def normalize_answer(text: str) -> str:
    plain = "".join(character for character in text.lower() if not _is_punctuation(character))
    return " ".join(_ARTICLE.sub(" ", plain).split())


def _is_punctuation(character: str) -> bool:
    return character in _PUNCTUATION or unicodedata.category(character)[0] == "P"


def exact_match(answer: str, truths: Sequence[str]) -> float:
    normalized = normalize_answer(answer)
    return float(any(normalized == normalize_answer(truth) for truth in truths))


def f1(answer: str, truths: Sequence[str]) -> float:
    """Return the best harmonic mean of precision and recall over words, from 0 to 1.

    Where one side has no words left, it is 1.0 if the other has none either, else 0.0 (as in SQuAD 2.0).
    """
    return max((_f1(_words(answer), _words(truth)) for truth in truths), default=0.0)


def _words(text: str) -> list[str]:
    words = []
    for word in normalize_answer(text).split():
        parts = words_of(word)
        words += [part.text for part in parts] if any(part.is_character for part in parts) else [word]
    return words


def _f1(answer: list[str], right: list[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    common = (Counter(answer) & Counter(right)).total()
    # 2PR / (P + R) with P = common / len(answer) and R = common / len(right)
    return 2 * common / (len(answer) + len(right))


def stated_answer(text: str) -> str | None:
    """Return the text after the last ``Answer:`` or ``Final answer:`` (in any case and Markdown) that begins a line."""
    for line in reversed(text.split("\n")):
        words = line.strip(_MARKS)
        start = next((start for start in _STARTS if words[: len(start)].lower() == start), None)
        if start is not None and (rest := words[len(start) :].lstrip(_MARKS)).startswith((":", "\uff1a")):
            return rest[1:].strip(_MARKS) or None
    return None
