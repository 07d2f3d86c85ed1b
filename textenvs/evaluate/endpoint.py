"""A model behind an OpenAI-compatible service as the policy of an evaluation."""

from __future__ import annotations

from typing import Any

from ..chat import BudgetExceeded, ChatClient, ChatFailure, ChatSpec, PromptTooLong
from ..env import TextEnv
from ..messages import Messages
from .policies import OutOfContext, Player, PolicyFailure, Reply, Stopped, ToolSchemas


class EndpointPolicy:
    """Every turn is one request: the conversation goes there, the reply comes back, and its tokens are counted.

    With ``request_seed`` every request has a seed, a function of the episode's and of the turn, so that a service that
    honours it answers alike when an evaluation is repeated. Some services refuse the field.
    """

    def __init__(self, spec: ChatSpec, *, request_seed: bool = True) -> None:
        self.client = ChatClient(spec)
        self.request_seed = request_seed

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        turns = 0

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            nonlocal turns
            turns += 1
            try:
                # A fresh answer: the same question in another episode is another sample.
                completion = await self.client.complete(
                    conversation,
                    tools=tools or None,
                    seed=(seed + turns) % 2**31 if self.request_seed else None,
                    sample=None,
                )
            except BudgetExceeded as error:
                raise Stopped(str(error)) from error
            except PromptTooLong as error:
                raise OutOfContext(str(error)) from error
            except ChatFailure as error:
                raise PolicyFailure(str(error)) from error
            usage = completion.usage
            return Reply(
                completion.message,
                prompt_tokens=None if usage is None else usage.input_tokens,
                completion_tokens=None if usage is None else usage.output_tokens,
                cut=completion.finish_reason == "length",
                cost=None if self.client.spec.price is None else completion.cost,
            )

        return play

    async def aclose(self) -> None:
        await self.client.aclose()
