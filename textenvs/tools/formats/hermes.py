"""Hermes: JSON between ``<tool_call>`` tags, as Hermes 2 Pro, Qwen2.5 and Qwen3 write it."""

from __future__ import annotations

from collections.abc import Sequence

from ..jsontext import JsonProblem, read_value, skip_space, write_value
from .base import MAX_PROBLEMS, CallFormat, Written, after_broken, schema_lines, without_tags, written_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_HOW = f'Write {OPEN}, then {{"name": ..., "arguments": {{...}}}}, then {CLOSE}.'


class Hermes(CallFormat):
    """``<tool_call>`` and a JSON object with ``name`` and ``arguments``, once for each call, after any words."""

    name = "hermes"

    def instructions(self) -> str:
        """The tools between ``<tools>`` tags, and the form of a call."""
        return (
            f"You can call these tools:\n<tools>\n{schema_lines(self.tools)}\n</tools>\n"
            f"To call one, write its name and arguments as JSON between tags:\n{OPEN}\n"
            f'{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}\n{CLOSE}'
        )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Read every ``<tool_call>``; the closing tag may be left out at the end or before the next call."""
        words: list[str] = []
        calls: list[Written] = []
        problems: list[str] = []
        place = 0
        while len(problems) < MAX_PROBLEMS and (start := text.find(OPEN, place)) >= 0:
            words.append(text[place:start])
            inside = start + len(OPEN)
            try:
                value, end = read_value(text, inside)
                end = skip_space(text, end)
                if text.startswith(CLOSE, end):
                    place = end + len(CLOSE)
                elif end == len(text) or text.startswith(OPEN, end):
                    place = end
                else:
                    raise JsonProblem(f"between the JSON and {CLOSE} stands {text[end : end + 20]!r}")
                calls.append(written_call(value, ("arguments",)))
            except JsonProblem as problem:
                problems.append(f"A tool call cannot be read: {problem}. {_HOW}")
                place = max(place, after_broken(text, inside, OPEN, CLOSE))
        words.append(text[place:])
        said = "".join(words).strip()
        if CLOSE in said and len(problems) < MAX_PROBLEMS:
            problems.append(f"{CLOSE} has no {OPEN} before it. {_HOW}")
        return said, calls, problems

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        """The words, then each call on lines of its own."""
        blocks = [
            f'{OPEN}\n{{"name": {_quoted(name)}, "arguments": {_tagless(args)}}}\n{CLOSE}' for name, args in calls
        ]
        return "\n".join(([text] if text.strip() else []) + blocks)


def _tagless(json_text: str) -> str:
    return without_tags(json_text, OPEN, CLOSE)


def _quoted(name: str) -> str:
    return _tagless(write_value(name))
