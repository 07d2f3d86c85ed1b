"""How a model writes tool calls down: one format a file, all with the same three methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..schema import Tool
from .base import CallFormat, Parsed, call
from .hermes import Hermes
from .llama3 import Llama3
from .mistral import Mistral
from .native import Native
from .qwen3_coder import Qwen3Coder
from .react import React

#: The formats by name.
FORMATS: Mapping[str, type[CallFormat]] = MappingProxyType(
    {each.name: each for each in (Hermes, Llama3, Qwen3Coder, Mistral, React, Native)}
)


def make_format(name: str, tools: Sequence[Tool[..., Any]] = ()) -> CallFormat:
    """The format ``name`` for ``tools``.

    Raises:
        ValueError: There is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"call_format must be one of {', '.join(FORMATS)}, not {name!r}")
    return FORMATS[name](tools)


__all__ = ["FORMATS", "CallFormat", "Parsed", "call", "make_format"]
