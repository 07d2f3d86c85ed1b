"""Mistral: ``[TOOL_CALLS]`` before each call, as Mistral's instruct models write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..jsontext import JsonProblem, read_value, skip_space
from .base import CallFormat, Written, schema_lines, without_tags, written_call

TAG, ARGS = "[TOOL_CALLS]", "[ARGS]"
# A name, perhaps with an id (tokenizer version 11), and the tag of the arguments (left out by some of version 11).
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)\s*(?:\[CALL_ID\][^\s\[\]{}]*)?\s*(?:\[ARGS\])?(?=\s*\{)")
# A list of calls from the very beginning: the tag is a special token, and some decoders leave those out.
_BARE_LIST = re.compile(r'\[\s*\{\s*"name"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:')


class Mistral(CallFormat):
    """``[TOOL_CALLS]name[ARGS]{...}`` for each call, after any words (tokenizers of version 13).

    Older forms are read as well: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`` (versions 2 to 7),
    ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`` (version 11). Replies must be decoded with their special tokens. Nothing
    after broken JSON is read: it has no end.
    """

    name = "mistral"
    how = f"Write {TAG}, the function's name, {ARGS}, and its arguments as JSON."

    def instructions(self) -> str:
        """The schemas, and the form of a call."""
        return (
            f"You can call these functions:\n[AVAILABLE_TOOLS]\n{schema_lines(self.tools)}\n[/AVAILABLE_TOOLS]\n"
            f'To call one, write {TAG}<function>{ARGS}{{"<argument>": <value>}}'
        )

    def call_id(self, number: int) -> str:
        """Nine letters and digits: the models' templates refuse any other id."""
        return f"call{number:05d}"

    def find(self, text: str, place: int) -> int:
        """The next ``[TOOL_CALLS]``, or a list of calls at the very beginning."""
        return 0 if place == 0 and _BARE_LIST.match(text) else text.find(TAG, place)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """A list of calls, or a name and its arguments."""
        place = skip_space(text, start + len(TAG) * text.startswith(TAG, start))
        if text.startswith("[", place) and not text.startswith(ARGS, place):
            value, end = read_value(text, place)
            return [written_call(each, ("arguments",)) for each in value], end
        named = _NAMED.match(text, place)
        if named is None:
            raise JsonProblem(f"after {TAG} stands no name with JSON after it")
        value, end = read_value(text, named.end())
        return [written_call({"name": named[1], "arguments": value}, ("arguments",))], end

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        """The words, and the calls right after them."""
        return text + "".join(f"{TAG}{name}{ARGS}{without_tags(arguments)}" for name, arguments in calls)
