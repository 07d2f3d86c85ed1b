"""A model on this machine as policy for ``textenvs evaluate --local FOLDER``, found by its entry point; token-exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from textenvs.env import TextEnv
from textenvs.evaluate.policies import OutOfContext, Player, PolicyFailure, Reply, Stopped, ToolSchemas
from textenvs.messages import Messages, user

from .config.model import ModelSection, native_dtype
from .engines.base import Engine, EngineError, Generation, Sampling
from .engines.torch_engine import TorchEngine
from .policy import load, resolve_device
from .rollout.curriculum import derive_seed
from .rollout.environments import tools_of
from .rollout.renderer import EpisodeTokens, Renderer, RendererError


class NoRoomError(Exception):
    """The conversation has outgrown the context."""


@dataclass(frozen=True)
class Said:
    """A reply, as text and as the engine gave it, and how long the context before it was."""

    text: str
    prompt_tokens: int
    generation: Generation


class EnginePolicy:
    """Conversations with an engine's model, any number at a time.

    ``sampling`` without its ``seed``; prompt and reply have at most ``max_context`` tokens, or what the engine holds.
    """

    def __init__(self, engine: Engine, renderer: Renderer, sampling: Sampling, max_context: int | None = None) -> None:
        self.engine, self.renderer, self.sampling = engine, renderer, sampling
        self.max_context = engine.max_context if max_context is None else min(max_context, engine.max_context)


class Speaker:
    """The policy in one conversation; the sampling follows from ``seed``."""

    def __init__(self, policy: EnginePolicy, seed: int) -> None:
        self._policy, self._seed = policy, seed
        self._tokens: EpisodeTokens | None = None

    async def reply(self, conversation: Messages, tools: Any = None) -> Said:
        """The next words; a reply that a weight update cut is said again from its start, by the new weights.

        ``conversation`` begins with that of the call before; ``tools`` are schemas for the chat template, in the first
        call. NoRoomError: the context is full. RendererError, EngineError.
        """
        policy = self._policy
        if self._tokens is None:
            self._tokens = EpisodeTokens(policy.renderer, conversation, tools=tools)
        else:
            self._tokens.observe(conversation)
        size = self._tokens.context_size
        room = policy.max_context - size
        if room <= 0:
            raise NoRoomError(f"{size} tokens, and there is room for {policy.max_context}")
        sampling = replace(
            policy.sampling,
            max_new_tokens=min(policy.sampling.max_new_tokens, room),
            stop_token_ids=tuple(dict.fromkeys((*policy.sampling.stop_token_ids, *policy.renderer.stop_token_ids))),
            seed=derive_seed(self._seed, "reply", self._tokens.num_turns),
        )
        generation = await policy.engine.generate(self._tokens.context, sampling)
        while generation.finish_reason == "abort":
            generation = await policy.engine.generate(self._tokens.context, sampling)
        return Said(self._tokens.reply(generation), size, generation)


_MOST_CONTEXT = 32768


class LocalPolicy:
    """A causal language model in the embedded engine, with as many conversations at once as are played.

    Args:
        model: A folder, or a name that transformers finds.
        temperature: Of sampling; 0 is greedy.
        max_response_length: Tokens a reply has at most.
        concurrency: Replies computed at a time.
        device: ``auto``, ``cpu`` or ``cuda``.
        chat_template_kwargs: Variables for the chat template, as in training.

    Raises:
        ValueError: The model cannot be loaded, its chat template cannot be used, or the engine does not serve it.
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
        loaded = load(ModelSection(path=model), lambda: (), max_context=0, seed=0)
        renderer = Renderer(loaded.tokenizer, template_kwargs=chat_template_kwargs)
        self._engine = TorchEngine(
            loaded.model,
            max_slots=concurrency,
            max_context=min(loaded.model.config.max_position_embeddings, _MOST_CONTEXT),
            device=resolve_device(device),
            dtype=getattr(torch, native_dtype(model, device)),
            stop_token_ids=renderer.stop_token_ids,
        )
        self._policy = EnginePolicy(
            self._engine, renderer, Sampling(temperature=temperature, max_new_tokens=max_response_length)
        )

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """A player that remembers its episode as tokens; ``Stopped`` where the model cannot use the tools."""
        try:
            self._policy.renderer.forms.check((user("x"),), tools_of(env))
        except ValueError as error:
            raise Stopped(str(error)) from error
        speaker = Speaker(self._policy, seed)

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            try:
                said = await speaker.reply(conversation, tools or None)
            except NoRoomError as error:
                raise OutOfContext(str(error)) from error
            except RendererError as error:
                raise PolicyFailure(str(error)) from error
            except EngineError as error:
                raise PolicyFailure(f"{type(error).__name__}: {error}") from error
            return Reply(
                said.text,
                prompt_tokens=said.prompt_tokens,
                completion_tokens=len(said.generation.token_ids),
                cut=said.generation.finish_reason == "length",
            )

        return play

    async def aclose(self) -> None:
        await self._engine.close()
