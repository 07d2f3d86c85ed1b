"""Hermes: JSON between ``<tool_call>`` tags, as Hermes 2 Pro, Qwen2.5 and Qwen3 write it."""

from __future__ import annotations

from collections.abc import Sequence

from ..jsontext import JsonProblem, read_value, skip_space, write_value
from .base import MAX_PROBLEMS, CallFormat, Written, after_broken, schema_lines, without_tags, written_call

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(CallFormat):
    """``<tool_call>`` and a JSON object with ``name`` and ``arguments``, once for each call, after any words."""

    name = "hermes"
    called = "A tool call"
    how = f'Write {OPEN}, then {{"name": ..., "arguments": {{...}}}}, then {CLOSE}.'

    def instructions(self) -> str:
        """The tools between ``<tools>`` tags, and the form of a call."""
        return (
            f"You can call these tools:\n<tools>\n{schema_lines(self.tools)}\n</tools>\n"
            f"To call one, write its name and arguments as JSON between tags:\n{OPEN}\n"
            f'{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}\n{CLOSE}'
        )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """As in all formats; a closing tag alone is a problem."""
        said, calls, problems = super().read(text)
        if CLOSE in said and len(problems) < MAX_PROBLEMS:
            problems.append(f"{CLOSE} has no {OPEN} before it. {self.how}")
        return said, calls, problems

    def find(self, text: str, place: int) -> int:
        """The next opening tag."""
        return text.find(OPEN, place)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """One call; the closing tag may be left out at the end or before the next call."""
        value, end = read_value(text, start + len(OPEN))
        end = skip_space(text, end)
        closed = text.startswith(CLOSE, end)
        if not closed and end != len(text) and not text.startswith(OPEN, end):
            raise JsonProblem(f"between the JSON and {CLOSE} stands {text[end : end + 20]!r}")
        return [written_call(value, ("arguments",))], end + len(CLOSE) * closed

    def after_problem(self, text: str, start: int) -> int:
        """Behind its closing tag, or at the next call."""
        return after_broken(text, start + len(OPEN), OPEN, CLOSE)

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
