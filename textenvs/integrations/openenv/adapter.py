"""A text environment behind an OpenEnv server, and the client for it."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Mapping
from typing import Any

from ... import registry
from ...actions import as_reply
from ...messages import Message, Messages, read_message, text_of
from ..session import Session, text_of_all

try:
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient
    from openenv.core.env_server import Environment, create_fastapi_app
    from openenv.core.env_server.types import Action, ConcurrencyConfig, EnvironmentMetadata, Observation, State
    from pydantic import Field
    from starlette.websockets import WebSocketClose
except ImportError as error:
    raise ImportError("this needs OpenEnv and what its server imports: pip install openenv") from error


class TextAction(Action):  # type: ignore[misc]
    """The assistant's reply. ``text`` is the only required field, so generic clients can send a plain reply."""

    text: str = Field(description="The reply: its raw text, as the model wrote it.")
    message: dict[str, Any] | None = Field(
        default=None,
        description="A whole assistant message (with tool calls) instead of a text; text is then its content.",
    )


class TextObservation(Observation):  # type: ignore[misc]
    """The environment's answer to a reply; after ``reset``, the opening. ``reward`` is the turn's own."""

    text: str = Field(description="The contents of messages and context, as one text.")
    messages: list[dict[str, Any]] = Field(description="What was said since the reply; after reset, the opening.")
    context: list[dict[str, Any]] | None = Field(
        default=None,
        description="The next conversation as a whole, where it does not extend the one before; messages end that one.",
    )
    terminated: bool = Field(default=False, description="The task is over.")
    truncated: bool = Field(default=False, description="A budget ran out.")
    info: dict[str, Any] = Field(default_factory=dict, description="The reward's terms, metrics, stop (why it ended).")


class TextState(State):  # type: ignore[misc]
    """The episode on the server. Nothing in it is hidden from the policy."""

    env: str = Field(description="The environment's id.")
    messages: list[dict[str, Any]] = Field(default_factory=list, description="The current conversation.")
    contexts: list[list[dict[str, Any]]] = Field(
        default_factory=list, description="Conversations that were left before."
    )
    turn_rewards: list[float] = Field(default_factory=list, description="The reward of each turn.")
    stop: str | None = Field(default=None, description="Why the episode is over; null while it runs.")


class TextEnvironment(Environment[TextAction, TextObservation, TextState]):  # type: ignore[misc]
    """A text environment as OpenEnv's server wants it: one a session, each in a thread of its own.

    A failed episode is an error of ``step``, never an observation: OpenEnv has no mark for it, and clients read a
    reward that is missing as 0.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: str, env_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.env = env
        self._session = Session(registry.make(env, **(env_kwargs or {})), contexts=True)
        self._episode_id: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_index: int | None = None, **kwargs: Any
    ) -> TextObservation:
        """Begin an episode: of the task ``task_index``, or of one that the seed draws."""
        if kwargs:
            raise ValueError(f"reset has no arguments {sorted(kwargs)}; it has seed, episode_id and task_index")
        session = self._open()
        opening = session.start(seed, None if task_index is None else {"task_index": task_index})
        self._episode_id = episode_id or str(uuid.uuid4())
        return TextObservation(text=text_of_all(opening), messages=_wire(opening), info=dict(session.info))

    def step(self, action: TextAction, **kwargs: Any) -> TextObservation:
        """Play a reply; raises ``RuntimeError`` where a simulator, judge or tool gave up."""
        if extra := sorted(name for name, value in kwargs.items() if value is not None):
            raise ValueError(f"step takes an action only, not {extra}; the client has a timeout for messages")
        # Not in the model: OpenEnv cannot put the error of a validator on the wire, and ends the session.
        if action.message is not None and text_of(read_message(action.message)) != action.text:
            raise ValueError("text must be the content of message, where there is a message")
        session = self._open()
        turn = session.reply(action.text if action.message is None else action.message)  # type: ignore[arg-type]
        if session.failed:
            raise RuntimeError(f"leave this episode out, it failed ({turn.info['stop']}): {turn.info['failure']}")
        return TextObservation(
            text=turn.text,
            messages=_wire(turn.messages),
            context=None if turn.context is None else _wire(turn.context),
            reward=turn.reward,
            done=turn.done,
            terminated=turn.terminated,
            truncated=turn.truncated,
            info=dict(turn.info),
        )

    @property
    def state(self) -> TextState:
        session = self._session
        return TextState(
            env=self.env,
            episode_id=self._episode_id,
            step_count=len(session.turns),
            messages=_wire(session.messages),
            contexts=list(map(_wire, session.env.state.contexts)),
            turn_rewards=session.turn_rewards,
            stop=session.stop,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        if self.env in registry.list_environments():
            spec = registry.describe(self.env)
            return EnvironmentMetadata(name=self.env, description=spec.description, version=str(spec.version))
        return EnvironmentMetadata(name=self.env, description=f"{self.env}, a text environment")

    def close(self) -> None:
        self._session.close()

    def _open(self) -> Session:
        if self._session.closed:  # OpenEnv closes an idle session, and leaves its socket open
            raise RuntimeError("this session was closed, perhaps because it was idle for too long; connect again")
        return self._session


def create_app(
    env: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    max_concurrent_envs: int = 256,
    session_timeout: float = 1800.0,
) -> FastAPI:
    """Return the server as an ASGI application: ``/ws`` for sessions, ``/schema``, ``/metadata``, ``/health``.

    Each of at most ``max_concurrent_envs`` sessions has an environment and a thread; after ``session_timeout`` seconds
    without a message its environment is closed.
    """
    concurrency = ConcurrencyConfig(max_concurrent_envs=max_concurrent_envs, session_timeout=session_timeout)
    TextEnvironment(env, env_kwargs).close()  # so that errors come here, not at the first client
    app = create_fastapi_app(
        functools.partial(TextEnvironment, env, env_kwargs),
        TextAction,
        TextObservation,
        concurrency_config=concurrency,
        env_name=env.rpartition("/")[2],
        state_cls=TextState,
    )
    app.add_middleware(_NoPages)
    return app


class _NoPages:
    """Refuses pages in browsers: one of another site could reach a server that trusts this machine."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = self._app
        if any(name == b"origin" for name, _ in scope.get("headers", ())):
            refused = PlainTextResponse("this server does not speak with pages in browsers", 403)
            app = refused if scope["type"] == "http" else WebSocketClose()
        await app(scope, receive, send)


def _wire(messages: Messages) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


class TextEnvClient(EnvClient[TextAction | Message | str, TextObservation, TextState]):  # type: ignore[misc]
    """A client for a server of :func:`create_app`; an action may be a plain text or an assistant message, too.

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
