"""The conversations of a session, and which of them a call continues or branches off from.

A call is compared with all conversations at once, by a tree of their messages: the cost grows with the call's messages
and not with the number of conversations, of which a program that always begins anew has thousands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..text import quoted
from .model_call import MessageKey, ModelCall

_Root = tuple[str, str]  # the role and the tools of a conversation


@dataclass
class Context:
    """A conversation: whose it is, its tools, keys of the messages so far, and sizes after replies."""

    role: str
    tools: str
    seen: tuple[MessageKey, ...] = ()
    replies: tuple[int, ...] = ()


@dataclass
class Contexts:
    """All conversations of a session, in the order in which they began."""

    all: list[Context] = field(default_factory=list)
    #: The nodes of the tree: what follows a node, or begins conversations of one role and tools.
    _nodes: dict[tuple[int, MessageKey] | _Root, int] = field(default_factory=dict)
    _ending: dict[int, dict[int, None]] = field(default_factory=dict)  # by node: the conversations that end there
    #: By the node of a reply: the most replies that a conversation has up to there, and the first one that does.
    _replied: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.all)

    def begin(self, role: str, tools: str, replies: tuple[int, ...]) -> int:
        """Add a conversation that shares these replies with another one; return its number."""
        self.all.append(Context(role, tools, replies=replies))
        return len(self.all) - 1

    def extend(self, number: int, seen: tuple[MessageKey, ...]) -> None:
        """Note the messages of a conversation; the last one is a reply of the policy."""
        context = self.all[number]
        if context.seen:
            *_, before = self._path(context.role, context.tools, context.seen)
            del self._ending[before][number]
        context.seen, context.replies = seen, (*context.replies, len(seen))
        path = [*self._path(context.role, context.tools, seen, add=True)]
        self._ending.setdefault(path[-1], {})[number] = None
        for count, size in enumerate(context.replies, 1):
            most, first = self._replied.get(path[size - 1], (0, number))
            if (count, -number) > (most, -first):
                self._replied[path[size - 1]] = count, number

    def continued_by(self, call: ModelCall) -> int | None:
        """Return the longest conversation that a call extends by messages of users and tools; ``None`` for none."""
        keys = call.message_keys
        roles = [message["role"] for message in reversed(call.messages)]
        answers = next((count for count, role in enumerate(roles) if role not in ("user", "tool")), len(keys))
        path = [*self._path(call.role, call.tools_key, keys[: len(keys) - 1])]
        for node in reversed(path[max(len(keys) - answers, 1) - 1 :]):
            if numbers := self._ending.get(node):
                return min(numbers)
        return None

    def source_of(self, call: ModelCall) -> tuple[int, int] | None:
        """Return the conversation that shares the most replies with a call's beginning, and their number, if any."""
        nodes = self._path(call.role, call.tools_key, call.message_keys[: len(call.message_keys) - 1])
        sources = [self._replied[node] for node in nodes if node in self._replied]
        count, number = max(sources, key=lambda source: (source[0], -source[1]), default=(0, 0))
        return (number, count) if count else None

    def _path(self, role: str, tools: str, keys: tuple[MessageKey, ...], *, add: bool = False) -> Iterator[int]:
        """Yield the node of each message, as far as conversations have begun with these; ``add`` the others."""
        edge: tuple[int, MessageKey] | _Root = (role, tools)
        node = self._nodes.setdefault(edge, len(self._nodes)) if add else self._nodes.get(edge)
        for key in keys:
            if node is None:
                return
            edge = (node, key)
            node = self._nodes.setdefault(edge, len(self._nodes)) if add else self._nodes.get(edge)
            if node is not None:
                yield node


def difference(call: ModelCall, context: Context) -> str:
    """Say where a call differs from one that extends the conversation."""
    keys, messages = call.message_keys, call.messages
    place = next((i for i, pair in enumerate(zip(keys, context.seen, strict=False)) if pair[0] != pair[1]), None)
    if place is not None:
        role, before = messages[place]["role"], context.seen[place]
        return (
            f"message {place} ({role}) was {quoted(before[1] or before[2], 80)} ({before[0]}) and is "
            f"{quoted(keys[place][1] or keys[place][2], 80)} now"
        )
    if len(keys) <= len(context.seen):
        return f"it ends after message {len(keys) - 1} of {len(context.seen)}"
    if call.tools_key != context.tools:
        return "its tools are not those of the call before"
    role = next(m["role"] for m in messages[len(context.seen) :] if m["role"] not in ("user", "tool"))
    return f"it adds a message of the role {role!r}"
