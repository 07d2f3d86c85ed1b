"""How a model writes tool calls down: formats that describe the tools, find calls in a reply, and write them."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from ..messages import Message, ToolCall, assistant, clean_messages, made_id, text_of, tool, user
from ..reasoning import REASONING_MARKS, Spans, split_reasoning
from .jsontext import JsonProblem, read_object, read_value, skip_space, write_value
from .schema import Tool
from .toolbox import ToolResult

#: So many problems of one reply are reported; what comes after them is not read.
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
    #: What a problem calls a call, and how to write one, for the model.
    called: ClassVar[str] = "A function call"
    how: ClassVar[str] = ""

    def __init__(self, tools: Sequence[Tool[..., Any]] = ()) -> None:
        self.tools = tuple(tools)
        self.tool_names = frozenset(each.name for each in self.tools)

    def means_call(self, value: Any) -> bool:
        """Whether a JSON value in a reply, with no tag before it, is meant as a call, so that what is wrong is told.

        It names one of the tools, or has a name and arguments.
        """
        if not isinstance(value, dict):
            return False
        body = value["function"] if isinstance(value.get("function"), dict) and "name" not in value else value
        name = body.get("name")
        known = isinstance(name, str) and name in self.tool_names
        return known or ("name" in body and any(key in body for key in ARGUMENTS[:2]))

    def instructions(self) -> str:
        """Text for the system prompt: the tools, and how to call them. Empty where the chat template says it."""
        schemas = (json.dumps(each.schema, ensure_ascii=False) for each in self.tools)
        return self.prompt.replace("@TOOLS@", "\n".join(schemas))

    def find(self, text: str, place: int) -> int:
        """Where the next call begins, from ``place`` on; -1 where there is none."""
        return -1

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """The calls that begin at ``start``, and where they end; no call where it is words after all.

        ``JsonProblem``: what stands there cannot be read.
        """
        raise NotImplementedError

    def after_problem(self, text: str, start: int) -> int:
        """Where to read on after the unreadable call at ``start``; by default nowhere, as broken JSON has no end."""
        return len(text)

    @abstractmethod
    def spell(self, text: str, calls: Sequence[Written]) -> str | Message:
        """The reply that says ``text`` and makes ``calls``."""

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Words, calls and problems of ``text``, which has no private reasoning in it."""
        words: list[str] = []
        calls: list[Written] = []
        problems: list[str] = []
        place = 0
        while len(problems) < MAX_PROBLEMS and (start := self.find(text, place)) >= 0:
            words.append(text[place:start])
            try:
                found, place = self.read_call(text, start)
            except JsonProblem as problem:
                problems.append(f"{self.called} cannot be read: {problem}. {self.how}")
                place = self.after_problem(text, start)
            else:
                calls += found
                if not found:
                    words.append(text[start:place])
        words.append(text[place:])
        return "".join(words).strip(), calls, problems

    def parse(self, reply: str | Message, first: int = 0) -> Parsed:
        """Take a reply apart. It never raises, whatever a model wrote.

        A message with ``tool_calls`` is understood in every format. ``first`` is the number of the first call, for ids
        that differ within an episode.
        """
        message = assistant(reply) if isinstance(reply, str) else reply
        if message.get("tool_calls"):
            (clean,) = clean_messages([message])
            return Parsed(self._said(clean), tuple(clean["tool_calls"]))
        text, calls, problems = self.read(self._said(message))
        if len(problems) >= MAX_PROBLEMS:
            problems = [*problems[: MAX_PROBLEMS - 1], f"{problems[MAX_PROBLEMS - 1]} Nothing after this was read."]
        made = [make_call(each.name, each.arguments, self.call_id(first + i)) for i, each in enumerate(calls)]
        return Parsed(text, tuple(made), tuple(problems))

    def spans(self, text: str) -> Spans:
        """Where the readable calls of ``text`` stand, those within its reasoning included."""
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

    def _said(self, message: Message) -> str:
        """The text of a message without private reasoning; a mark within a call ends none."""
        text = text_of(message)
        return text.strip() if message.get("reasoning_content") == "" else split_reasoning(text, calls=self.spans).said

    def write(self, text: str, calls: Sequence[ToolCall] = ()) -> str | Message:
        """The reply of a model that says ``text`` (perhaps with reasoning before) and makes ``calls``.

        ``ValueError``: the format cannot say this: reading it would give something else (words that look like a call,
        arguments that hold the format's own tags), or the arguments are not a JSON object.
        """
        functions = [each["function"] for each in calls]
        try:
            written = [Written(each["name"], write_value(read_object(each["arguments"]))) for each in functions]
        except JsonProblem as problem:
            raise ValueError(f"{self.name}: the arguments of a call cannot be written: {problem}") from None
        reply = self.spell(text, written)
        read = self.parse(reply)
        same = [Written(each["function"]["name"], each["function"]["arguments"]) for each in read.calls] == written
        if not same or read.problems or read.text != self._said(assistant(text)):
            raise ValueError(f"{self.name} cannot say this; it would be read as {read}")
        return reply

    def call_id(self, number: int) -> str:
        return f"call_{number}"

    def answers(self, results: Sequence[ToolResult]) -> list[Message]:
        """The messages that bring results to the model: by default one ``tool`` message each."""
        return [tool(each.content, each.call["id"], each.name or None) for each in results]


def call(name: str, /, **arguments: Any) -> ToolCall:
    """A call to write down: ``call("calculate", expression="3 + 4")``."""
    return make_call(name, write_value(arguments), "call_0")


def make_call(name: str, arguments: str, call_id: str) -> ToolCall:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


#: What a call's arguments are called, by one model or another.
ARGUMENTS = ("arguments", "parameters", "params", "args", "kwargs", "input")
# Of a call's type; and what else may stand beside its name and arguments, without a meaning of its own.
_CALL_TYPES = ("function", "tool", "tool_call", "tool_use")
_BESIDE = ("id", "type")


def written_call(value: Any) -> Written:
    """The call that a JSON value is: ``{"name", "arguments"}``, or these within ``"function"`` as OpenAI writes it.

    The arguments may have any name of :data:`ARGUMENTS`. ``JsonProblem``: something in it is not understood.
    """
    if not isinstance(value, dict):
        raise JsonProblem("a call is a JSON object")
    if value.get("type", "function") not in _CALL_TYPES:
        raise JsonProblem(f'"type" must be "function", not {shown(value["type"])}')
    inside = isinstance(value.get("function"), dict) and "name" not in value
    body = value["function"] if inside else value
    if inside and (more := [key for key in value if key not in (*_BESIDE, "function")]):
        raise JsonProblem(f'beside "function" stands {shown(more[0])}, which is no part of a call')
    name = body.get("name")
    if not isinstance(name, str) or not name:
        raise JsonProblem('the call has no "name"')
    given = [key for key in ARGUMENTS if body.get(key) is not None]
    if more := [key for key in body if key not in ("name", *_BESIDE, *ARGUMENTS)]:
        raise JsonProblem(
            f'the call has {shown(more[0])}, which is no part of a call; the arguments stand within "arguments"'
        )
    if len(given) > 1:
        raise JsonProblem(f'the call has both "{given[0]}" and "{given[1]}"')
    if not given:
        return Written(name, "{}")
    arguments = body[given[0]]
    if inside and isinstance(arguments, str):
        arguments = read_object(arguments)
    if not isinstance(arguments, dict):
        raise JsonProblem(f'"{given[0]}" must be a JSON object, {{...}}')
    return Written(name, write_value(arguments))


def shown(value: Any) -> str:
    """JSON of a part of a call, for a problem."""
    text = write_value(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def after_broken(text: str, start: int, opening: str, closing: str) -> int:
    """Where to go on after a call that cannot be read: behind its closing tag, at the next call, or at the end."""
    close, following = text.find(closing, start), text.find(opening, start)
    if close >= 0 and (following < 0 or close < following):
        return close + len(closing)
    return following if following >= 0 else len(text)


def without_tags(json_text: str, *tags: str) -> str:
    """JSON text of the same value in which neither ``tags`` nor reasoning tags stand, because ``<`` is escaped."""
    if any(tag in json_text for tag in (*_REASONING, *tags)):
        return json_text.replace("<", "\\u003c")
    return json_text


OPEN, CLOSE = "<tool_call>", "</tool_call>"

PYTHON_TAG = "<|python_tag|>"
_FIRST_KEY = rf'\{{\s*"(?:name|function|{"|".join((*_BESIDE, *ARGUMENTS))})"\s*:'
# How a call of Llama's begins: the tag that the models sometimes put before it, or an object whose first key is one of
# a call's.
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
        said, calls, problems = super().read(text)
        if CLOSE in said and len(problems) < MAX_PROBLEMS:
            problems.append(f"{CLOSE} has no {OPEN} before it. {self.how}")
        return said, calls, problems

    def find(self, text: str, place: int) -> int:
        return text.find(OPEN, place)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        """The closing tag may be left out at the end or before the next call."""
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
        """Nine letters and digits: the models' templates refuse any other id."""
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
            return [written_call(each) for each in calls], end
        named = _NAMED.match(text, place)
        if named is None:
            raise JsonProblem(f"after {CALLS} stands no name with JSON after it")
        value, end = read_value(text, named.end())
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
        made = [make_call(each.name, each.arguments, self.call_id(i)) for i, each in enumerate(calls)]
        return assistant(text, made) if made else text


FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_PARAMETER_TAG = re.compile(r"(\n[ \t]*)?<parameter=([^\s<>]+)>")
_NEXT_CALL = re.compile(r"</tool_call>\s*(?:<tool_call>\s*)?<function=")
# Python's spellings, which these models use as well as JSON's.
_PYTHON = {"True": True, "False": False, "None": None}


class Qwen3Coder(CallFormat):
    """``<tool_call><function=NAME>``, then ``<parameter=ARGUMENT>value</parameter>`` for each argument: Qwen3.5, too.

    What a value is depends on the tool: for an argument that is text it is taken as it stands, for any other it is
    read as JSON if it can be. A text cannot be said with ``</parameter>`` or the line of another argument in it. The
    outer tags may be left out, and so may ``</parameter>``, and ``</function>`` before ``</tool_call>``.
    """

    name = "qwen3-coder"
    form = f"{OPEN}\n{FUNCTION}NAME>\n{PARAMETER}ARGUMENT>\nvalue\n{END_PARAMETER}\n{END_FUNCTION}\n{CLOSE}"
    how = f"Write {form}, with one {PARAMETER}...> for each argument."
    prompt = (
        "You can call these functions:\n<tools>\n@TOOLS@\n</tools>\n"
        f"To call one, write each argument between tags of its own:\n{form}"
    )

    def find(self, text: str, place: int) -> int:
        return min((at for tag in (OPEN, FUNCTION) if (at := text.find(tag, place)) >= 0), default=-1)

    def read_call(self, text: str, start: int) -> tuple[list[Written], int]:
        inside = start + len(OPEN) * text.startswith(OPEN, start)
        call, place = self._function(text, skip_space(text, inside))
        end = skip_space(text, place)
        return [call], end + len(CLOSE) if text.startswith(CLOSE, end) else place

    def after_problem(self, text: str, start: int) -> int:
        return after_broken(text, start + len(OPEN), OPEN, CLOSE)

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        blocks = [f"{text}\n"] if text.strip() else []
        for name, arguments in calls:
            lines = [OPEN, f"{FUNCTION}{name}>"]
            for key, value in read_value(arguments)[0].items():
                written = value if isinstance(value, str) else without_tags(write_value(value), END_PARAMETER)
                lines += [f"{PARAMETER}{key}>", written, END_PARAMETER]
            blocks.append("\n".join([*lines, END_FUNCTION, CLOSE]))
        return "\n".join(blocks)

    def _function(self, text: str, place: int) -> tuple[Written, int]:
        name, place = _opening(text, place, FUNCTION)
        arguments: dict[str, Any] = {}
        while not text.startswith((END_FUNCTION, CLOSE), place := skip_space(text, place)):
            argument, place = _opening(text, place, PARAMETER, END_FUNCTION)
            if argument in arguments:
                raise JsonProblem(f"{PARAMETER}{argument}> is there twice")
            end, following = self._end_of_value(text, place, name, argument)
            arguments[argument] = self._value(name, argument, text[place:end])
            place = following
        return Written(name, write_value(arguments)), place + len(END_FUNCTION) * text.startswith(END_FUNCTION, place)

    def _end_of_value(self, text: str, place: int, name: str, argument: str) -> tuple[int, int]:
        """Where a value ends, and where what follows it begins; the models leave ``</parameter>`` out now and then."""
        close, function = text.find(END_PARAMETER, place), text.find(END_FUNCTION, place)
        # A value may have the text of </function> in it, but not that and another call.
        if close >= 0 and 0 <= function < close and text.find(FUNCTION, function, close) >= 0:
            close = -1
        last = close if close >= 0 else function
        if last < 0 or _NEXT_CALL.search(text, place, last):
            raise JsonProblem(f"{PARAMETER}{argument}> has no {END_PARAMETER}")
        others = self._properties(name).keys() - {argument}
        for following in _PARAMETER_TAG.finditer(text, place, last):
            if following[1] is not None or following[2] in others:
                return following.start(), following.start(2) - len(PARAMETER)
        return last, last + len(END_PARAMETER) if close >= 0 else last

    def _properties(self, name: str) -> Mapping[str, Any]:
        return next((each.parameters.get("properties", {}) for each in self.tools if each.name == name), {})

    def _value(self, name: str, argument: str, text: str) -> Any:
        text = text.removeprefix("\n").removesuffix("\n")
        kinds = self._kinds(name, argument)
        if kinds == {"string"}:
            return text
        try:
            value = _PYTHON[text.strip()] if text.strip() in _PYTHON else _whole_value(text)
        except JsonProblem:
            return text
        # Where text is allowed too, it is text unless it is one of the other kinds that are.
        return value if "string" not in kinds or _kind(value) in kinds - {"string"} else text

    def _kinds(self, name: str, argument: str) -> set[str]:
        """The JSON types that an argument may have; text where nothing is known about it."""
        if argument not in self._properties(name):
            return {"string"}
        parameters = next(each.parameters for each in self.tools if each.name == name)
        return set(_types(parameters["properties"][argument], parameters.get("$defs", {}))) or {"string", *_ANY}


_ANY = ("object", "array", "integer", "number", "boolean", "null")
_KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}


def _whole_value(text: str) -> Any:
    value, end = read_value(text)
    write_value(value)
    if skip_space(text, end) != len(text):
        raise JsonProblem("something follows the value")
    return value


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "array")


def _types(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    if not isinstance(schema, Mapping) or depth > 8:  # a definition may refer to itself
        return
    if "$ref" in schema:
        yield from _types(definitions.get(str(schema["$ref"]).rpartition("/")[2]), definitions, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(key, ()):
            yield from _types(each, definitions, depth + 1)
    if "type" not in schema:
        yield from map(_kind, (*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())))
    kinds = schema.get("type", ())
    for kind in (kinds,) if isinstance(kinds, str) else kinds:
        yield from ("integer", "number") if kind == "number" else (kind,)


def _opening(text: str, place: int, tag: str, *others: str) -> tuple[str, int]:
    if not text.startswith(tag, place):
        found = text[place : place + 20]
        wanted = " or ".join((f"{tag}...>", *others))
        raise JsonProblem(f"{wanted} is missing before {found!r}" if found else f"{wanted} is missing at the end")
    end = text.find(">", place)
    name = text[place + len(tag) : end] if end >= 0 else ""
    if not name or len(name.split()) != 1 or name != name.strip():
        raise JsonProblem(f"{tag} must have a name without spaces, and '>' after it")
    return name, end + 1


_LABEL = re.compile(r"^[ \t]*(Thought|Action Input|Action|Observation|Final Answer)[ \t]*:", re.MULTILINE)
_HOW = 'Write "Action: " and the tool\'s name, and on the next line "Action Input: " and a JSON object, {...}.'


class React(CallFormat):
    """ReAct (arXiv 2210.03629): an ``Action`` and an ``Action Input`` line for each call, or else a ``Final Answer``.

    ``Action Input`` is a JSON object. Where the tool has one argument and it is text, bare text will do. What follows
    an ``Observation`` of the model's own making is not read, and a ``Final Answer`` beside an action is not either.
    """

    name = "react"

    def instructions(self) -> str:
        tools = "\n".join(
            f"{each.name}: {each.description}\n  arguments: {write_value(each.parameters.get('properties', {}))}"
            for each in self.tools
        )
        return (
            f"You can use these tools:\n{tools}\n"
            "To use one, write\nThought: why\nAction: the tool's name\nAction Input: its arguments as a JSON object\n"
            "and stop: the result comes as an Observation. When you are done, write\nFinal Answer: the answer"
        )

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Go from label to label; JSON is read whole, so labels inside it are not seen."""
        words: list[str] = []
        calls: list[Written] = []
        problems: list[str] = []
        answer: str | None = None
        place = 0
        while len(problems) < MAX_PROBLEMS:
            label = _LABEL.search(text, place)
            words.append(text[place : label.start() if label else len(text)])
            if label is None or label[1] == "Observation":
                break
            place = label.end()
            if label[1] == "Final Answer":
                answer = text[place:].strip()
                break
            if label[1] == "Action Input":
                problems.append(f'"Action Input:" has no "Action:" before it. {_HOW}')
                place = _next_label(text, place)
            elif label[1] == "Action":
                try:
                    written, place = self._action(text, place)
                    calls.append(written)
                except JsonProblem as problem:
                    problems.append(f"The action cannot be read: {problem}. {_HOW}")
                    input_label = _LABEL.search(text, place)
                    if input_label and input_label[1] == "Action Input":
                        place = _next_label(text, input_label.end())
        said = "".join(words).strip()
        if answer is not None and not calls and not problems:
            said = answer
        return said, calls, problems

    def spans(self, text: str) -> Spans:
        spans: list[tuple[int, int]] = []
        place = problems = 0
        while problems < MAX_PROBLEMS and (label := _LABEL.search(text, place)):
            place = label.end()
            if label[1] == "Action Input" and text.startswith("{", start := skip_space(text, place)):
                try:
                    place = read_value(text, start)[1]
                    spans.append((start, place))
                except JsonProblem:
                    problems += 1
        return spans

    def spell(self, text: str, calls: Sequence[Written]) -> str:
        said = self._said(assistant(text))
        reasoning = text.strip().removesuffix(said).strip()
        before = f"{reasoning}\n" if reasoning else ""
        if not calls:
            return f"{before}Final Answer: {said}"
        thought = [f"Thought: {said}"] if said else []
        actions = [f"Action: {name}\nAction Input: {without_tags(arguments)}" for name, arguments in calls]
        return before + "\n".join(thought + actions)

    def answers(self, results: Sequence[ToolResult]) -> list[Message]:
        """All results in one user message: models that need this format often have no tool role."""
        return [user("\n".join(f"Observation: {each.content}" for each in results))] if results else []

    def _action(self, text: str, place: int) -> tuple[Written, int]:
        name = text[place : _line_end(text, place)].strip()
        if not name:
            raise JsonProblem("the name of the tool is missing")
        label = _LABEL.match(text, _line_after(text, place))
        if label is None or label[1] != "Action Input":
            raise JsonProblem('the line after "Action:" must begin with "Action Input:"')
        start = skip_space(text, label.end())
        if start < len(text) and text[start] == "{":
            value, end = read_value(text, start)
            rest = text[end : _line_end(text, end)].strip()
            if rest:
                raise JsonProblem(f"the JSON is followed by {rest[:20]!r}")
            return Written(name, write_value(value)), end
        end = _next_label(text, label.end())
        bare = text[label.end() : end].strip()
        if bare and (argument := self._only_text_argument(name)) is not None:
            return Written(name, write_value({argument: bare})), end
        raise JsonProblem("the action's input must be a JSON object, {} for no arguments")

    def _only_text_argument(self, name: str) -> str | None:
        for each in self.tools:
            properties = each.parameters.get("properties", {})
            if each.name == name and len(properties) == 1:
                ((argument, schema),) = properties.items()
                return argument if schema.get("type") == "string" else None
        return None


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _line_after(text: str, place: int) -> int:
    return skip_space(text, _line_end(text, place))


def _next_label(text: str, place: int) -> int:
    label = _LABEL.search(text, place)
    return label.start() if label else len(text)


#: The formats by name.
FORMATS: Mapping[str, type[CallFormat]] = MappingProxyType(
    {each.name: each for each in (Hermes, Llama3, Qwen3Coder, Mistral, React, Native)}
)


def make_format(name: str, tools: Sequence[Tool[..., Any]] = ()) -> CallFormat:
    if name not in FORMATS:
        raise ValueError(f"call_format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name](tools)
