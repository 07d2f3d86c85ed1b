"""Policies: scripts of the environment itself, a function of the user's, or a model behind a service.

A :class:`Policy` is shared by all episodes of an evaluation; its state of one episode lives in the
:data:`Player` that :meth:`Policy.start` returns for it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from ..attack import Attack
from ..chat import BudgetExceeded, ChatClient, ChatFailure, ChatSpec, PromptTooLong
from ..env import TextEnv
from ..messages import Message, Messages
from ..options import Share, checked, resolve

#: The name of a family's script (:attr:`~textenvs.env.TextEnv.own_script`) among policies.
FAMILY_SCRIPT = "script"

#: Scripts of any environment: its scripted expert, its scripted careless replies, samples of its action space.
Script = Literal["expert", "careless", "random"]
SCRIPTS: tuple[Script, ...] = ("expert", "careless", "random")

ToolSchemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Reply:
    """A policy's reply in one turn, and its cost."""

    action: str | Message  # the assistant's text or message
    prompt_tokens: int | None = None  # tokens read; ``None`` where it is not known
    completion_tokens: int | None = None  # tokens written; ``None`` where it is not known
    cut: bool = False  # the reply ended because its length did
    cost: float | None = None  # in US dollars; ``None`` where it is not known
    notes: Any = None  # what the policy wants kept of this turn, as JSON


#: Replies to a conversation, given the schemas of the tools that may be called (none where the conversation itself says
#: how to call them).
Player = Callable[[Messages, ToolSchemas], Awaitable[Reply]]


class PolicyFailure(Exception):
    """The policy's infrastructure failed, for example its service: the episode failed, the policy did not."""


class OutOfContext(PolicyFailure):
    """The conversation has outgrown the model. After at least one reply that ends the episode, truncated."""


class Stopped(Exception):
    """The evaluation cannot continue (a budget is spent); the message has the cause. Finished episodes are kept."""


class Policy(Protocol):
    """Interface of a policy, which replies in any number of episodes at once."""

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """Return a player for the episode that ``env`` was reset to; only scripts use more than its conversation."""
        ...

    async def aclose(self) -> None:
        """Release the policy's resources; by default nothing."""
        return


class ScriptedPolicy(Policy):
    """The environment's own script, with the chance ``careless_rate``, at each turn, of its careless reply instead."""

    @checked
    def __init__(self, script: Script, *, careless_rate: Share = 0.0) -> None:
        self.script = script
        self.careless_rate = careless_rate

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        rng, space = np.random.default_rng([seed, 2]), copy.deepcopy(env.action_space)
        space.seed(seed)

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            hasty = self.careless_rate > 0 and rng.random() < self.careless_rate
            if self.script == "expert" and not hasty:
                return Reply(env.demonstration(rng))
            if self.script == "careless" or hasty:
                return Reply(env.careless_reply(rng))
            return Reply(space.sample())

        return play


class AttackPolicy(Policy):
    """An environment's attack or script, with conversations of the expert in other episodes for one that remembers."""

    def __init__(self, attack: Attack, rehearsed: Sequence[Messages] = ()) -> None:
        self.attack = attack
        self.rehearsed = rehearsed

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """Return a cheater for one episode; it does not see ``env``."""
        cheater = self.attack.start(np.random.default_rng([seed, 3]), self.rehearsed)

        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            return Reply(cheater(conversation))

        return play


class FunctionPolicy(Policy):
    """A function of the conversation, and of the tools' schemas if it takes a second argument; it may be ``async``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        parameters = inspect.signature(function).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._takes_tools = len(positional) > 1 or any(p.kind == p.VAR_POSITIONAL for p in parameters)

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        async def play(conversation: Messages, tools: ToolSchemas) -> Reply:
            reply = self.function(conversation, tools) if self._takes_tools else self.function(conversation)
            return Reply(await reply if inspect.isawaitable(reply) else reply)

        return play


class EndpointPolicy:
    """A model behind an OpenAI-compatible service: every turn is one request, and its tokens are counted.

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


def load_function(name: str) -> Callable[..., Any]:
    if not all(name.partition(":")):
        raise ValueError(f"a policy is {', '.join(SCRIPTS)} or module:function, not {name!r}")
    return resolve("policy", name)
