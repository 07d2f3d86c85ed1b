"""Documents: find one in a conversation, and check it against what its reader asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from ..words import standing

#: What marks a document in a reply, without room for doubt.
OPENING, CLOSING = "<document>", "</document>"

Text = Annotated[str, Field(pattern=r"\S")]
Kind = Literal["contains", "contains_one_of", "excludes", "first_line", "line", "opens_line", "order"]


class TextRequirement(TypedDict):
    """``rivals`` are texts that would be claims of something else."""

    kind: Kind
    texts: Annotated[list[Text], Field(min_length=1)]
    rivals: NotRequired[list[Text]]


class LengthRequirement(TypedDict):
    """The largest number of words of a document."""

    kind: Literal["max_words"]
    words: Annotated[int, Field(ge=1, strict=True)]


#: A requirement on a document; see :func:`respects`.
Requirement = Annotated[TextRequirement | LengthRequirement, Field(discriminator="kind")]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[^`]*")
_SPACES = re.compile(r"\s+")
_MARKUP = re.compile(r"^(?:[#>*\u2022-]+|\d+[.)])\s+|[*_`]")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def last_document(text: str) -> str | None:
    """Return the content of the last closed ``<document>``, else of the last fenced block; never an empty text."""
    closing = text.rfind(CLOSING)
    opening = text.rfind(OPENING, 0, closing) if closing >= 0 else -1
    if opening >= 0:
        return text[opening + len(OPENING) : closing].strip() or None
    return last_block(text)


def last_block(text: str) -> str | None:
    """Return the content of the last closed fenced block that is not empty.

    As in Markdown, a fence is closed by one of the same character that is at least as long.
    """
    block, fence, start = None, "", 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not line.lstrip(" ").startswith(("```", "~~~")):
            continue
        if not fence:
            if match := _FENCE.fullmatch(line.rstrip()):
                fence, start = match[1], number + 1
        elif (bare := line.strip()) and set(bare) == {fence[0]} and len(bare) >= len(fence):
            block, fence = "\n".join(lines[start:number]).strip() or block, ""
    return block


def respects(document: str, requirement: Mapping[str, Any]) -> bool:
    """Return whether a document meets a :data:`Requirement`. Case, white space and markup of lines make no difference.

    Kinds: ``"contains"`` (every text stands in it), ``"contains_one_of"``, ``"excludes"`` (none does), ``"first_line"``
    (is the first text), ``"line"`` (some line is the first text, behind a label and a colon), ``"opens_line"``
    (some line begins with it), ``"order"`` (the texts stand in it in this order), ``"max_words"`` (it has at most
    ``words``).
    """
    kind = requirement["kind"]
    if kind == "max_words":
        return len(document.split()) <= requirement["words"]
    texts = [_plain(text) for text in requirement["texts"]]
    lines = [_bare(line) for line in document.strip().split("\n")]
    if kind == "first_line":
        return lines[0] == texts[0].rstrip(".,;!")
    if kind == "line":
        return any(line.endswith(f": {texts[0]}") for line in lines)
    if kind == "opens_line":
        return any(line.startswith(texts[0]) for line in lines)
    whole = _plain(document)
    if kind == "order":
        for text in texts:
            _, separator, whole = whole.partition(text)
            if not separator:
                return False
        return True
    held = [text in whole for text in texts]
    return {"contains": all(held), "contains_one_of": any(held), "excludes": not any(held)}[kind]


def untold_claims(document: str, disclosed: str, rivals: Iterable[str], facts: Sequence[str] = ()) -> list[str]:
    """Return a document's claims that were not ``disclosed``: numbers, those of ``rivals``, and lines that are no fact.

    Numbers of a list (``1.`` at the beginning of a line) are no claims. Each of the ``facts`` may stand once behind a
    label and a colon, on lines but the first; any other labelled line is a claim, if no number or rival in it is the
    claim of it; without any fact, none is.
    """
    plain = " ".join(_plain(_MARKUP.sub("", line.strip())) for line in document.split("\n"))
    disclosed_text = _plain(disclosed)
    numbers = set(_NUMBER.findall(disclosed_text))
    claims = [number for number in _NUMBER.findall(plain) if number not in numbers]
    for rival in rivals:
        text = _plain(rival)
        if text in plain and text not in disclosed_text and standing(text).search(plain):
            claims.append(rival)
    claims = list(dict.fromkeys(claims))
    unclaimed = [_plain(fact) for fact in facts]
    lineless = [claim.casefold() for claim in claims]  # each is the claim of one line
    for line in document.strip().split("\n")[1:] if facts else ():
        _, colon, value = _bare(line).partition(": ")
        if value in unclaimed:
            unclaimed.remove(value)
        elif colon and (own := next((claim for claim in lineless if claim in value), None)) is not None:
            lineless.remove(own)
        elif colon:
            claims.append(line.strip())
    return claims


def _bare(line: str) -> str:
    """Return a line without its markup and the sign at its end."""
    return _plain(_MARKUP.sub("", line.strip())).rstrip(".,;!")


def _plain(text: str) -> str:
    return _SPACES.sub(" ", text).strip().casefold()
