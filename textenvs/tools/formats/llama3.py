"""Llama 3: bare JSON with ``name`` and ``parameters``, as Llama 3.1 to 3.3 write it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..jsontext import JsonProblem, read_value, skip_space, write_value
from .base import CallFormat, Written, schema_lines, without_tags, written_call

TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")
# How a call begins: the tag that the models sometimes put before it, or an object whose first key is one of a call's.
_START = re.compile(rf'{re.escape(TAG)}|\{{\s*"(?:name|type|{"|".join(_ARGUMENTS)})"\s*:')
_HOW = 'Write {"name": ..., "parameters": {...}}.'


class Llama3(CallFormat):
    """``{"name": ..., "parameters": {...}}``; several calls have ``;`` between them.

    JSON objects that have no ``name`` and ``parameters`` are words. Nothing after broken JSON is read: it has no end.
    """

    name = "llama3"

    def instructions(self) -> str:
        """The schemas, one a line, and the form of a call."""
        return (
            f"You can call these functions:\n{schema_lines(self.tools)}\n"
            'To call one, reply with JSON and nothing else: {"name": <function>, "parameters": {"<argument>": <value>}}'
        )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Read every JSON object that is a call."""
        words: list[str] = []
        calls: list[Written] = []
        place = 0
        while start := _START.search(text, place):
            words.append(text[place : start.start()])
            tagged = start[0] == TAG
            begin = skip_space(text, start.end()) if tagged else start.start()
            try:
                value, place = read_value(text, begin)
                if tagged or (isinstance(value, dict) and "name" in value and any(key in value for key in _ARGUMENTS)):
                    calls.append(written_call(value, _ARGUMENTS))
                    place = skip_space(text, place)
                    place += text.startswith(";", place)
                else:
                    words.append(text[begin:place])
            except JsonProblem as problem:
                return "".join(words).strip(), calls, [f"A function call cannot be read: {problem}. {_HOW}"]
        words.append(text[place:])
        return "".join(words).strip(), calls, []

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        """The words, and the calls on the line after them."""
        made = "; ".join(
            without_tags(f'{{"name": {write_value(name)}, "parameters": {arguments}}}') for name, arguments in calls
        )
        return "\n".join(part for part in (text, made) if part.strip())
