"""Actions: from what a policy says to an assistant message, with its private reasoning apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium

from .messages import Message, Messages, clean_messages, clean_text, read_message, text_of
from .reasoning import Marks, Spans, split_reasoning
from .text import quoted


def as_reply(action: Any, before: Messages = ()) -> Message:
    """Return the assistant message that ``action`` stands for, a copy with clean text, or raise ``InvalidAction``.

    ``before`` is the conversation that it replies to.
    """
    if isinstance(action, str):
        return {"role": "assistant", "content": clean_text(str(action))}
    try:
        reply = read_message(action, before)
    except ValueError as problem:
        raise gymnasium.error.InvalidAction(f"an action is a string or an assistant message: {problem}") from None
    if reply["role"] != "assistant":
        raise gymnasium.error.InvalidAction(f"an action must have role 'assistant', not {reply['role']!r}")
    if reply.get("reasoning_content") == "":  # of a service: its content may have reasoning all the same
        del reply["reasoning_content"]
    return clean_messages([reply])[0]


def separated(reply: Message, marks: Sequence[Marks], calls: Callable[[str], Spans]) -> Message:
    """Return a reply whose reasoning, between these marks, is apart from its content.

    ``calls`` returns the places of tool calls in a text, which are no reasoning.
    """
    text = text_of(reply)
    reasoning, visible = split_reasoning(text, marks, calls)
    reasoning = "\n\n".join(filter(None, (reply.get("reasoning_content"), reasoning)))
    return {**reply, "content": visible if reasoning else text, "reasoning_content": reasoning}


def marks_of(pairs: Any) -> tuple[Marks, ...] | None:
    """Return the marks of the option ``reasoning_marks``; ``ValueError`` for what are no pairs of texts."""
    if pairs is None:
        return None
    if isinstance(pairs, (str, Mapping)) or not isinstance(pairs, Iterable):
        raise ValueError(f"reasoning_marks is a list of pairs, such as ['<think>', '</think>'], not {quoted(pairs)}")
    return tuple(map(_marks, pairs))


def _marks(pair: Any) -> Marks:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) not in (2, 3) or not all(pair[:2]):
        raise ValueError(f"reasoning_marks is a list of pairs, such as ['<think>', '</think>'], not of {quoted(pair)}")
    return Marks(*pair)
