"""Sentence BLEU of one text against one reference, by sacreBLEU, in the two variants of CollabLLM's results.

* ``"words"``: the default of sacreBLEU's ``sentence_bleu``, divided by 100.
* ``"characters"``: the value of NLTK's ``sentence_bleu([reference], text)`` for two *strings*: its n-grams are then of
  characters. CollabLLM's own code and verl's recipe call it so, and their published figures are of this kind.
"""

from __future__ import annotations

from typing import Literal

Unit = Literal["words", "characters"]


def sentence_bleu(text: str, reference: str, unit: Unit) -> float:
    """Return the n-gram precision of ``text`` against ``reference``, up to 4-grams, from 0 to 1."""
    from sacrebleu.metrics.bleu import BLEU

    if unit == "words":
        metric = BLEU(effective_order=True)
    else:
        # A token for every character; code points, because white space counts as well.
        text, reference = (" ".join(f"{ord(character):x}" for character in string) for string in (text, reference))
        metric = BLEU(tokenize="none", smooth_method="none", effective_order=False)
    return min(1.0, float(metric.sentence_score(text, [reference]).score) / 100)
