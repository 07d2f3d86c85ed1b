"""Rendering with a chat template, and the errors of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from textenvs.text import excerpt

Tools: TypeAlias = Sequence[Mapping[str, Any]] | None

_MESSAGE_CHARS = 500  # of a template's error

_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "Any."}}}
#: A tool for probes.
PROBE_TOOLS: Tools = [
    {"type": "function", "function": {"name": "probe", "description": "A probe.", "parameters": _PARAMETERS}}
]


class RendererError(ValueError):
    """The template or the tokenizer cannot do this; the message says why and what to do."""


class RejectedError(RendererError):
    """The template rejects a conversation, or does not show it."""


def place_of(reply: str, text: str) -> int:
    """Return the place of the assistant's reply in a rendering; ``RejectedError`` if it is not shown unchanged."""
    place = text.find(reply)
    if place < 0:
        raise RejectedError(f"the chat template does not show an assistant's reply {reply!r} as it is")
    return place


class Show(Protocol):
    """Function that renders messages with a template; raises :class:`RejectedError` with the template's message."""

    def __call__(self, messages: list[dict[str, Any]], tools: Tools, *, generate: bool = True) -> str: ...


def show_with(tokenizer: Any, kwargs: Mapping[str, Any] | None = None) -> Show:
    """Return a function that renders with a tokenizer's chat template and these variables.

    A template that exceeds its bounds, or has none (:mod:`trainers.bounded_template`), is a :class:`RendererError`.
    """
    from jinja2 import TemplateError

    from ..bounded_template import BoundedTemplates, LimitError

    templates = BoundedTemplates(tokenizer)

    def show(messages: list[dict[str, Any]], tools: Tools, *, generate: bool = True) -> str:
        schemas = None if tools is None else [dict(schema) for schema in tools]
        try:
            return templates.render(messages, schemas, generate=generate, kwargs=kwargs or {})
        except LimitError as error:
            raise RendererError(f"{error}; {error.advice}") from error
        except (TemplateError, TypeError, LookupError, AttributeError, ValueError, ArithmeticError) as error:
            raise RejectedError(excerpt(f"{error}" or type(error).__name__, _MESSAGE_CHARS)) from error

    return show
