"""Formats of tool calls: describe the tools to a model, find calls in a reply, and write calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..messages import Message, assistant, made_id
from .call_format import (
    ARGUMENTS,
    BESIDE,
    CLOSE,
    MAX_PROBLEMS,
    NAMES,
    OPEN,
    CallFormat,
    Parsed,
    Written,
    after_broken,
    call,
    make_call,
    without_tags,
    written_call,
)
from .jsontext import JsonProblem, read_value, skip_space, write_value
from .qwen3_coder import Qwen3Coder
from .react import React
from .schema import Tool

__all__ = [
    "FORMATS",
    "CallFormat",
    "Hermes",
    "Llama3",
    "Mistral",
    "Native",
    "Parsed",
    "call",
    "make_call",
    "make_format",
]

PYTHON_TAG = "<|python_tag|>"
_FIRST_KEY = rf'\{{\s*"(?:{"|".join((*NAMES, *BESIDE, *ARGUMENTS))})"\s*:'
# The beginning of a call of Llama's: the tag that the models sometimes put before it, or an object whose first key is
# one of a call's.
_LLAMA = re.compile(f"{re.escape(PYTHON_TAG)}|{_FIRST_KEY}")

CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
# A name, perhaps with an id (tokenizer version 11), and the tag of the arguments (left out by some of version 11).
_NAMED = re.compile(r"\s*([^\s\[\]{}]+)(?:\s*\[CALL_ID\][^\s\[\]{}]*)?(?:\s*\[ARGS\])?\s*(?=\{)")
# A list of calls from the very beginning: the tag is a special token, and some decoders leave those out.
_BARE_LIST = re.compile(rf"\[\s*{_FIRST_KEY}")


class Hermes(CallFormat):
    """``<tool_call>`` and a JSON object with ``name`` and ``arguments``: Hermes 2 Pro, Qwen2.5 and Qwen3.

    OpenAI's form and other names of the arguments are read as well (:func:`written_call`).
    """

    name = "hermes"
    called = "A tool call"
    how = f'Write {OPEN}, then {{"name": ..., "arguments": {{...}}}}, then {CLOSE}.'
    prompt = (
        "You can call these tools:\n<tools>\n@TOOLS@\n</tools>\n"
        f"To call one, write its name and arguments as JSON between tags:\n{OPEN}\n"
        f'{{"name": "<tool>", "arguments": {{"<argument>": <value>}}}}\n{CLOSE}'
    )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        words, calls, problems = super().read(text)
        if CLOSE in words and len(problems) < MAX_PROBLEMS:
            problems.append(f"{CLOSE} has no {OPEN} before it. {self.how}")
        return words, calls, problems

    def find(self, text: str, place: int) -> int:
        return text.find(OPEN, place)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """Read the call at ``start``; the closing tag may be missing at the end or before the next call."""
        value, end = read_value(text, start + len(OPEN))
        end = skip_space(text, end)
        closed = text.startswith(CLOSE, end)
        if not closed and end != len(text) and not text.startswith(OPEN, end):
            raise JsonProblem(f"between the JSON and {CLOSE} stands {text[end : end + 20]!r}")
        return [written_call(value)], end + len(CLOSE) * closed

    def after_problem(self, text: str, start: int) -> int:
        return after_broken(text, start + len(OPEN), OPEN, CLOSE)

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        blocks = [text] if text.strip() else []
        for name, arguments in calls:
            made = without_tags(f'{{"name": {write_value(name)}, "arguments": {arguments}}}', OPEN, CLOSE)
            blocks.append(f"{OPEN}\n{made}\n{CLOSE}")
        return "\n".join(blocks)


class Llama3(CallFormat):
    """``{"name": ..., "parameters": {...}}``, several with ``;`` between them: Llama 3.1 to 3.3.

    Other names of the parameters, and OpenAI's form, are read as well. JSON objects that have no ``name`` and
    ``parameters`` and name no tool are words. Nothing after broken JSON is read: it has no end.
    """

    name = "llama3"
    how = 'Write {"name": ..., "parameters": {...}}.'
    prompt = (
        "You can call these functions:\n@TOOLS@\n"
        'To call one, reply with JSON and nothing else: {"name": <function>, "parameters": {"<argument>": <value>}}'
    )

    def find(self, text: str, place: int) -> int:
        return start.start() if (start := _LLAMA.search(text, place)) else -1

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        tagged = text.startswith(PYTHON_TAG, start)
        value, end = read_value(text, start + len(PYTHON_TAG) * tagged)
        if not tagged and not self.means_call(value):
            return [], end
        end = skip_space(text, end)
        return [written_call(value)], end + text.startswith(";", end)

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        made = [f'{{"name": {write_value(name)}, "parameters": {arguments}}}' for name, arguments in calls]
        return "\n".join(part for part in (text, "; ".join(map(without_tags, made))) if part.strip())


class Mistral(CallFormat):
    """``[TOOL_CALLS]name[ARGS]{...}`` for each call, after any words: Mistral's tokenizers of version 13.

    Older forms are read as well: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`` (versions 2 to 7),
    ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`` (version 11). Replies must be decoded with their special tokens. Nothing
    after broken JSON is read: it has no end.
    """

    name = "mistral"
    how = f"Write {CALLS}, the function's name, {ARGS}, and its arguments as JSON."
    prompt = (
        "You can call these functions:\n[AVAILABLE_TOOLS]\n@TOOLS@\n[/AVAILABLE_TOOLS]\n"
        f'To call one, write {CALLS}<function>{ARGS}{{"<argument>": <value>}}'
    )

    def call_id(self, number: int) -> str:
        """Return nine letters and digits: the models' templates refuse any other id."""
        return made_id(number)

    def find(self, text: str, place: int) -> int:
        return 0 if place == 0 and _BARE_LIST.match(text) else text.find(CALLS, place)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        tagged = text.startswith(CALLS, start)
        place = skip_space(text, start + len(CALLS) * tagged)
        if text.startswith(("[", "{"), place) and not text.startswith(ARGS, place):
            value, end = read_value(text, place)
            calls = value if isinstance(value, list) else [value]
            if not tagged and not any(map(self.means_call, calls)):
                return [], end
            return [written_call(call) for call in calls], end
        named = _NAMED.match(text, place)
        if named is None:
            raise JsonProblem(f"after {CALLS} stands no name with JSON after it")
        value, end = read_value(text, named.end())
        following = skip_space(text, end)
        if text.startswith((",", "{", "["), following) and not text.startswith(CALLS, following):
            raise JsonProblem(f"the JSON is followed by {text[following : following + 20]!r}")
        return [Written(named[1], write_value(value))], end

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        return text + "".join(f"{CALLS}{name}{ARGS}{without_tags(arguments)}" for name, arguments in calls)


class Native(CallFormat):
    """No calls in text. The caller gives the model ``env.tool_schemas`` and the environment whole messages."""

    name = "native"
    prompt = ""

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        return text, [], []

    def spell(self, text: str, calls: Sequence[Written]) -> str | Message:
        made = [make_call(written.name, written.arguments, self.call_id(i)) for i, written in enumerate(calls)]
        return assistant(text, made) if made else text


#: The formats by name.
FORMATS: Mapping[str, type[CallFormat]] = MappingProxyType(
    {call_format.name: call_format for call_format in (Hermes, Llama3, Qwen3Coder, Mistral, React, Native)}
)


def make_format(name: str, tools: Sequence[Tool[..., Any]] = ()) -> CallFormat:
    if name not in FORMATS:
        raise ValueError(f"call_format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name](tools)
