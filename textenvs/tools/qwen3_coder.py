"""Qwen3-Coder's calls: an element for the function, and one for each argument."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .call_format import CLOSE, OPEN, CallFormat, Written, after_broken, without_tags
from .jsontext import JsonProblem, read_value, skip_space, write_value

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
_PARAMETER_TAG = re.compile(r"(\n[ \t]*)?<parameter=([^\s<>]+)>")
_NEXT_CALL = re.compile(r"</tool_call>\s*(?:<tool_call>\s*)?<function=")
# Python's spellings, which these models use as well as JSON's.
_PYTHON = {"True": True, "False": False, "None": None}


class Qwen3Coder(CallFormat):
    """``<tool_call><function=NAME>``, then ``<parameter=ARGUMENT>value</parameter>`` for each argument: Qwen3.5, too.

    The tool's schema decides how a value is read: a text argument is taken literally, and any other is read as JSON if
    possible. A text cannot contain ``</parameter>`` or the line of another argument. The outer tags may be omitted, and
    so may ``</parameter>``, and ``</function>`` before ``</tool_call>``.
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
        opened = text.startswith(OPEN, start)
        call, place = self._function(text, skip_space(text, start + len(OPEN) * opened))
        calls, end = [call], skip_space(text, place)
        while opened and text.startswith(FUNCTION, end):
            call, place = self._function(text, end)
            calls, end = [*calls, call], skip_space(text, place)
        if text.startswith(CLOSE, end):
            return calls, end + len(CLOSE)
        close, following = text.find(CLOSE, end), text.find(OPEN, end)
        if text.startswith(PARAMETER, end) or (opened and close >= 0 and not 0 <= following < close):
            raise JsonProblem(f"between {END_FUNCTION} and {CLOSE} stands {text[end : end + 20]!r}")
        return calls, place

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
        """Return the end of a value, and the beginning of what follows; models may leave ``</parameter>`` out."""
        close, function = text.find(END_PARAMETER, place), text.find(END_FUNCTION, place)
        # A value may have the text of </function> in it, but not that and another call.
        if close >= 0 and 0 <= function < close and text.find(FUNCTION, function, close) >= 0:
            close = -1
        last = close if close >= 0 else function
        if last < 0 or _NEXT_CALL.search(text, place, last):
            raise JsonProblem(f"{PARAMETER}{argument}> has no {END_PARAMETER}")
        other_arguments = self._properties(name).keys() - {argument}
        for following in _PARAMETER_TAG.finditer(text, place, last):
            if following[1] is not None or following[2] in other_arguments:
                return following.start(), following.start(2) - len(PARAMETER)
        return last, last + len(END_PARAMETER) if close >= 0 else last

    def _properties(self, name: str) -> Mapping[str, Any]:
        return next((tool.parameters.get("properties", {}) for tool in self.tools if tool.name == name), {})

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
        """Return the JSON types that an argument may have; text where it is not in the schema."""
        if argument not in self._properties(name):
            return {"string"}
        parameters = next(tool.parameters for tool in self.tools if tool.name == name)
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
        for option in schema.get(key, ()):
            yield from _types(option, definitions, depth + 1)
    if "type" not in schema:
        yield from map(_kind, (*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())))
    kinds = schema.get("type", ())
    for kind in (kinds,) if isinstance(kinds, str) else kinds:
        yield from ("integer", "number") if kind == "number" else (kind,)


def _opening(text: str, place: int, tag: str, *alternatives: str) -> tuple[str, int]:
    if not text.startswith(tag, place):
        following = text[place : place + 20]
        expected = " or ".join((f"{tag}...>", *alternatives))
        raise JsonProblem(
            f"{expected} is missing before {following!r}" if following else f"{expected} is missing at the end"
        )
    end = text.find(">", place)
    name = text[place + len(tag) : end] if end >= 0 else ""
    if not name or len(name.split()) != 1 or name != name.strip():
        raise JsonProblem(f"{tag} must have a name without spaces, and '>' after it")
    return name, end + 1
