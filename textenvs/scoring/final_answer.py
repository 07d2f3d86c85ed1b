r"""The final answer of a worked solution: after ``####`` (GSM8K's mark) or in ``\boxed{...}`` (MATH's)."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text
_BARE = re.compile(r"\$*(\S{1,200})")


def final_answer(text: str) -> str | None:
    """The last marked answer of ``text``, without the mark; ``None`` where there is none, or an empty one.

    Takes time linear in the text.
    """
    place, found = -1, None
    for match in _MARK.finditer(text):
        if match[1].strip():
            place, found = match.start(), match[1].strip()
    box = _last_box(text)
    return box[1] if box is not None and box[0] > place else found


def boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}`` or ``\fbox{...}`` that closes; ``None`` if none does, or it is empty.

    Takes time linear in the text. Of a box within a box, the outer one counts. ``\boxed 5`` counts, as some rows of
    MATH have it.
    """
    box = _last_box(text)
    return None if box is None else box[1]


def _last_box(text: str) -> tuple[int, str] | None:
    """Where the last box starts, and its content."""
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
