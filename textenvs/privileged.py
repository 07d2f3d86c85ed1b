"""Privileged context: what an environment knows of an episode, for a teacher that sees more than the policy."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from .messages import Message, Messages, text_of
from .turn import NoDemonstration

#: ``goal``: what the user wants, told or not. ``answer``: the task's ground truth. ``expert``: the next reply of the
#: scripted expert.
Privilege: TypeAlias = Literal["goal", "answer", "expert"]
_SHOWN: dict[Privilege, str] = {
    "goal": "What the user wants, and may not have said yet",
    "answer": "The right answer",
    "expert": "A good reply",
}


def privileged_of(env: Any, kind: Privilege, rng: np.random.Generator) -> str | None:
    """Return what an environment itself offers of this kind; see :meth:`~textenvs.env.TextEnv.privileged`."""
    name = type(env).__name__
    if kind == "expert":
        if "demonstration" not in env.scripts:
            raise NotImplementedError(f"{name} has no scripted expert, so no privileged context of the kind 'expert'")
        try:
            return written(env.demonstration(rng))
        except NoDemonstration:
            return None
    if kind == "goal":
        view = getattr(env, "user_view", None)
        if view is None:
            raise NotImplementedError(
                f"{name} has no user with a goal of its own, so no privileged context of the kind 'goal'"
            )
        return view().goal or None
    if kind != "answer":
        raise ValueError(
            f"there is no privileged context of the kind {kind!r}; known are {', '.join(get_args(Privilege))}"
        )
    return None if env.task.ground_truth is None else str(env.task.ground_truth)


def written(reply: str | Message) -> str:
    """Return an expert's reply as text: its words, then the calls that it has apart, as JSON."""
    if isinstance(reply, str):
        return reply
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in reply.get("tool_calls", ())]
    return "\n".join(filter(None, (text_of(reply), *calls)))


def with_privileged(messages: Messages, kind: Privilege, text: str) -> Messages:
    """Return the conversation as a teacher reads it: with the privileged text at the end of its last message.

    Not as a message of its own, which some chat templates reject beside another of the same role.
    """
    *earlier, last = messages
    added, content = f"\n\n[Only you see this. {_SHOWN[kind]}:\n{text}]", last["content"]
    whole: Any = content + added if isinstance(content, str) else [*content, {"type": "text", "text": added}]
    return (*earlier, {**last, "content": whole})
