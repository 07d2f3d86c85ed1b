"""How a model writes tool calls down: formats with the same three methods, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..schema import Tool
from .base import CallFormat, Parsed, call
from .json_calls import Hermes, Llama3, Mistral, Native
from .qwen3_coder import Qwen3Coder
from .react import React

__all__ = ["FORMATS", "CallFormat", "Parsed", "call", "make_format"]

#: The formats by name.
FORMATS: Mapping[str, type[CallFormat]] = MappingProxyType(
    {each.name: each for each in (Hermes, Llama3, Qwen3Coder, Mistral, React, Native)}
)


def make_format(name: str, tools: Sequence[Tool[..., Any]] = ()) -> CallFormat:
    if name not in FORMATS:
        raise ValueError(f"call_format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name](tools)
