"""A renderer that does next to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textenvs.messages import Message
from trainers.chat_template import TemplateReasoning


class Letters:
    """Renders three tokens a message, whatever its text; a reply has a token a letter."""

    stop_token_ids = (2,)
    rewrites_history = needs_tool_calls = False
    observed_roles = frozenset[str]()
    reasoning = TemplateReasoning()

    def render(self, messages: Sequence[Message], tools: Any = None) -> list[int]:
        return [3, 4, 5] * len(messages)

    def bridge(self, new: Sequence[Message], *, after: int | None, tools: Any = None) -> list[int]:
        return [3, 4, 5] * len(new)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i > 31)
