"""Sentence BLEU of one text against one reference, by sacreBLEU, in the two ways CollabLLM's results mix up.

* ``"words"``: what sacreBLEU's ``sentence_bleu`` gives by default, divided by 100.
* ``"characters"``: what NLTK's ``sentence_bleu([reference], text)`` gives for two *strings*: its n-grams are then of
  characters. CollabLLM's own code and verl's recipe call it so, and their published figures are of this kind.
"""

from __future__ import annotations

from typing import Literal

Unit = Literal["words", "characters"]


def sentence_bleu(text: str, reference: str, unit: Unit) -> float:
    """How much of ``text`` stands in ``reference``, by n-grams up to 4, from 0 to 1."""
    from sacrebleu.metrics.bleu import BLEU

    if unit == "words":
        metric = BLEU(effective_order=True)
    else:
        # A token for every character; code points, because white space counts as well.
        text, reference = (" ".join(f"{ord(character):x}" for character in each) for each in (text, reference))
        metric = BLEU(tokenize="none", smooth_method="none", effective_order=False)
    return min(1.0, float(metric.sentence_score(text, [reference]).score) / 100)
