"""Select the messages that are sent back with their reasoning, and name the field for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .refusals import Refusal

_WANTED = re.compile(r"missing|must be (?:passed|provided|included|sent)|required|pass .{0,40}back", re.IGNORECASE)


class ReasoningBack:
    """The reasoning of earlier messages that one service wants back.

    Services that reason want it back with the tool calls of the user turn that they are in; some with every message,
    some refuse it. So it is only sent to a service that has given some, by the same name, and what a refusal asks for
    is done from then on.
    """

    def __init__(self) -> None:
        self.field: str | None = None  # as the service named it; nothing is sent while it has given none
        self.scope: Literal["turn", "all", "none"] = "turn"

    @property
    def what(self) -> str:
        return "it is sent with every message from now on" if self.scope == "all" else "it is not sent any more"

    def put(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Convert the messages to the service's form, without the field ``reasoning_content``."""
        last_user = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
        sent = []
        for place, message in enumerate(messages):
            form = {name: value for name, value in message.items() if name != "reasoning_content"}
            of_turn = place > last_user and "tool_calls" in message
            is_sent = self.scope == "all" or (self.scope == "turn" and of_turn)
            if self.field is not None and is_sent and message["role"] == "assistant":
                # Services that want the field refuse an empty one.
                form[self.field] = message.get("reasoning_content") or " "
            sent.append(form)
        return sent

    def mend(self, refusal: Refusal, sent: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether to try again: the refusal is for reasoning that was sent, or that was not."""
        if self.field is None or refusal.status not in (400, 422) or self.field not in refusal.words:
            return False
        had = [self.field in message for message in sent if message["role"] == "assistant"]
        is_missing = _WANTED.search(refusal.words) is not None
        if is_missing and self.scope == "turn" and not all(had):
            self.scope = "all"
        elif not is_missing and any(had):
            self.scope = "none"
        else:
            return False
        return True
