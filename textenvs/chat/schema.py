"""What a service is told of the shape that an answer shall have."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_DROPPED = frozenset({"title", "default"})  # "strict" schemas of OpenAI's have no defaults: every field is written


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of ``model`` in the subset that OpenAI calls strict: all fields required, no others allowed."""
    schema: dict[str, Any] = _strict(model.model_json_schema())
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
