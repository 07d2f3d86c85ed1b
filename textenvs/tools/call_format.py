"""Base of the formats of tool calls (:mod:`textenvs.tools.formats` has them)."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ..messages import Message, ToolCall, assistant, clean_messages, text_of, tool
from ..reasoning import REASONING_MARKS, Spans, split_reasoning
from .jsontext import JsonProblem, read_object, write_value
from .schema import Tool
from .toolbox import ToolResult

#: The most problems of one reply that are reported; the rest of the reply is not read.
MAX_PROBLEMS = 4

# Chat templates look for these in replies, also within the JSON of a call.
_REASONING = tuple(mark for marks in REASONING_MARKS for mark in marks[:2] if mark.startswith("<"))


@dataclass(frozen=True)
class Parsed:
    """A reply, taken apart."""

    text: str  # the words beside the calls, without private reasoning
    calls: tuple[ToolCall, ...] = ()
    problems: tuple[str, ...] = ()  # what to fix in each thing that looks like a call and cannot be read


class Written(NamedTuple):
    """A call as a format sees it: no id, and the arguments as a JSON object's text."""

    name: str
    arguments: str


class CallFormat(ABC):
    """A way to write tool calls; some need the tools' types to read arguments.

    ``parse(write(text, calls))`` gives ``text`` and ``calls`` back (arguments in canonical JSON, ids by position).
    """

    name: ClassVar[str]
    #: For the system prompt: the tools, whose schemas, one a line, replace ``@TOOLS@``, and the form of a call.
    prompt: ClassVar[str]
    #: The name of a call in a problem, and the instructions to write one, for the model.
    called: ClassVar[str] = "A function call"
    how: ClassVar[str] = ""

    def __init__(self, tools: Sequence[Tool[..., Any]] = ()) -> None:
        self.tools = tuple(tools)
        self.tool_names = frozenset(known_tool.name for known_tool in self.tools)

    def means_call(self, value: Any) -> bool:
        """Return whether a JSON value in a reply, with no tag before it, is meant as a call, to report its errors.

        It names one of the tools, or has a name and arguments.
        """
        if not isinstance(value, dict):
            return False
        body = value["function"] if isinstance(value.get("function"), dict) and "name" not in value else value
        named = [body[key] for key in NAMES if key in body]
        names_tool = any(isinstance(name, str) and name in self.tool_names for name in named)
        return names_tool or (bool(named) and any(key in body for key in ARGUMENTS[:2]))

    def instructions(self) -> str:
        """Text for the system prompt: the tools, and how to call them. Empty where the chat template says it."""
        schemas = (json.dumps(known_tool.schema, ensure_ascii=False) for known_tool in self.tools)
        return self.prompt.replace("@TOOLS@", "\n".join(schemas))

    def find(self, text: str, place: int) -> int:
        """Return the beginning of the next call, from ``place`` on; -1 where there is none."""
        return -1

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """Return the calls that begin at ``start``, and their end; no call if the text is none after all.

        ``JsonProblem``: the text at ``start`` cannot be read.
        """
        raise NotImplementedError

    def after_problem(self, text: str, start: int) -> int:
        """Return the place behind the unreadable call at ``start``; by default the end, as broken JSON has none."""
        return len(text)

    @abstractmethod
    def spell(self, text: str, calls: Sequence[Written]) -> str | Message:
        """Write a reply with ``text`` and ``calls``."""

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Return words, calls and problems of ``text``, which has no private reasoning in it."""
        words: list[str] = []
        calls: list[Written] = []
        problems: list[str] = []
        place = 0
        while len(problems) < MAX_PROBLEMS and (start := self.find(text, place)) >= 0:
            words.append(text[place:start])
            try:
                written, place = self.read_call(text, start)
            except JsonProblem as problem:
                problems.append(f"{self.called} cannot be read: {problem}. {self.how}")
                place = self.after_problem(text, start)
            else:
                calls += written
                if not written:
                    words.append(text[start:place])
        words.append(text[place:])
        return "".join(words).strip(), calls, problems

    def parse(self, reply: str | Message, first: int = 0) -> Parsed:
        """Parse a reply. It never raises, whatever a model wrote.

        A message with ``tool_calls`` is understood in every format. ``first`` is the number of the first call, for ids
        that differ within an episode.
        """
        message = assistant(reply) if isinstance(reply, str) else reply
        if message.get("tool_calls"):
            (clean,) = clean_messages([message])
            return Parsed(self._visible(clean), tuple(clean["tool_calls"]))
        text, calls, problems = self.read(self._visible(message))
        if len(problems) >= MAX_PROBLEMS:
            problems = [*problems[: MAX_PROBLEMS - 1], f"{problems[MAX_PROBLEMS - 1]} Nothing after this was read."]
        made = [make_call(written.name, written.arguments, self.call_id(first + i)) for i, written in enumerate(calls)]
        return Parsed(text, tuple(made), tuple(problems))

    def spans(self, text: str) -> Spans:
        """Return the places of the readable calls of ``text``, those within its reasoning included."""
        spans: list[tuple[int, int]] = []
        place = problems = 0
        while problems < MAX_PROBLEMS and (start := self.find(text, place)) >= 0:
            try:
                calls, end = self.read_call(text, start)
            except JsonProblem:
                problems += 1
                place = start + 1
            else:
                spans += [(start, end)] * bool(calls)
                place = end
        return spans

    def _visible(self, message: Message) -> str:
        """Return the text of a message without private reasoning; a mark within a call ends none."""
        text = text_of(message)
        return text.strip() if message.get("reasoning_content") == "" else split_reasoning(text, calls=self.spans).text

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> str | Message:
        """Write the reply of a model with ``text`` (perhaps with reasoning before) and ``calls``.

        ``ValueError``: the format cannot say this: reading it would give something else (words that look like a call,
        arguments that hold the format's own tags), or the arguments are not a JSON object.
        """
        functions = [tool_call["function"] for tool_call in calls]
        try:
            written = [
                Written(function["name"], write_value(read_object(function["arguments"]))) for function in functions
            ]
        except JsonProblem as problem:
            raise ValueError(f"{self.name}: the arguments of a call cannot be written: {problem}") from None
        reply = self.spell(text, written)
        read = self.parse(reply)
        same = [
            Written(tool_call["function"]["name"], tool_call["function"]["arguments"]) for tool_call in read.calls
        ] == written
        if not same or read.problems or read.text != self._visible(assistant(text)):
            raise ValueError(f"{self.name} cannot say this; it would be read as {read}")
        return reply

    def call_id(self, number: int) -> str:
        return f"call_{number}"

    def answers(self, results: Sequence[ToolResult]) -> list[Message]:
        """Return the messages with results for the model: by default one ``tool`` message each."""
        return [tool(result.content, result.call["id"], result.name or None) for result in results]


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Build a call to write: ``call("calculate", expression="3 + 4")``."""
    return make_call(name, write_value(arguments), "call_0")


def make_call(name: str, arguments: str, call_id: str) -> ToolCall:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


#: Keys of models for the name of a call's tool; and for its arguments.
NAMES = ("name", "function", "tool", "tool_name")
ARGUMENTS = ("arguments", "parameters", "params", "args", "kwargs", "input")
# Values of a call's type; and keys beside its name and arguments that are ignored.
_CALL_TYPES = ("function", "tool", "tool_call", "tool_use")
BESIDE = ("id", "type")


def written_call(value: Any) -> Written:
    """Return the call in a JSON value: ``{"name", "arguments"}``, or these within ``"function"`` as OpenAI writes it.

    Keys of :data:`NAMES` and :data:`ARGUMENTS` mean the same. ``JsonProblem``: something in it is not understood.
    """
    if not isinstance(value, dict):
        raise JsonProblem("a call is a JSON object")
    if value.get("type", "function") not in _CALL_TYPES:
        raise JsonProblem(f'"type" must be "function", not {short_json(value["type"])}')
    inside = isinstance(value.get("function"), dict) and "name" not in value
    body = value["function"] if inside else value
    if inside and (unknown := [key for key in value if key not in (*BESIDE, "function")]):
        raise JsonProblem(f'beside "function" stands {short_json(unknown[0])}, which is no part of a call')
    named = [key for key in NAMES if body.get(key) is not None]
    name = body[named[0]] if named else None
    if not isinstance(name, str) or not name:
        raise JsonProblem('the call has no "name"')
    if len(named) > 1:
        raise JsonProblem(f'the call has both "{named[0]}" and "{named[1]}"')
    argument_keys = [key for key in ARGUMENTS if body.get(key) is not None]
    if unknown := [key for key in body if key not in (*NAMES, *BESIDE, *ARGUMENTS)]:
        raise JsonProblem(
            f'the call has {short_json(unknown[0])}, which is no part of a call; the arguments stand within "arguments"'
        )
    if len(argument_keys) > 1:
        raise JsonProblem(f'the call has both "{argument_keys[0]}" and "{argument_keys[1]}"')
    if not argument_keys:
        return Written(name, "{}")
    arguments = body[argument_keys[0]]
    if isinstance(arguments, str):  # OpenAI's form, also without "function" around it
        try:
            arguments = read_object(arguments)
        except JsonProblem as problem:
            raise JsonProblem(f'"{argument_keys[0]}" must be a JSON object, {{...}}; as text, {problem}') from None
    if not isinstance(arguments, dict):
        raise JsonProblem(f'"{argument_keys[0]}" must be a JSON object, {{...}}')
    return Written(name, write_value(arguments))


def short_json(value: Any) -> str:
    """Return JSON of a part of a call, for a problem."""
    text = write_value(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def after_broken(text: str, start: int, opening: str, closing: str) -> int:
    """Return the place to continue after a call that cannot be read: its closing tag, the next call, or the end."""
    close, following = text.find(closing, start), text.find(opening, start)
    if close >= 0 and (following < 0 or close < following):
        return close + len(closing)
    return following if following >= 0 else len(text)


def without_tags(json_text: str, *tags: str) -> str:
    """Return JSON text of the same value without ``tags`` and reasoning tags, because ``<`` is escaped."""
    if any(tag in json_text for tag in (*_REASONING, *tags)):
        return json_text.replace("<", "\\u003c")
    return json_text


OPEN, CLOSE = "<tool_call>", "</tool_call>"
