"""JSON schemas of answers, for the service."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_DROPPED = frozenset({"title", "default"})  # "strict" schemas of OpenAI's have no defaults: every field is written


def strict_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of ``model`` in OpenAI's strict subset: all fields required, no others allowed."""
    schema: dict[str, Any] = _strict(model.model_json_schema())
    return schema


def _strict(node: Any) -> Any:
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {name: _strict(value) for name, value in node.items() if name not in _DROPPED or name == "properties"}
    if isinstance(properties := node.get("properties"), dict):
        strict["properties"] = {name: _strict(value) for name, value in properties.items()}
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    return strict
