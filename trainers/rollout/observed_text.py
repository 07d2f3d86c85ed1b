"""The places of messages' texts in a rendered conversation, apart from what the chat template adds.

The conversation is rendered a second time with a sentinel in place of each text. What stands around the sentinels is
the template's, and must stand around the texts, too: exactly, or the place of the texts is not known. A template may
trim the white space around a text; one that changes it in any other way (escapes it as JSON, say) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from textenvs.messages import text_of

Span = tuple[int, int]


def with_sentinels(messages: Mapping[int, Any], *, nowhere_in: str) -> dict[int, str]:
    """Return a sentinel of plain letters for each of ``messages`` that has a text, by its number in the conversation.

    No sentinel occurs in ``nowhere_in``.
    """
    nonce = 0
    while f"zq{nonce}o" in nowhere_in:
        nonce += 1
    return {number: f"zq{nonce}o{number}qz" for number, message in messages.items() if text_of(message)}


def spans_of(texts: Mapping[str, str], skeleton: str, rendered: str) -> list[Span] | None:
    """Return where ``texts``, by sentinel, stand in ``rendered``: (begin, end) of each, in the order of their places.

    ``skeleton`` is the same rendering with the sentinels. ``None``: the two differ in more than the texts.
    """
    if any(skeleton.count(sentinel) != 1 for sentinel in texts):
        return None
    order = sorted(texts, key=skeleton.find)
    around, rest = [], skeleton
    for sentinel in order:
        before, _, rest = rest.partition(sentinel)
        around.append(before)
    around.append(rest)
    return _fit([texts[sentinel] for sentinel in order], around, rendered)


def _fit(texts: list[str], around: list[str], rendered: str) -> list[Span] | None:
    """Return the places of ``texts``, perhaps trimmed, such that what stands ``around`` them is all the rest."""
    if not rendered.startswith(around[0]):
        return None
    # States from which texts are placed, depth first: how many are, and up to where ``rendered`` is explained.
    choices: list[Iterator[Span]] = [_places(texts[0], len(around[0]), rendered)] if texts else []
    placed: list[Span] = []
    while choices:
        span = next(choices[-1], None)
        if span is None:
            choices.pop()
            if placed:
                placed.pop()
            continue
        following = around[len(choices)]
        if not rendered.startswith(following, span[1]):
            continue
        end = span[1] + len(following)
        if len(choices) == len(texts):
            if end == len(rendered):
                return [*placed, span]
            continue
        placed.append(span)
        choices.append(_places(texts[len(choices)], end, rendered))
    return [] if not texts and rendered == around[0] else None


def _places(text: str, begin: int, rendered: str) -> Iterator[Span]:
    """Yield the places of a text that begins at ``begin``: as it is, and trimmed."""
    for form in dict.fromkeys((text, text.strip(), text.rstrip(), text.lstrip())):
        if rendered.startswith(form, begin):
            yield begin, begin + len(form)
