"""The contexts of a session as the policy is shown them, turn by turn."""

from __future__ import annotations

from typing import Any

from ..messages import Message, Messages
from .session import Observation


class Conversations:
    """The messages and replies of a policy, by the numbers of a session's contexts.

    The policy's replies stay as it wrote them, whatever a client made of them. ``new`` are an observation's new
    messages as the policy is shown them; where the observation has no source, they are a whole conversation.
    """

    def __init__(self) -> None:
        self._shown: list[Messages] = []
        self._replies: list[tuple[int, ...]] = []  # of each context: its sizes just after a reply
        self._last: dict[str, int] = {}  # by role: its context that was used last
        self._current, self._role = 0, ""

    def begin(self, observation: Observation, new: Messages) -> Messages:
        """Return the first observation of an episode."""
        return self._next(observation, new)

    def turn(self, reply: Message, observation: Observation, new: Messages) -> dict[str, Any]:
        """Return arguments of the turn of a reply, which ``observation`` follows: what is observed, and by whom."""
        current, role = self._current, self._role
        before = self._shown[current] = (*self._shown[current], reply)
        self._replies[current] = (*self._replies[current], len(before))
        last = self._last.get(observation.call.role)
        following = self._next(observation, new)
        switch = {"role": self._role} if self._role != role else {}
        return {**switch, **({"messages": new} if self._current == last else {"context": following})}

    def _next(self, observation: Observation, new: Messages) -> Messages:
        number = self._current = observation.context
        self._role = observation.call.role
        self._last[self._role] = number
        if observation.begins:
            messages: Messages = ()
            replies: tuple[int, ...] = ()
            if observation.source is not None:
                source, count = observation.source
                replies = self._replies[source][:count]
                messages = self._shown[source][: replies[-1]]
            self._shown.append(messages)
            self._replies.append(replies)
        self._shown[number] = (*self._shown[number], *new)
        return self._shown[number]
