"""Sentence BLEU of one text against one reference (Papineni et al., 2002), in the two ways CollabLLM's results mix up.

* ``"words"``: what sacreBLEU's ``sentence_bleu`` gives by default, divided by 100: mteval's tokenizer (version 13a),
  n-grams up to 4, effective order, exponential smoothing.
* ``"characters"``: what NLTK's ``sentence_bleu([reference], text)`` gives for two *strings*: its n-grams are then of
  characters. CollabLLM's own code and verl's recipe call it so, and their published figures are of this kind.

Both are written out here, so that scoring a document needs no further library; tests compare them with the originals.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

Unit = Literal["words", "characters"]
UNITS: tuple[str, ...] = get_args(Unit)

#: The longest n-grams that are compared.
ORDER = 4

_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
# mteval 13a: every ASCII symbol stands alone, but for the apostrophe, and for a period, comma or dash within a number.
_SYMBOL = re.compile(r"([!-&(-+/:-@\[-`{-~])")
_POINT_AFTER_TEXT = re.compile(r"([^0-9])([.,])")
_POINT_BEFORE_TEXT = re.compile(r"([.,])([^0-9])")
_DASH_AFTER_DIGIT = re.compile(r"([0-9])(-)")


def tokenize(text: str) -> list[str]:
    """Split ``text`` as mteval's tokenizer 13a does."""
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    if "&" in text:
        for entity, character in _ENTITIES:
            text = text.replace(entity, character)
    text = _SYMBOL.sub(r" \1 ", f" {text} ")
    text = _POINT_AFTER_TEXT.sub(r"\1 \2 ", text)
    text = _POINT_BEFORE_TEXT.sub(r" \1 \2", text)
    return _DASH_AFTER_DIGIT.sub(r"\1 \2 ", text).split()


def sentence_bleu(text: str, reference: str, unit: Unit = "words") -> float:
    """How much of ``text`` stands in ``reference``, by n-grams, from 0 to 1.

    Args:
        text: The text to score.
        reference: What it should be.
        unit: ``"words"`` or ``"characters"``; see the module's docstring.

    Raises:
        ValueError: An unknown unit.
    """
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    if unit == "words":
        return _bleu(tokenize(text), tokenize(reference), smooth=True)
    return _bleu(text, reference, smooth=False)


def _bleu(text: Sequence[str], reference: Sequence[str], *, smooth: bool) -> float:
    logs: list[float] = []
    halvings = 0
    for order in range(1, ORDER + 1):
        ours, theirs = _grams(text, order), _grams(reference, order)
        total, matched = sum(ours.values()), sum((ours & theirs).values())
        if order == 1 and matched == 0:
            return 0.0
        if total == 0 and smooth:
            break  # the effective order: a text of three words has no precision of order four
        if matched == 0 and not smooth:
            return 0.0
        halvings += matched == 0  # each order without a match counts half as much as the one before
        logs.append(math.log(matched / total) if matched else -math.log(total * 2**halvings))
    brevity = min(0.0, 1 - len(reference) / len(text))
    return math.exp(brevity + math.fsum(logs) / len(logs))


def _grams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[start:] for start in range(order)), strict=False))
