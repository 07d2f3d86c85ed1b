r"""The final answer of a worked solution: after ``####`` (GSM8K's mark) or in ``\boxed{...}`` (MATH's)."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z]) *")


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


def _last_box(text: str) -> tuple[int, str] | None:
    last = None
    for last in _BOX.finditer(text):  # noqa: B007 (the last one is wanted)
        pass
    if last is None:
        return None
    start, rest = last.start(), text[last.end() :]
    if not rest.startswith("{"):  # "\\boxed 5", as some rows of MATH have it
        words = rest.lstrip("$").split(maxsplit=1)
        word = words[0].strip("$.,") if words else ""
        return (start, word) if word else None
    depth = 0
    for i, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            inside = rest[1:i].strip()
            return (start, inside) if inside else None
    return None
