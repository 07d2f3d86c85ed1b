"""Answers to questions of fact: exact match and F1, as SQuAD defines them.

Both compare texts in lower case, without punctuation and articles, with single spaces (Rajpurkar et al., "SQuAD:
100,000+ Questions for Machine Comprehension of Text", EMNLP 2016, sec. 6.1). Of several right answers, the best counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_STARTS = ("answer", "final answer")
_MARKS = " \t\r>*_#"  # Markdown's, around the word or the answer


def normalize_answer(text: str) -> str:
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    given = normalize_answer(answer)
    return float(any(given == normalize_answer(truth) for truth in truths))


def f1(answer: str, truths: Sequence[str]) -> float:
    """The best harmonic mean of precision and recall over words, from 0 to 1.

    Where one side has no words left, it is 1.0 if the other has none either, else 0.0 (as in SQuAD 2.0).
    """
    return max(
        (_f1(normalize_answer(answer).split(), normalize_answer(truth).split()) for truth in truths), default=0.0
    )


def _f1(given: list[str], right: list[str]) -> float:
    if not given or not right:
        return float(given == right)
    common = (Counter(given) & Counter(right)).total()
    # 2PR / (P + R) with P = common / len(given) and R = common / len(right)
    return 2 * common / (len(given) + len(right))


def stated_answer(text: str) -> str | None:
    """What stands after the last ``Answer:`` or ``Final answer:`` (in any case and Markdown) that begins a line."""
    for line in reversed(text.split("\n")):
        words = line.strip(_MARKS)
        start = next((start for start in _STARTS if words[: len(start)].lower() == start), None)
        if start is not None and (rest := words[len(start) :].lstrip(_MARKS)).startswith(":"):
            return rest[1:].strip(_MARKS) or None
    return None
