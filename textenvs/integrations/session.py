"""One episode, message by message: the core that every adapter is a shell of."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ..env import EnvironmentFailure, StepResult, TextEnv
from ..messages import Message, Messages, copy_messages, text_of
from .spec import EpisodeSpec


def text_of_all(messages: Messages) -> str:
    """The texts of messages, for hosts that have one text for them."""
    return "\n\n".join(map(text_of, messages))


@dataclass(frozen=True)
class SessionTurn:
    """What an environment made of one reply: ``messages`` is what it said, ``info`` as ``step`` gives it."""

    messages: Messages
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def outcome(self) -> dict[str, Any]:
        """What hosts keep of a turn beside its reward."""
        ends = {"terminated": self.terminated, "truncated": self.truncated}
        return ends | {"stop": self.info["stop"], "terms": dict(self.info["terms"])}

    @property
    def text(self) -> str:
        return text_of_all(self.messages)


class Session:
    """Plays one environment, an episode at a time, and keeps what happened.

    Plain and awaitable methods come in pairs, as in the environment; an environment that may block its thread gets one
    of asyncio's own for the awaitable ones. After an exception out of :meth:`reply` the episode is as it was before,
    and the reply may be tried again.

    Args:
        env: The environment; closed with the session, or when the session is collected: many hosts never close.

    Attributes:
        turns: The turns of the running episode.
        info: What ``reset`` said of the task.
    """

    def __init__(self, env: TextEnv[Any]) -> None:
        self.env = env
        self.turns: list[SessionTurn] = []
        self.info: Mapping[str, Any] = {}
        self._messages: Messages = ()
        self._close = weakref.finalize(self, env.close)

    @classmethod
    def of(cls, spec: EpisodeSpec) -> tuple[Self, Messages]:
        """A session with the episode of ``spec`` begun, and its opening messages."""
        session = cls(spec.make())
        try:
            return session, session.start(spec.seed, spec.options)
        except BaseException:
            session.close()
            raise

    @classmethod
    async def aof(cls, spec: EpisodeSpec) -> tuple[Self, Messages]:
        session = cls(spec.make())
        try:
            return session, await session.astart(spec.seed, spec.options)
        except BaseException:
            await session.aclose()
            raise

    @property
    def messages(self) -> Messages:
        """The whole conversation so far, as a copy."""
        return copy_messages(self._messages)

    @property
    def done(self) -> bool:
        return bool(self.turns) and self.turns[-1].done

    @property
    def turn_rewards(self) -> list[float]:
        return [turn.reward for turn in self.turns]

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return sum(self.turn_rewards)

    @property
    def terms(self) -> dict[str, float]:
        """The named parts of the reward, each summed over the turns."""
        total: Counter[str] = Counter()
        for turn in self.turns:
            total.update(turn.info["terms"])
        return dict(total)

    @property
    def stop(self) -> str | None:
        """Why the episode is over; ``None`` while it runs."""
        return self.turns[-1].info["stop"] if self.turns else None

    @property
    def failed(self) -> bool:
        """Whether a simulator, judge or tool gave up, so that the episode says nothing about the policy."""
        return bool(self.turns) and bool(self.turns[-1].info["failed"])

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def check(self) -> None:
        """For hosts that have no place for a failed episode: a reward of 0 would be a lie.

        Raises:
            EnvironmentFailure: A simulator, judge or tool gave up.
        """
        if self.failed:
            raise EnvironmentFailure(str(self.stop), str(self.turns[-1].info.get("failure", "no reason given")))

    def start(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Messages:
        """Begin an episode, and give its opening messages; raises what ``reset`` raises."""
        return self._opened(*self.env.reset(seed=seed, options=None if options is None else dict(options)))

    async def astart(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Messages:
        if self.env.blocking:
            return await asyncio.to_thread(self.start, seed, options)
        return self._opened(*await self.env.areset(seed=seed, options=None if options is None else dict(options)))

    def reply(self, action: str | Message) -> SessionTurn:
        """Play the assistant's reply: its raw text, or a message; raises what ``step`` raises."""
        return self._played(self.env.step(action))

    async def areply(self, action: str | Message) -> SessionTurn:
        if self.env.blocking:
            return await asyncio.to_thread(self.reply, action)
        return self._played(await self.env.astep(action))

    def close(self) -> None:
        """Release what the environment holds; safe to call twice."""
        self._close()

    async def aclose(self) -> None:
        if self._close.detach():
            await self.env.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _opened(self, messages: Messages, info: Mapping[str, Any]) -> Messages:
        self.turns, self.info, self._messages = [], info, messages
        return copy_messages(messages)

    def _played(self, result: StepResult) -> SessionTurn:
        conversation, reward, terminated, truncated, info = result
        said = conversation[len(self._messages) + 1 :]  # one message of it is the reply
        self._messages = conversation
        self.turns.append(SessionTurn(copy_messages(said), reward, terminated, truncated, info))
        return self.turns[-1]
