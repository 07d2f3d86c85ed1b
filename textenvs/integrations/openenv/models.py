"""What crosses the wire between an OpenEnv server of ours and its clients."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class TextAction(Action):
    """The assistant's reply. ``text`` is the only required field, so generic clients can send a plain reply."""

    text: str = Field(description="The reply: its raw text, as the model wrote it.")
    message: dict[str, Any] | None = Field(
        default=None,
        description="A whole assistant message (with tool calls) instead of a text; text is then its content.",
    )


class TextObservation(Observation):
    """What the environment made of a reply; after ``reset``, the opening. ``reward`` is the turn's own."""

    text: str = Field(description="The contents of messages, as one text.")
    messages: list[dict[str, Any]] = Field(
        description="What was said since the reply; after reset, the opening messages."
    )
    terminated: bool = Field(default=False, description="The task is over.")
    truncated: bool = Field(default=False, description="A budget ran out.")
    info: dict[str, Any] = Field(
        default_factory=dict, description="The environment's info: the reward's terms, metrics, why it ended (stop)."
    )


class TextState(State):
    """The episode on the server. Nothing in it is hidden from the policy."""

    env: str = Field(description="The environment's id.")
    messages: list[dict[str, Any]] = Field(default_factory=list, description="The whole conversation.")
    turn_rewards: list[float] = Field(default_factory=list, description="The reward of each turn.")
    stop: str | None = Field(default=None, description="Why the episode is over; null while it runs.")
