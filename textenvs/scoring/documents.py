"""Documents: find one in a conversation, and check it against what its reader asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: What marks a document in a reply, without room for doubt.
OPENING, CLOSING = "<document>", "</document>"

KINDS: tuple[str, ...] = ("contains", "contains_one_of", "excludes", "first_line", "order", "max_words")

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*")
_SPACES = re.compile(r"\s+")


def last_document(text: str) -> str | None:
    """The last complete document of ``text``: between ``<document>`` and ``</document>``, else in a fenced block.

    Args:
        text: An assistant's reply.

    Returns:
        The document without the marks and the white space around it; ``None`` where there is none, or an empty one.
    """
    closing = text.rfind(CLOSING)
    opening = text.rfind(OPENING, 0, closing) if closing >= 0 else -1
    if opening >= 0:
        return text[opening + len(OPENING) : closing].strip() or None
    return last_block(text)


def last_block(text: str) -> str | None:
    """What stands in the last fenced block of ``text`` that is closed; ``None`` where there is none, or an empty one.

    As in Markdown, a fence is closed by one of the same character that is at least as long.
    """
    found, fence, start = None, "", 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.lstrip(" ").startswith(("```", "~~~")):
            continue
        if not fence:
            if match := _FENCE.fullmatch(line.rstrip()):
                fence, start = match[1], number + 1
        elif (bare := line.strip()) and set(bare) == {fence[0]} and len(bare) >= len(fence):
            found, fence = "\n".join(lines[start:number]).strip() or found, ""
    return found


def respects(document: str, requirement: Mapping[str, Any]) -> bool:
    """Whether a document is as asked for. Case and white space make no difference.

    Args:
        document: The document.
        requirement: ``{"kind": ..., "texts": [...], "words": n}``. Kinds: ``"contains"`` (every text stands in it),
            ``"contains_one_of"``, ``"excludes"`` (none does), ``"first_line"`` (is the text), ``"order"`` (the texts
            stand in it in this order) and ``"max_words"`` (it has at most ``words``).

    Raises:
        ValueError: The requirement is malformed.
    """
    if problem := problem_with(requirement):
        raise ValueError(problem)
    kind = requirement["kind"]
    if kind == "max_words":
        return len(document.split()) <= requirement["words"]
    texts = [_plain(text) for text in requirement["texts"]]
    if kind == "first_line":
        return _plain(document.strip().split("\n", 1)[0].strip("#* ")) == texts[0]
    whole = _plain(document)
    if kind == "order":
        position = 0
        for text in texts:
            position = whole.find(text, position)
            if position < 0:
                return False
            position += len(text)
        return True
    found = [text in whole for text in texts]
    return {"contains": all(found), "contains_one_of": any(found), "excludes": not any(found)}[kind]


def problem_with(requirement: Mapping[str, Any]) -> str | None:
    """What is wrong with a requirement, in words, or ``None``."""
    kind, texts, words = requirement.get("kind"), requirement.get("texts"), requirement.get("words")
    if kind not in KINDS:
        return f"a requirement's kind must be one of {', '.join(KINDS)}, not {kind!r}"
    if kind == "max_words":
        fine = isinstance(words, int) and not isinstance(words, bool) and words > 0
        return None if fine else f"a requirement of kind 'max_words' needs 'words', a number above 0, not {words!r}"
    if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(t, str) and t.strip() for t in texts):
        return f"a requirement of kind {kind!r} needs 'texts', a list of texts, not {texts!r}"
    return None


def _plain(text: str) -> str:
    return _SPACES.sub(" ", text).strip().casefold()
