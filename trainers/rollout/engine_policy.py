"""The engine's model as a policy outside of training, as ``textenvs evaluate --local`` plays it.

Token-exact like an episode in training: what was sampled is never tokenised again. (The replies that a conversation
begins with are.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textenvs.messages import Messages

from ..engines.base import Engine, Generation, Sampling
from .episode_tokens import EpisodeTokens
from .renderer import Renderer
from .seeds import derive_seed


class NoRoomError(Exception):
    """The conversation has outgrown the context."""


@dataclass(frozen=True)
class Reply:
    """A reply, as text and as the engine returned it, and the length of the context before it."""

    text: str
    prompt_tokens: int
    generation: Generation


@dataclass(frozen=True)
class EnginePolicy:
    """Conversations with an engine's model, any number at a time, each reply with the weights of that moment.

    The renderer's stop tokens end a reply; the ``seed`` of ``sampling`` is not used.
    """

    engine: Engine
    renderer: Renderer
    sampling: Sampling


class Speaker:
    """The policy in one conversation; the sampling follows from ``seed``."""

    def __init__(self, policy: EnginePolicy, seed: int) -> None:
        self._policy, self._seed = policy, seed
        self._tokens: EpisodeTokens | None = None

    async def reply(self, conversation: Messages, tools: Any = None) -> Reply:
        """Return the next reply; one that a weight update cut is sampled again from its start, by the new weights.

        ``conversation`` is all that the model is shown; what it has in common with earlier calls keeps its tokens. The
        chat template shows the ``tools`` (schemas) of the first call. Raises NoRoomError: the context is full;
        RendererError: the conversation does not fit the chat template; EngineError: the engine failed.
        """
        policy = self._policy
        if self._tokens is None:
            self._tokens = EpisodeTokens(policy.renderer, conversation, tools=tools)
        else:
            self._tokens.observe(conversation)
        size = self._tokens.context_size
        room = policy.engine.max_context - size
        if room <= 0:
            raise NoRoomError(f"{size} tokens, and there is room for {policy.engine.max_context}")
        seed = derive_seed(self._seed, "reply", self._tokens.num_turns)
        sampling = policy.sampling.of_reply(room, policy.renderer.stop_token_ids, seed)
        generation = await policy.engine.generate(self._tokens.context, sampling)
        while generation.finish_reason == "abort":
            generation = await policy.engine.generate(self._tokens.context, sampling)
        return Reply(self._tokens.reply(generation), size, generation)
