"""Whether two short final answers are the same."""

from __future__ import annotations

import re

from .gsm8k import normalize

_WRAPPER = re.compile(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,;:! ]|\\quad|\\left|\\right|[\s$]|\\\(|\\\)|~")


def plain(answer: str) -> str:
    r"""An answer without what does not change it: dollar signs, spaces, ``\text``, a final period."""
    answer = _SPACING.sub("", _WRAPPER.sub(r"\1", answer)).rstrip(".")
    return answer.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac").casefold()


def same_answer(answer: str, gold: str) -> bool:
    """Whether ``answer`` is ``gold``: numbers by value, everything else by its plain spelling."""
    ours, theirs = normalize(answer), normalize(gold)
    return plain(answer) == plain(gold) if ours is None or theirs is None else ours == theirs
