"""Answers of a given shape: what a service is told of it, and reading the answer without trusting it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

SchemaT = TypeVar("SchemaT", bound=BaseModel)

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_DROPPED = frozenset({"title", "default"})  # "strict" schemas of OpenAI's have no defaults: every field is written


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``model`` in the subset that OpenAI calls strict: all fields required, no others allowed."""
    schema = _strict(model.model_json_schema())
    assert isinstance(schema, dict)
    return schema


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    strict = {name: _strict(value) for name, value in node.items() if name not in _DROPPED or name == "properties"}
    if isinstance(properties := node.get("properties"), dict):
        strict["properties"] = {name: _strict(value) for name, value in properties.items()}
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    return strict


def parse_reply(text: str, model: type[SchemaT]) -> SchemaT:
    """Read an answer that must be one JSON object and nothing else; a code fence around the whole of it is allowed.

    No object is ever searched for *inside* of an answer: what stands there may be a quotation. Types are not converted
    (``"1"`` is no number), and a name that occurs twice, ``NaN`` and infinities are refused.

    Raises:
        ValueError: What is wrong, in words that hold nothing of the answer.
    """
    text = text.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
        plain = json.dumps(value)
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except (ValueError, RecursionError):
        raise ValueError("it is not one JSON object and nothing else") from None
    if not isinstance(value, dict):
        raise ValueError("it is JSON, but not an object")
    try:
        # Through JSON again: strict validation of JSON accepts what JSON cannot say otherwise (an enum, a tuple).
        return model.model_validate_json(plain, strict=True)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if detail["type"] == "extra_forbidden":
        raise ValueError("it has a field that was not asked for")
    # Deeper places may be names that the answer itself chose.
    place = detail["loc"][0] if detail["loc"] and detail["loc"][0] in model.model_fields else "the object"
    raise ValueError(f"{place}: {detail['msg']}")


class _Refused(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused("a name occurs twice in an object of it")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused("a number of it is not finite")
    return number
