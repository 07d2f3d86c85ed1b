"""verl 0.7 and older: environments as *interactions* of its multi-turn rollout.

verl 0.8 took interactions out; for it and newer ones there is an agent loop (``trainers.hosts.verl``). Where verl has
``verl.interactions``, :class:`TextEnvInteraction` is a subclass of its ``BaseInteraction``; elsewhere it has the same
methods. See docs/adapters/verl.md, also for what that contract loses.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .session import Session
from .spec import EpisodeSpec, SpecError

if TYPE_CHECKING:

    class _Base:
        def __init__(self, config: dict[str, Any]) -> None: ...

else:
    try:
        from verl.interactions.base import BaseInteraction as _Base
    except ImportError:

        class _Base:
            """What verl's interactions have in common."""

            def __init__(self, config):
                self.config = config
                self.name = config.get("name", "interaction_agent")


class TextEnvInteraction(_Base):
    """Plays any environment as the user of verl's conversation; any number of episodes at a time.

    verl makes one of these for each agent loop, from a YAML file::

        interaction:
          - name: textenv
            class_name: textenvs.integrations.verl.TextEnvInteraction
            config: {}

    and the rows say which episode to play (``textenvs rows verl-interaction``).

    Args:
        config: ``name``, as verl puts it there, and ``environments``: which ids and options the rows may have beyond
            the environments that ship and their harmless options (docs/security.md).

    Raises:
        ValueError: Another key in ``config``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        if unknown := set(config) - {"name", "environments"}:
            raise ValueError(
                f"TextEnvInteraction: unknown keys {sorted(unknown)} in its config; an environment's options belong "
                "to the rows (`textenvs rows verl-interaction ID key=value ...`)"
            )
        super().__init__(config)
        self._environments = config.get("environments")
        self._sessions: dict[str, Session] = {}  # episodes that run
        self._starting: set[str] = set()  # names of episodes that have no session yet
        self._scores: dict[str, float] = {}  # of those that are over: verl never finalizes, so that is all that stays
        weakref.finalize(self, _close, self._sessions)

    async def start_interaction(
        self, instance_id: str | None = None, *, episode: Any = None, name: str | None = None
    ) -> str:
        """Begin the episode that a row's ``extra_info.interaction_kwargs`` describes.

        Args:
            instance_id: What the episode is to be called; made up where it is left out.
            episode: An :class:`~textenvs.integrations.EpisodeSpec` as JSON text or a mapping.
            name: The interaction's, which verl passes along.

        Returns:
            What the episode is called.

        Raises:
            SpecError: ``episode`` is missing or malformed.
            ValueError: There is an episode of this name, and it is not over.
        """
        if episode is None:
            raise SpecError(
                "interaction_kwargs has no 'episode', which says what to play; `textenvs rows verl-interaction` "
                "writes such rows"
            )
        spec = EpisodeSpec.from_row(episode, "interaction_kwargs.episode", self._environments)
        instance_id = instance_id or str(uuid4())
        if instance_id in self._starting or instance_id in self._sessions or instance_id in self._scores:
            raise ValueError(f"there is an interaction {instance_id!r} already; finalize it first")
        self._starting.add(instance_id)
        try:
            session, _ = await Session.aof(spec)
            self._sessions[instance_id] = session
        finally:
            self._starting.discard(instance_id)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: Sequence[Mapping[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        """Judge the last assistant message, and answer it.

        Args:
            instance_id: Which episode.
            messages: The conversation so far; only its last assistant message is read.
            kwargs: The row's, which verl passes again.

        Returns:
            Whether the episode is over, what the environment says (one text), the turn's reward, and ``terms``,
            ``stop``, ``terminated`` and ``truncated``.

        Raises:
            EnvironmentFailure: A simulator or judge gave up; the episode is then over, and not to be trained on.
            KeyError: No such episode runs.
            ValueError: There is no assistant message.
        """
        if instance_id not in self._sessions:
            over = "is over" if instance_id in self._scores else "was never started"
            raise KeyError(f"the interaction {instance_id!r} {over}")
        session = self._sessions[instance_id]
        reply = next((each for each in reversed(messages) if each.get("role") == "assistant"), None)
        if reply is None:
            raise ValueError("there is no assistant message to answer")
        try:
            turn = await session.areply(_text(reply))
            session.check()
        except BaseException:
            await self._drop(instance_id)
            raise
        if turn.done:
            self._scores[instance_id] = session.reward
            await self._drop(instance_id)
        return turn.done, turn.text, turn.reward, turn.outcome

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        """The sum of the episode's turn rewards so far.

        Raises:
            KeyError: There is no such episode.
        """
        if instance_id in self._sessions:
            return self._sessions[instance_id].reward
        if instance_id not in self._scores:
            raise KeyError(f"there is no interaction {instance_id!r}")
        return self._scores[instance_id]

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the episode, and release what it holds; safe to call twice."""
        self._scores.pop(instance_id, None)
        if instance_id in self._sessions:
            await self._drop(instance_id)

    async def _drop(self, instance_id: str) -> None:
        await asyncio.shield(self._sessions.pop(instance_id).aclose())


def _text(reply: Mapping[str, Any]) -> str:
    """The words of an assistant message; of verl's message parts, those that are text."""
    content = reply.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))


def _close(sessions: dict[str, Session]) -> None:
    """Of an interaction that is no longer used: verl's own limits end an episode without a word."""
    while sessions:
        sessions.popitem()[1].close()
