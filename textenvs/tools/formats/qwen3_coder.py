"""Qwen3-Coder: a tag for each argument, as Qwen3-Coder and Qwen3.5 write it. Text needs no quotes and no escapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..jsontext import JsonProblem, read_value, skip_space, write_value
from .base import CallFormat, Written, after_broken, without_tags
from .json_calls import CLOSE, OPEN

FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
# Python's spellings, which these models use as well as JSON's.
_PYTHON = {"True": True, "False": False, "None": None}


class Qwen3Coder(CallFormat):
    """``<tool_call><function=NAME>``, then ``<parameter=ARGUMENT>value</parameter>`` for each argument.

    What a value is depends on the tool: for an argument that is text it is taken as it stands, for any other it is
    read as JSON if it can be. A text with ``</parameter>`` in it cannot be said. The outer tags may be left out.
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
        while not text.startswith(END_FUNCTION, place := skip_space(text, place)):
            argument, place = _opening(text, place, PARAMETER, END_FUNCTION)
            end = text.find(END_PARAMETER, place)
            if end < 0:
                raise JsonProblem(f"{PARAMETER}{argument}> has no {END_PARAMETER}")
            arguments[argument] = self._value(name, argument, text[place:end])
            place = end + len(END_PARAMETER)
        return Written(name, write_value(arguments)), place + len(END_FUNCTION)

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
        for each in self.tools:
            if each.name == name and argument in each.parameters.get("properties", {}):
                schema = each.parameters["properties"][argument]
                return set(_types(schema, each.parameters.get("$defs", {}))) or {"string", *_ANY}
        return {"string"}


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
