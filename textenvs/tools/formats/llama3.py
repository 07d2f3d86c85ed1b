"""Llama 3: bare JSON with ``name`` and ``parameters``, as Llama 3.1 to 3.3 write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..jsontext import read_value, skip_space, write_value
from .base import CallFormat, Written, schema_lines, without_tags, written_call

TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")
# How a call begins: the tag that the models sometimes put before it, or an object whose first key is one of a call's.
_START = re.compile(rf'{re.escape(TAG)}|\{{\s*"(?:name|type|{"|".join(_ARGUMENTS)})"\s*:')


class Llama3(CallFormat):
    """``{"name": ..., "parameters": {...}}``; several calls have ``;`` between them.

    JSON objects that have no ``name`` and ``parameters`` are words. Nothing after broken JSON is read: it has no end.
    """

    name = "llama3"
    how = 'Write {"name": ..., "parameters": {...}}.'

    def instructions(self) -> str:
        """The schemas, one a line, and the form of a call."""
        return (
            f"You can call these functions:\n{schema_lines(self.tools)}\n"
            'To call one, reply with JSON and nothing else: {"name": <function>, "parameters": {"<argument>": <value>}}'
        )

    def find(self, text: str, place: int) -> int:
        """The next tag, or object that may be a call."""
        return start.start() if (start := _START.search(text, place)) else -1

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """A JSON object, if it is a call."""
        tagged = text.startswith(TAG, start)
        value, end = read_value(text, start + len(TAG) * tagged)
        if not tagged and not (isinstance(value, dict) and "name" in value and any(key in value for key in _ARGUMENTS)):
            return [], end
        end = skip_space(text, end)
        return [written_call(value, _ARGUMENTS)], end + text.startswith(";", end)

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        """The words, and the calls on the line after them."""
        made = "; ".join(
            without_tags(f'{{"name": {write_value(name)}, "parameters": {arguments}}}') for name, arguments in calls
        )
        return "\n".join(part for part in (text, made) if part.strip())
