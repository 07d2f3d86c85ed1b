r"""The final answer of a worked solution: ``#### N`` (GSM8K's mark), ``\boxed{N}`` (MATH's) or "The answer is N"."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_SAID = re.compile(r"\banswer\b[*_]*(?:[ \t]+is\b|[ \t]*[:=])[*_]*:?[ \t]*(?=([^\n]{1,200}))", re.I)
_SENTENCE_END = re.compile(r"(?<=[\w$}%)\]*\"'])[.!?](?=\s|$)")
_EMPHASIS = "*_$ \t\"'"
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text
_BARE = re.compile(r"\$*(\S{1,200})")


def final_answer(text: str) -> str | None:
    r"""Return the answer that ``text`` states last, without its mark; ``None`` where it states none, or an empty one.

    An answer is stated as ``#### N`` (to the end of the line), in ``\boxed{N}``, or as "answer is N" or "Answer: N" in
    any case (to the end of the sentence). The one that begins last counts. Takes time linear in the text.
    """
    place, answer = -1, None
    for match in _MARK.finditer(text):
        if match[1].strip():
            place, answer = match.start(), match[1].strip()
    for match in _SAID.finditer(text):
        stated = _SENTENCE_END.split(match[1], maxsplit=1)[0].strip(_EMPHASIS)
        if stated and match.start() > place:
            place, answer = match.start(), stated
    box = _last_box(text)
    return box[1] if box is not None and box[0] > place else answer


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{...}`` or ``\fbox{...}`` that closes; ``None`` for none or an empty one.

    Takes time linear in the text. Of a box within a box, the outer one counts. ``\boxed 5`` counts, as in rows of MATH.
    """
    box = _last_box(text)
    return None if box is None else box[1]


def _last_box(text: str) -> tuple[int, str] | None:
    ends: dict[int, int] = {}  # where the brace that opens at a position closes
    open_at: list[int] = []
    for match in _BRACE.finditer(text):
        if match[0] == "{":
            open_at.append(match.start())
        elif match[0] == "}" and open_at:
            ends[open_at.pop()] = match.start()
    last, after = None, 0
    for match in _BOX.finditer(text):
        start, place = match.span()
        if start < after:
            continue
        if text[place : place + 1] == "{":
            if (end := ends.get(place)) is not None:
                last, after = (start, text[place + 1 : end].strip()), end
        elif bare := _BARE.match(text, place):
            last = (start, bare[1].strip("$.,"))
    return last if last is not None and last[1] else None
