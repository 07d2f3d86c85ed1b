"""A local model as policy for ``textenvs evaluate --local FOLDER``, by its entry point; token-exact."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from textenvs.env import TextEnv
from textenvs.evaluate.policies import OutOfContext, Player, PolicyFailure, Reply, Stopped, ToolSchemas
from textenvs.messages import Messages, user

from ..chat_template import RendererError
from ..engines.base import EngineError, Sampling
from ..rollout.engine_policy import NoRoomError, Speaker
from ..rollout.environments import tools_of
from .chat_server import ChatServer, engine_policy


class LocalPolicy:
    """A causal language model in the embedded engine, which computes all conversations concurrently.

    ``model`` is a folder, or a name that transformers finds; ``temperature`` 0 is greedy; a reply has at most
    ``max_response_length`` tokens; ``concurrency`` replies are computed at a time, on ``device`` (``auto``, ``cpu`` or
    ``cuda``); ``chat_template_kwargs`` are variables for the chat template, as in training. Raises ``ValueError``: the
    model cannot be loaded, its chat template cannot be used, or the engine does not serve it.
    """

    def __init__(
        self,
        model: str,
        *,
        temperature: float = 1.0,
        max_response_length: int = 1024,
        concurrency: int = 16,
        device: str = "auto",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        sampling = Sampling(temperature=temperature, max_new_tokens=max_response_length)
        self._policy = engine_policy(
            model, sampling, concurrency=concurrency, device=device, chat_template_kwargs=chat_template_kwargs
        )

    def with_sampling(self, *, temperature: float = 1.0, max_response_length: int = 1024) -> LocalPolicy:
        """Return a policy of the same model, in the same engine, whose replies are sampled otherwise."""
        other = copy.copy(self)
        sampling = Sampling(temperature=temperature, max_new_tokens=max_response_length)
        other._policy = replace(self._policy, sampling=sampling)
        return other

    @staticmethod
    def serve(model: str) -> str:
        """Serve a folder's model to this machine as chat completions; return its address."""
        return ChatServer(model).base_url

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """Return a player that keeps its episode as tokens; raise ``Stopped`` if the model cannot use the tools."""
        try:
            self._policy.renderer.forms.check((user("x"),), tools_of(env))
        except ValueError as error:
            raise Stopped(str(error)) from error
        speaker = Speaker(self._policy, seed)

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            try:
                reply = await speaker.reply(conversation, tools or None)
            except NoRoomError as error:
                raise OutOfContext(str(error)) from error
            except RendererError as error:
                raise PolicyFailure(str(error)) from error
            except EngineError as error:
                raise PolicyFailure(f"{type(error).__name__}: {error}") from error
            return Reply(
                reply.text,
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=len(reply.generation.token_ids),
                cut=reply.generation.finish_reason == "length",
            )

        return play

    async def aclose(self) -> None:
        """End the engine."""
        await self._policy.engine.close()
