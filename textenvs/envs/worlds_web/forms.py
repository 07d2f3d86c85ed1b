"""Forms from JSON schemas: a tool's arguments as fields of a page, and what was filled in as its arguments.

An object with properties has a field for each of them; any other value has one field. A field takes a value or its
text: a text that is filled into a field for a number, a list or an object is read as JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ...tools.jsontext import JsonProblem, read_value, skip_space

#: The keys that lead to a value within the arguments.
Path: TypeAlias = "tuple[str, ...]"

_json = json.JSONEncoder(ensure_ascii=False).encode
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
_CALLED = {
    "string": "a text",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "array": 'a JSON list, for example ["a", "b"]',
    "object": 'a JSON object, for example {"a": 1}',
}


def leaves(schema: Mapping[str, Any], path: Path = (), required: bool = True) -> Iterator[tuple[Path, Any, bool]]:
    """Yield the path and the schema of each field, and whether it must be filled whenever the form is sent."""
    for name, part in schema["properties"].items():
        needed = required and name in schema.get("required", ())
        if "properties" in part:
            yield from leaves(part, (*path, name), needed)
        else:
            yield (*path, name), part, needed


def hint_of(schema: Mapping[str, Any]) -> str:
    """Return what a field takes, in a word or two: the schema's title, its choices, or its types."""
    if title := schema.get("title"):
        return str(title)
    if "enum" in schema:
        return " or ".join(map(text_of_value, schema["enum"]))
    if "items" in schema:
        return f"list of {hint_of(schema['items'])}"
    return " or ".join(_types(schema)) or "any value"


def is_empty(entry: Any) -> bool:
    """Return whether a field with this entry counts as not filled."""
    return entry is None or (isinstance(entry, str) and not entry.strip())


def text_of_value(value: Any) -> str:
    """Return the text of a value: a text itself, and JSON of all else."""
    return value if isinstance(value, str) else _json(value)


def arguments_of(schema: Mapping[str, Any], entries: Mapping[Path, Any]) -> tuple[dict[str, Any], dict[Path, str]]:
    """Return the arguments that a form says, and its problems by field.

    Args:
        schema: Of the arguments, an object.
        entries: What the fields hold, by path; where a path is not in it, the field is empty.
    """
    problems: dict[Path, str] = {}
    return _collected(schema, (), True, entries, problems) or {}, problems


def _collected(
    schema: Mapping[str, Any], path: Path, required: bool, entries: Mapping[Path, Any], problems: dict[Path, str]
) -> dict[str, Any] | None:
    """Return the object that the fields below a path say; ``None`` where it may be left out, and all are empty."""
    required = required or any(one[: len(path)] == path and not is_empty(entry) for one, entry in entries.items())
    needed, value = schema.get("required", ()), dict[str, Any]()
    for name, part in schema["properties"].items():
        own = (*path, name)
        if "properties" in part:
            if (inside := _collected(part, own, required and name in needed, entries, problems)) is not None:
                value[name] = inside
        elif is_empty(entry := entries.get(own)):
            if required and name in needed:
                problems[own] = "it must be filled"
        else:
            try:
                value[name] = typed(entry, part)
            except ValueError as error:
                problems[own] = str(error)
    return value if required else None


def typed(entry: Any, schema: Mapping[str, Any]) -> Any:
    """Return an entry as a value of a schema; ``ValueError``: it is none, and the message says what fits."""
    if "enum" in schema:
        matches = [option for option in schema["enum"] if text_of_value(option) == text_of_value(entry)]
        if not matches:
            raise ValueError(f"it must be {' or '.join(map(text_of_value, schema['enum']))}")
        return matches[0]
    types = _types(schema)
    if isinstance(entry, str) and ("string" in types or not types):
        return entry
    for value in _readings(entry):
        for name in types:
            if _is(value, name):
                return _whole(value, name, schema)
    if "string" in types and not isinstance(entry, list | dict):
        return text_of_value(entry)
    if types:
        raise ValueError(f"it must be {' or '.join(_CALLED[name] for name in types)}")
    return entry


def _whole(value: Any, name: str, schema: Mapping[str, Any]) -> Any:
    if name == "array" and "items" in schema:
        return [typed(one, schema["items"]) for one in value]
    return int(value) if name == "integer" else value


def _readings(entry: Any) -> Iterator[Any]:
    """Yield an entry, and what its text is as JSON."""
    yield entry
    if isinstance(entry, str):
        with contextlib.suppress(JsonProblem):
            value, end = read_value(entry)
            if skip_space(entry, end) == len(entry):
                yield value


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if isinstance(value, float):
        return value.is_integer() if name == "integer" else name == "number" and math.isfinite(value)
    return isinstance(value, _TYPES[name])


def _types(schema: Mapping[str, Any]) -> list[str]:
    """Return the JSON types that a schema allows; none where it allows any."""
    kinds = schema.get("type", ())
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key, ()):
            names += _types(option)
    return [name for name in dict.fromkeys(names) if name in _TYPES]
