"""verl 0.7 and older: environments as *interactions* of its multi-turn rollout.

verl 0.8 took interactions out; for it and newer ones there is an agent loop (``trainers.hosts.verl``). Where verl has
``verl.interactions``, :class:`TextEnvInteraction` is a subclass of its ``BaseInteraction``; elsewhere it has the same
methods. See docs/adapters/verl.md, also for what that contract loses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from .session import Session
from .spec import EpisodeSpec, SpecError

try:
    from verl.interactions.base import BaseInteraction
except ImportError:
    BaseInteraction = object


class TextEnvInteraction(BaseInteraction):  # type: ignore[misc]
    """Plays any environment as the user of verl's conversation; any number of episodes at a time.

    verl makes one of these for each agent loop, from a YAML file (examples/verl/interaction.yaml), and the rows say
    which episode to play. It never finalizes one, so what an episode holds is released at its end, or with this object.

    Args:
        config: ``name``, as verl puts it there, and ``environments``: which ids and options the rows may have beyond
            the environments that ship and their harmless options (docs/security.md).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        if unknown := set(config) - {"name", "environments"}:
            raise ValueError(
                f"TextEnvInteraction: unknown keys {sorted(unknown)} in its config; an environment's options belong "
                "to the rows (`textenvs rows verl-interaction ID key=value ...`)"
            )
        self.config, self.name = config, config.get("name", "interaction_agent")
        self._environments = config.get("environments")
        #: Episodes that run (``None``: one that is being started), and the scores of those that are over.
        self._episodes: dict[str, Session | float | None] = {}

    async def start_interaction(
        self, instance_id: str | None = None, *, episode: Any = None, name: str | None = None
    ) -> str:
        """Begin the episode that a row's ``extra_info.interaction_kwargs`` describes, and give its name.

        Raises:
            SpecError: ``episode`` is missing or malformed.
            ValueError: There is an episode of this name.
        """
        if episode is None:
            raise SpecError(
                "interaction_kwargs has no 'episode', which says what to play; `textenvs rows verl-interaction` "
                "writes such rows"
            )
        spec = EpisodeSpec.from_row(episode, "interaction_kwargs.episode", self._environments)
        instance_id = instance_id or str(uuid4())
        if instance_id in self._episodes:
            raise ValueError(f"there is an interaction {instance_id!r} already; finalize it first")
        self._episodes[instance_id] = None
        try:
            self._episodes[instance_id], _ = await Session.aof(spec)
        except BaseException:
            self._episodes.pop(instance_id, None)
            raise
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge the last assistant message, the only one that is read, and answer it.

        Returns:
            Whether the episode is over, what the environment says (one text), the turn's reward, and ``terms``,
            ``stop``, ``terminated`` and ``truncated``.

        Raises:
            EnvironmentFailure: A simulator or judge gave up; the episode is then over, and not to be trained on.
        """
        session = self._episodes.get(instance_id)
        if not isinstance(session, Session):
            over = "was never started" if session is None else "is over"
            raise KeyError(f"the interaction {instance_id!r} {over}")
        reply = next((each for each in reversed(messages) if each.get("role") == "assistant"), None)
        if reply is None:
            raise ValueError("there is no assistant message to answer")
        try:
            turn = await session.areply(_text(reply))
            session.check()
        except BaseException:
            await self.finalize_interaction(instance_id)
            raise
        if turn.done:
            self._episodes[instance_id] = session.reward
            await asyncio.shield(session.aclose())
        return turn.done, turn.text, turn.reward, turn.outcome

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The sum of the episode's turn rewards so far."""
        found = self._episodes.get(instance_id)
        if found is None:
            raise KeyError(f"there is no interaction {instance_id!r}")
        return found.reward if isinstance(found, Session) else found

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the episode, and release what it holds; safe to call twice."""
        if isinstance(session := self._episodes.pop(instance_id, None), Session):
            await asyncio.shield(session.aclose())


def _text(reply: Mapping[str, Any]) -> str:
    """The text of an assistant message; of verl's message parts, those that are text."""
    content = reply.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))
