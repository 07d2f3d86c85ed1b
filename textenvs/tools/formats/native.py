"""Native: calls are the ``tool_calls`` of an assistant message, made by whoever runs the model."""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import Message, assistant
from .base import CallFormat, Written, make_call


class Native(CallFormat):
    """No calls in text. The caller gives the model ``env.tool_schemas`` and the environment whole messages."""

    name = "native"

    def instructions(self) -> str:
        """None: the schemas go where the caller's API takes them."""
        return ""

    def read(self, text: str) -> tuple[str, list[Written], list[str]]:
        """Text is text, also its white space."""
        return text, [], []

    def spell(self, text: str, calls: Sequence[Written]) -> str | Message:
        """A message with ``tool_calls``, or only the text where there are none."""
        if not calls:
            return text
        made = [make_call(each.name, each.arguments, self.call_id(i)) for i, each in enumerate(calls)]
        return assistant(text, made)
