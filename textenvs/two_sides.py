"""An environment whose user speaks by ``step`` as well as its assistant, so that either side can be trained.

The environment has a user that a language model plays (:class:`~textenvs.users.llm.LLMUser`). Where that model would be
asked, the turn is taken back, and the request is the next observation; once the words are there, the same turn is
played again with them. An environment takes back a turn that raises, randomness included, so this is exact; checks and
judges before the user's words run once more for each of its messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Literal, TypeAlias

import numpy as np

from .chat.answer import Completion
from .chat.clients import client_for
from .chat.errors import ChatFailure, PromptTooLong
from .chat.spec import SpecLike
from .event_loop import wait_for
from .messages import Message, Messages, assistant
from .registry import make
from .turn import own_terms
from .users.base import HasUser
from .users.llm import instead

Side: TypeAlias = Literal["assistant", "user"]
#: What a turn earned: its number among the turns by ``step``, ``None`` where it is not one of these; and the terms.
Payment: TypeAlias = "tuple[int | None, Mapping[str, float]]"


class Cut(str):
    """Words that a limit of length ended: such a message of the user is refused, as of a service."""

    __slots__ = ()


class NeverAskedError(Exception):
    """The assistant ended the episode before its user had a turn."""


class _AskedError(Exception):
    """The user is to speak."""

    def __init__(self, request: Messages) -> None:
        super().__init__("the user's words are not there yet")
        self.request = request


class _Words:
    """In the place of the user's service: the words that are there, then :class:`_AskedError`."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = iter(words)

    def __repr__(self) -> str:
        return "the user that is trained"

    async def complete(self, messages: Sequence[Message], **options: Any) -> Completion:
        if (words := next(self._words, None)) is None:
            raise _AskedError(tuple(messages))
        return Completion(str(words), assistant(str(words)), "length" if isinstance(words, Cut) else "stop", None)


class TwoSides:
    """An environment (``id``, ``options``) in which ``step`` takes the words of the side whose turn it is.

    ``reset`` and ``step`` (and their async twins) return what those of :class:`~textenvs.env.TextEnv` do, with the
    conversation as the next speaker sees it: of the user, its instructions and goal first. ``info["role"]`` is that
    speaker, as in an environment with the roles ``assistant`` and ``user``. What a turn earned is paid as soon as it is
    known, by ``info["own_terms"]`` and ``info["earlier"]``, and adds up. ``info["refused"]`` says that the episode
    ended because no message of the user's would do.

    Args:
        id: Of the environment.
        options: Its arguments; its user is played by the caller of ``step``.
        user: Options of the user (:class:`~textenvs.users.llm.LLMUser`): ``prompt``, ``tries``, ``persona`` ...
        fixed: Who plays the assistant in the place of ``step``: ``"expert"``, the environment's own script, or the spec
            of a model. ``None``: ``step`` does.
        reward: What a message of the user's earns, as the term ``answer``: the reward of the assistant's turn that it
            answers, which its own words decide with (whether the talk is over, what they cost), and of those after it
            that no message of its own answers (tool calls, a last reply); or the negative of these (``"opposed"``).
            Without a message nothing is earned, so each turn's reward is earned once from the first message on.
            Of a shared reward above 0 it earns the share that the environment's rule recovers of what only the user
            knows (:attr:`~textenvs.users.base.UserView.recovered`): a code that only the two sides read is not paid.
        refused_cost: What a message that cannot be said costs, as the term ``refused``: it tells what it must not, says
            nothing, or was cut off.
    """

    def __init__(
        self,
        id: str,
        options: Mapping[str, Any],
        *,
        user: Mapping[str, Any],
        fixed: SpecLike | None = None,
        reward: Literal["shared", "opposed"] = "shared",
        refused_cost: float = 1.0,
    ) -> None:
        if options.get("compact") is not None:
            raise ValueError("compact is for a policy that is trained alone: leave it out, or train no user")
        self.env = make(id, **options, user={"model": "outside", "format": "text", **user})
        self.fixed, self.blocking = fixed, self.env.blocking
        self._sign, self._refused = 1.0 if reward == "shared" else -1.0, -refused_cost

    async def areset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        self._talk, info = await self.env.areset(seed=seed, options=None if options is None else dict(options))
        self._rng, self._seed = np.random.default_rng([seed or 0, 2]), seed or 0
        self._numbers: dict[Side, list[int | None]] = {"assistant": [], "user": []}
        self._steps = 0
        self._side: Side = "assistant"
        self._request: Messages = ()  # the user's last observation
        self._last: int | None = None  # the user's last message that was said
        if self.fixed is None:
            return self._talk, {**info, "role": self._side}
        _, _, terminated, truncated, after = await self._go_on([])
        if after.get("failed"):
            raise RuntimeError(f"{after['stop']}: {after['failure']}")
        if terminated or truncated:
            raise NeverAskedError(
                f"the fixed assistant ended the episode ({after['stop']}) before the user had a turn, so there is "
                "nothing to train: choose tasks in which the user is asked (ambiguous=1.0 of textenv/clarify)"
            )
        return self._request, {**info, "role": self._side}

    async def astep(self, action: str) -> Any:
        """Take the next words; a user's that were cut off are a :class:`Cut`."""
        payments: list[Payment] = []
        if self._side == "assistant":
            self._reply: str | Message = action
            self._words: list[str] = []
        else:
            self._words.append(action)
        self._numbers[self._side].append(self._steps)
        self._steps += 1
        result = await self._turn(payments)
        if self.fixed is not None and self._side == "assistant" and not (result[2] or result[3]):
            result = await self._go_on(payments)
        observation, _, terminated, truncated, info = result
        earlier: dict[int, dict[str, float]] = {}
        for number, parts in payments:
            if number is not None:
                terms = earlier.setdefault(number, {})
                terms.update({name: terms.get(name, 0.0) + value for name, value in parts.items()})
        terms = {}
        for parts in earlier.values():
            terms.update({name: terms.get(name, 0.0) + value for name, value in parts.items()})
        own = earlier.pop(self._steps - 1, {})
        info = {**info, "terms": terms, "own_terms": own, "earlier": earlier}
        return observation, fsum(terms.values()), terminated, truncated, info

    async def _go_on(self, payments: list[Payment]) -> Any:
        """Let the fixed assistant reply until the user is to speak."""
        while True:
            try:
                self._reply, self._words = await self._fixed_reply(), []
            except PromptTooLong:  # no failure: the trained side could fill that context, too
                info = {"stop": "assistant_no_room", "failed": False}
                return self._talk, 0.0, False, True, {**info, "role": self._side, "refused": False}
            except ChatFailure as failure:
                info = {"stop": "assistant_failed", "failed": True, "failure": str(failure)}
                return self._talk, 0.0, False, True, {**info, "role": self._side, "refused": False}
            self._numbers["assistant"].append(None)
            result = await self._turn(payments)
            if self._side == "user" or result[2] or result[3]:
                return result

    async def _fixed_reply(self) -> str | Message:
        if self.fixed == "expert":
            return self.env.demonstration(self._rng)
        assert self.fixed is not None
        client = await client_for(self.fixed)
        sample = (self._seed + len(self._numbers["assistant"])) % 2**31
        tools = getattr(self.env, "tools_not_in_prompt", None)
        return (await client.complete(self._talk, tools=tools or None, sample=sample)).message

    async def _turn(self, payments: list[Payment]) -> Any:
        """Play the assistant's turn with the user's words so far, as far as that goes."""
        spoke = self._numbers["user"][-1] if self._side == "user" else None
        token = instead.set(_Words(self._words))
        try:
            self._talk, reward, terminated, truncated, info = await self.env.astep(self._reply)
        except _AskedError as question:
            if (
                spoke is not None and question.request[1:] == self._request[1:]
            ):  # the same question again: the words were refused
                payments.append((spoke, {"refused": self._refused}))
            self._request, self._side = question.request, "user"
            return self._request, 0.0, False, False, {"role": "user", "refused": False}
        finally:
            instead.reset(token)
        refused = info["failed"] and info["stop"] == "user_failed" and spoke is not None
        if refused:
            payments.append((spoke, {"refused": self._refused}))
        if not info["failed"]:
            payments += [
                (self._numbers["assistant"][number], parts) for number, parts in info.get("earlier", {}).items()
            ]
            payments.append((self._numbers["assistant"][-1], own_terms(info)))
            self._last = self._last if spoke is None else spoke
            if self._last is not None:
                payments.append((self._last, {"answer": self._sign * reward * self._share(reward)}))
        self._side = "assistant"
        return self._talk, 0.0, terminated, truncated, {**info, "role": "assistant", "refused": refused}

    def _share(self, reward: float) -> float:
        """Return how much of the assistant's reward is the user's, too: all of a cost and of what it opposes."""
        if reward <= 0 or self._sign < 0 or not isinstance(self.env, HasUser):
            return 1.0
        return self.env.user_view().recovered

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        return wait_for(self.areset(seed=seed, options=options))

    def step(self, action: str) -> Any:
        return wait_for(self.astep(action))

    def close(self) -> None:
        self.env.close()

    async def aclose(self) -> None:
        await self.env.aclose()
