"""A chat service that speaks OpenAI's protocol, as something to evaluate. It cannot train, and says so.

Such a service takes messages and gives text. Training needs the ids of the tokens that were sampled, each one's
log-probability and weight version, and a way to new weights; text made into tokens again is not what was sampled. So
this is no :class:`trainers.engines.base.Engine`: it has the part of one that an evaluation needs, and refuses the rest
with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from textenvs.chat import ChatClient, SpecLike
from textenvs.messages import Message
from trainers.engines.base import EngineError, Generation, Sampling, UpdateMode

_REASON = (
    "an OpenAI-compatible service gives text, without token ids and without a way to new weights, so nothing can be "
    "trained on it; train with engine.name=torch, vllm or sglang, and evaluate such a service with `textenvs evaluate`"
)


def refuse_training() -> NoReturn:
    """Say why not.

    Raises:
        EngineError: Always.
    """
    raise EngineError(_REASON)


class OpenAICompatibleEngine:
    """A service to evaluate: messages in, a message out.

    ``textenvs evaluate --base-url`` plays whole environments with the same client; this is for code that has engines.

    Args:
        spec: The service and the model, see :class:`textenvs.chat.ChatSpec`.

    Raises:
        ValueError: A bad spec, or no key where one is needed.
        ImportError: The extra ``chat`` is not installed.
    """

    def __init__(self, spec: SpecLike) -> None:
        self._client = ChatClient(spec)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> str:
        """What the model says next.

        Args:
            messages: The conversation.
            sampling: Its temperature, its ``max_new_tokens`` and its seed are sent. The services have no common way to
                say the rest, so the rest must be as it is by default.

        Raises:
            ValueError: A field of ``sampling`` that cannot be sent.
            ChatFailure: No answer after the retries.
        """
        plain = Sampling()
        for name in ("top_p", "top_k", "min_p", "stop_token_ids", "ignore_stop"):
            if getattr(sampling, name) != getattr(plain, name):
                raise ValueError(f"an OpenAI-compatible service cannot be told {name}={getattr(sampling, name)!r}")
        answer = await self._client.complete(
            messages, temperature=sampling.temperature, max_tokens=sampling.max_new_tokens, seed=sampling.seed
        )
        return answer.text

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """Refused: there are no token ids.

        Raises:
            EngineError: Always.
        """
        refuse_training()

    async def update_weights(self, weights: Any, version: int, mode: UpdateMode = "keep") -> None:
        """Refused: the weights are somebody else's.

        Raises:
            EngineError: Always.
        """
        refuse_training()

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.aclose()
