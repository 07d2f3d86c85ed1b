"""The client's side: OpenEnv's own client, with our types."""

from __future__ import annotations

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient

from ...env import as_reply
from ...messages import Message, text_of
from .models import TextAction, TextObservation, TextState


class TextEnvClient(EnvClient[TextAction | Message | str, TextObservation, TextState]):  # type: ignore[misc]
    """A client for a server of :func:`~textenvs.integrations.openenv.create_app`; an action may be a plain text, too.

    ``async with TextEnvClient(base_url="http://localhost:8000") as env``, or ``.sync()`` for plain calls. Where a turn
    may take longer than a minute (a model plays the user), give ``message_timeout_s``.
    """

    def _step_payload(self, action: TextAction | Message | str) -> dict[str, Any]:
        if not isinstance(action, TextAction):
            reply = as_reply(action)  # with clean text: lone surrogates do not survive the wire
            plain = len(reply) == 2 and isinstance(reply["content"], str)
            action = TextAction(text=text_of(reply), message=None if plain else dict(reply))
        payload: dict[str, Any] = action.model_dump(exclude_none=True)
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TextObservation]:
        observation = TextObservation.model_validate(
            {**payload["observation"], "reward": payload.get("reward"), "done": payload.get("done", False)}
        )
        return StepResult(observation=observation, reward=observation.reward, done=observation.done)

    def _parse_state(self, payload: dict[str, Any]) -> TextState:
        return TextState.model_validate(payload)
