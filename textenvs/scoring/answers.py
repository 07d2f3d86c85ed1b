"""Comparison of two short final answers."""

from __future__ import annotations

import re

from .gsm8k import normalize

_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\quad|\\left|\\right|[\s$]|\\\(|\\\)|~")


def plain(answer: str) -> str:
    r"""Return an answer without what does not change it: dollar signs, spaces, ``\text``, a final period."""
    answer = _SPACING.sub("", _WRAPPER.sub(r"\1", answer)).rstrip(".")
    return answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").casefold()


def same_answer(answer: str, gold: str) -> bool:
    """Return whether ``answer`` is ``gold``: numbers by value, everything else by its plain spelling."""
    number, gold_number = normalize(answer), normalize(gold)
    return plain(answer) == plain(gold) if number is None or gold_number is None else number == gold_number
