"""The server's side: one environment a session, each in a thread of its own."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig, EnvironmentMetadata

from ... import registry
from ...messages import Messages, text_of
from ..session import Session
from .models import TextAction, TextObservation, TextState


class EpisodeFailed(RuntimeError):
    """A simulator, judge or tool gave up: the episode says nothing about the policy. The client sees an error."""


class TextEnvironment(Environment[TextAction, TextObservation, TextState]):  # type: ignore[misc]
    """A text environment as OpenEnv's server wants it.

    A failed episode is an error of ``step``, never an observation: OpenEnv has no mark for it, and clients read a
    reward that is missing as 0.

    Args:
        env: The environment's id.
        env_kwargs: Arguments of its constructor.

    Raises:
        gymnasium.error.NameNotFound: Nothing has this id.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.env = env
        self._session: Session | None = Session(registry.make(env, **(env_kwargs or {})))
        self._episode_id: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_index: int | None = None, **kwargs: Any
    ) -> TextObservation:
        """Begin an episode.

        Args:
            seed: Decides the task and all randomness.
            episode_id: A name for it; by default a new one.
            task_index: A task of the set, instead of one that the seed draws.
            **kwargs: Nothing else is known.

        Raises:
            ValueError: Arguments that are not known, or an index outside the task set.
        """
        if kwargs:
            raise ValueError(f"reset has no arguments {sorted(kwargs)}; it has seed, episode_id and task_index")
        session = self._open()
        opening = session.start(seed, None if task_index is None else {"task_index": task_index})
        self._episode_id = episode_id or str(uuid.uuid4())
        return TextObservation(
            text="\n\n".join(text_of(message) for message in opening),
            messages=_wire(opening),
            info=dict(session.info),
        )

    def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
        """Play a reply.

        Args:
            action: The reply.
            timeout_s: Not offered: a turn happens as a whole or not at all.
            **kwargs: Nothing else is known.

        Raises:
            EpisodeFailed: The environment's own machinery gave up.
            ValueError: ``timeout_s`` or other arguments are given, or text and message differ.
        """
        if timeout_s is not None or kwargs:
            given = sorted(kwargs) + ["timeout_s"] * (timeout_s is not None)
            raise ValueError(f"step takes an action only, not {given}; the client has a timeout for messages")
        # Not in the model: OpenEnv cannot put the error of a validator on the wire, and ends the session.
        content = action.text if action.message is None else action.message.get("content")
        if content != action.text and not isinstance(content, list):
            raise ValueError("text must be the content of message, where there is a message")
        session = self._open()
        turn = session.reply(action.text if action.message is None else action.message)  # type: ignore[arg-type]
        if session.failed:
            raise EpisodeFailed(f"leave this episode out, it failed ({turn.info['stop']}): {turn.info['failure']}")
        return TextObservation(
            text=turn.text,
            messages=_wire(turn.messages),
            reward=turn.reward,
            done=turn.done,
            terminated=turn.terminated,
            truncated=turn.truncated,
            info=dict(turn.info),
        )

    @property
    def state(self) -> TextState:
        """The episode as it stands."""
        session = self._session
        return TextState(
            env=self.env,
            episode_id=self._episode_id,
            step_count=len(session.turns) if session else 0,
            messages=_wire(session.messages) if session else [],
            turn_rewards=session.turn_rewards if session else [],
            stop=session.stop if session else None,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version, from the registry where the environment is ours."""
        if self.env in registry.list_environments():
            spec = registry.describe(self.env)
            return EnvironmentMetadata(name=self.env, description=spec.description, version=str(spec.version))
        return EnvironmentMetadata(name=self.env, description=f"{self.env}, a text environment")

    def close(self) -> None:
        """Release what the environment holds."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _open(self) -> Session:
        if self._session is None:  # OpenEnv closes an idle session, and leaves its socket open
            raise RuntimeError("this session was closed, perhaps because it was idle for too long; connect again")
        return self._session


def create_app(
    env: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    max_concurrent_envs: int = 256,
    session_timeout: float = 1800.0,
) -> FastAPI:
    """The server as an ASGI application: ``/ws`` for sessions, ``/schema``, ``/metadata``, ``/health``.

    Args:
        env: The environment's id.
        env_kwargs: Arguments of its constructor.
        max_concurrent_envs: How many sessions there may be at a time; each has an environment and a thread.
        session_timeout: After so many seconds without a message a session's environment is closed.

    Raises:
        gymnasium.error.NameNotFound: Nothing has this id.
        TypeError, ValueError: The environment refuses its arguments.
    """
    TextEnvironment(env, env_kwargs).close()  # so that errors come here, not at the first client
    concurrency = ConcurrencyConfig(max_concurrent_envs=max_concurrent_envs, session_timeout=session_timeout)
    return create_fastapi_app(
        functools.partial(TextEnvironment, env, env_kwargs),
        TextAction,
        TextObservation,
        concurrency_config=concurrency,
        env_name=env.rpartition("/")[2],
        state_cls=TextState,
    )


def _wire(messages: Messages) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]
