"""Control tokens of a model's own tokenizer: text in a message never becomes one.

1. :meth:`ControlTokens.mark` replaces each control token that a message spells by a mark of plain letters, so that the
   template's own can be told apart afterwards.
2. :meth:`ControlTokens.encode` cuts the text inside each spelled token and encodes the pieces apart.
3. The result is checked: where a tokenizer still makes control tokens that the template did not write (one that
   normalises text first, say), the text between the template's own is cut further.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class MarkedText(NamedTuple):
    """Rendered text in which control tokens spelled by messages are marked, and what the marks look like, if any."""

    marked: str
    marks: re.Pattern[str] | None = None

    def after(self, end: int) -> MarkedText:
        """The text from position ``end`` on."""
        return MarkedText(self.marked[end:], self.marks)


class ControlTokens:
    """The control tokens of one tokenizer: special ones, those it declares (``chat_control_tokens``), and ``more``."""

    def __init__(self, tokenizer: Any, more: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
        declared = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *more}
        names = [token.content for token in added if token.special or token.content in declared]
        names += map(str, tokenizer.all_special_tokens)
        self.ids = {name: int(tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys(names) if name}
        self.pattern = any_of(self.ids)
        self._names = tuple(self.ids)
        self._values = frozenset(self.ids.values()) - {tokenizer.unk_token_id}  # what is unknown is not spelled
        self._space_first = self.of("a") != self.of("\na")[len(self.of("\n")) :]  # SentencePiece's dummy prefix

    def mark(self, values: Sequence[tuple[Any, re.Pattern[str]]]) -> tuple[list[Any], re.Pattern[str] | None]:
        """Put a mark, letters and digits that occur nowhere else, for each control token that ``values`` spell.

        Values are nested mappings and sequences of strings, each with the pattern of what to mark in it. Returns them
        with marks, and what matches a mark (``None`` where there was nothing to mark).
        """
        texts = [text for value, _ in values for text in _strings(value)]
        if not any(self.pattern.search(text) for text in texts):
            return [value for value, _ in values], None
        nonce = 0
        while any(f"zq{nonce}n" in text for text in texts):
            nonce += 1

        def mark(match: re.Match[str]) -> str:
            return f"zq{nonce}n{self._names.index(match[0])}qz"

        return [_map_strings(value, what, mark) for value, what in values], re.compile(f"zq{nonce}n(\\d+)qz")

    def plain(self, text: MarkedText) -> str:
        """The text with what the marks stand for."""
        found = text.marks
        return text.marked if found is None else found.sub(lambda match: self._names[int(match[1])], text.marked)

    def encode(self, text: MarkedText) -> list[int]:
        """Token ids of a rendered text: the template's control tokens as such, and spelled ones as plain text."""
        first, *others = self._pieces(text)
        ids = [*self.of(first), *(i for piece in others for i in self.within(piece))]
        written = (self.ids[name] for name in self.pattern.findall(text.marked))
        if all(i in written for i in ids if i in self._values):  # one after the other
            return ids
        # Tokenizers split at control tokens before all else, so what is between two of them can be encoded apart.
        ids, end = [], 0
        for match in self.pattern.finditer(text.marked):
            ids += self._harmless(self.plain(MarkedText(text.marked[end : match.start()], text.marks)))
            ids.append(self.ids[match[0]])
            end = match.end()
        return ids + self._harmless(self.plain(text.after(end)))

    def within(self, text: str) -> list[int]:
        """Token ids of a stretch within a conversation, without the space that some tokenizers put before a text."""
        for before in ("\n", "#", "0") if self._space_first else ():
            head, ids = self.of(before), self.of(before + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self.of(text)

    def of(self, text: str) -> list[int]:
        """Token ids of a text as the tokenizer gives them, spelled control tokens included."""
        if not text:
            return []
        return [int(i) for i in self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]

    def _pieces(self, text: MarkedText) -> list[str]:
        """The plain text, cut behind the first character of each spelled control token."""
        if text.marks is None:
            return [text.marked]
        pieces, end, start = [], 0, ""
        for match in text.marks.finditer(text.marked):
            name = self._names[int(match[1])]
            pieces.append(start + text.marked[end : match.start()] + name[:1])
            start, end = name[1:], match.end()
        return [*pieces, start + text.marked[end:]]

    def _harmless(self, text: str) -> list[int]:
        """Token ids of plain text, cut in halves until no control token is among them."""
        ids = self.within(text)
        if self._values.isdisjoint(ids):
            return ids
        if len(text) < 2:
            raise ValueError(f"the tokenizer makes a control token of the single character {text!r} of a message")
        middle = len(text) // 2
        return [*self._harmless(text[:middle]), *self._harmless(text[middle:])]


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of these strings, the longest first; nothing where there are none."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    """All strings in nested mappings and sequences, keys left aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _map_strings(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Any:
    """A copy in which ``change`` has been applied to each match of ``pattern`` in each string."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, pattern, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_map_strings(item, pattern, change) for item in value]
    return value
