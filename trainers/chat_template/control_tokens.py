"""Control tokens that messages spell, apart from those that a chat template writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from textenvs.text import excerpt

from .show import RendererError


class MarkedText(NamedTuple):
    """Rendered text with marks for the control tokens that messages spell, and the pattern of the marks, if any."""

    marked: str
    marks: re.Pattern[str] | None = None

    def after(self, end: int) -> MarkedText:
        return MarkedText(self.marked[end:], self.marks)


class ControlTokens:
    """The control tokens of one tokenizer: special ones, those it declares (``chat_control_tokens``), and ``extra``.

    :meth:`mark` replaces each one that a message spells by a mark of plain letters, to distinguish it from the
    template's own; :meth:`encode` cuts the text inside each spelled one and encodes the pieces separately. If a
    tokenizer still produces control tokens that the template did not write, the text between the template's own is cut
    further.
    """

    def __init__(self, tokenizer: Any, extra: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
        declared = {*(getattr(tokenizer, "chat_control_tokens", None) or ()), *extra}
        names = [token.content for token in added if token.special or token.content in declared]
        names += map(str, tokenizer.all_special_tokens)
        self.ids = {name: int(tokenizer.convert_tokens_to_ids(name)) for name in dict.fromkeys(names) if name}
        self.pattern = any_of(self.ids)
        self._names = tuple(self.ids)
        self._values = frozenset(self.ids.values()) - {tokenizer.unk_token_id}  # the unknown token is not spelled
        self._space_first = self.of("a") != self.of("\na")[len(self.of("\n")) :]  # SentencePiece's dummy prefix

    def mark(self, values: Sequence[tuple[Any, re.Pattern[str]]]) -> tuple[list[Any], re.Pattern[str] | None]:
        """Replace each control token that ``values`` spell by a mark: letters and digits that occur nowhere else.

        Values are nested mappings and sequences of strings, each with the pattern of control tokens in it. Return the
        values with marks, and the pattern of a mark (``None`` if nothing was marked).
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
        marks = text.marks
        return text.marked if marks is None else marks.sub(lambda match: self._names[int(match[1])], text.marked)

    def encode(self, text: MarkedText) -> list[int]:
        """Return token ids of a rendered text: the template's control tokens as such, spelled ones as plain text."""
        return [i for _, ids in self._parts(text) for i in ids]

    def inside(self, text: MarkedText, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for each token of :meth:`encode` whether all its characters are in one of ``spans``.

        ``spans`` are (begin, end) of characters of ``text.marked`` that cut no mark. A token whose characters are in
        part elsewhere is not inside. RendererError: the tokenizer does not report the characters of its tokens.
        """
        sizes = [tuple(len(self.plain(MarkedText(text.marked[:at], text.marks))) for at in span) for span in spans]
        result: list[bool] = []
        place = 0
        for part, ids in self._parts(text):
            end = place + len(part)
            if any(first < end and place < last for first, last in sizes):
                for begin, stop in self._ranges(part, ids):
                    own = begin + place, stop + place
                    result.append(own[0] < own[1] and any(a <= own[0] and own[1] <= b for a, b in sizes))
            else:
                result += [False] * len(ids)
            place = end
        return result

    def within(self, text: str) -> list[int]:
        """Return token ids of a stretch within a conversation, without the space that some tokenizers prepend."""
        for before in ("\n", "#", "0") if self._space_first else ():
            head, ids = self.of(before), self.of(before + text)
            if ids[: len(head)] == head:
                return ids[len(head) :]
        return self.of(text)

    def of(self, text: str) -> list[int]:
        """Return token ids of a text by the tokenizer, spelled control tokens included."""
        if not text:
            return []
        return [int(i) for i in self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]]

    def _parts(self, text: MarkedText) -> list[tuple[str, list[int]]]:
        """Return the pieces that a rendered text is encoded in, which add up to its plain text, and their tokens."""
        first, *rest = self._pieces(text)
        parts = [(first, self.of(first)), *((piece, self.within(piece)) for piece in rest)]
        written = (self.ids[name] for name in self.pattern.findall(text.marked))
        if all(i in written for _, ids in parts for i in ids if i in self._values):  # in order
            return parts
        # Tokenizers split at control tokens first, so the text between two of them can be encoded separately.
        parts, end = [], 0
        for match in self.pattern.finditer(text.marked):
            parts += self._harmless(self.plain(MarkedText(text.marked[end : match.start()], text.marks)))
            parts.append((match[0], [self.ids[match[0]]]))
            end = match.end()
        return parts + self._harmless(self.plain(text.after(end)))

    def _pieces(self, text: MarkedText) -> list[str]:
        """Return the plain text, cut after the first character of each spelled control token."""
        if text.marks is None:
            return [text.marked]
        pieces, end, start = [], 0, ""
        for match in text.marks.finditer(text.marked):
            name = self._names[int(match[1])]
            pieces.append(start + text.marked[end : match.start()] + name[:1])
            start, end = name[1:], match.end()
        return [*pieces, start + text.marked[end:]]

    def _harmless(self, text: str) -> list[tuple[str, list[int]]]:
        """Return pieces of plain text and their tokens: cut in halves until no control token is among them."""
        ids = self.within(text)
        if self._values.isdisjoint(ids):
            return [(text, ids)]
        if len(text) < 2:
            raise RendererError(
                f"the tokenizer makes a control token of the single character {text!r}, which a message may have: use "
                "a tokenizer whose special tokens are longer"
            )
        middle = len(text) // 2
        return [*self._harmless(text[:middle]), *self._harmless(text[middle:])]

    def _ranges(self, text: str, ids: list[int]) -> list[tuple[int, int]]:
        """Return (begin, end) of each token's characters in a text that was encoded as ``ids``.

        A token also has the characters since the one before it: some tokenizers report a token without its space.
        """
        if len(ids) == 1:
            return [(0, len(text))]
        for before in ("", *(("\n", "#", "0") if self._space_first else ())):
            encoded = self._with_offsets(before + text)
            if encoded["input_ids"] == [*self.of(before), *ids]:
                ranges, last = [], 0
                for begin, end in encoded["offset_mapping"][len(encoded["input_ids"]) - len(ids) :]:
                    begin, end = max(begin - len(before), 0), max(end - len(before), 0)
                    ranges.append((min(begin, last), end))
                    last = max(last, end)
                return ranges
        raise RendererError(f"the tokenizer does not say which characters its tokens are of: {excerpt(text, 80)!r}")

    def _with_offsets(self, text: str) -> Any:
        try:
            return self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError:
            raise RendererError(
                f"{type(self._tokenizer).__name__} does not say which characters its tokens are of, so that the "
                "tokens of a message cannot be told from the chat template's: use a fast tokenizer (tokenizer.json)"
            ) from None


def any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of these strings, the longest first; without any it matches nothing."""
    return re.compile("|".join(re.escape(name) for name in sorted(names, key=len, reverse=True)) or r"(?!)")


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in nested mappings and sequences, except for keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(item)


def _map_strings(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Any:
    """Return a copy with ``change`` applied to each match of ``pattern`` in each string."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, pattern, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_map_strings(item, pattern, change) for item in value]
    return value
