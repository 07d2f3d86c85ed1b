"""State and end of an episode, and the rewards of its turns, shared by the modules that play it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any

from textenvs.messages import Messages, assistant
from textenvs.turn import EpisodeMessages, own_terms
from textenvs.users.moves import move_of, without_move

from ..trajectory import Status
from .environments import Backend, EnvError
from .episode_tokens import EpisodeTokens
from .forks import ForkPoint
from .rewards import PendingRewards
from .stats import Timeline


@dataclass(frozen=True)
class End:
    """The end of an episode, with its status and reason."""

    status: Status
    terminated: bool = False
    stop: str | None = None
    error: str | None = None
    cause: str | None = None

    def explained(self, info: Mapping[str, Any]) -> End:
        """Return this with the words that a step's ``info`` has for it (``reason``); they are counted by the stop."""
        if (reason := info.get("reason")) is None or self.cause is not None:
            return self
        return replace(self, error=str(reason), cause=str(self.stop))


@dataclass
class Progress:
    """Progress of an episode, for the code that ends it."""

    timeline: Timeline
    rewards: PendingRewards
    backend: Backend
    tokens: EpisodeTokens | None = None
    first_turn: int = 0  # the number of the turn that is the first of ``tokens``
    messages: Messages = ()  # the last observation
    episode: EpisodeMessages | None = None  # those of all contexts, where one role acts
    user_messages: Messages = ()
    roles: dict[str, EpisodeTokens] = field(default_factory=dict)  # of several: by name, first that which began
    refused: bool = False  # no message of that user was acceptable
    points: list[ForkPoint] = field(default_factory=list)
    scores: Mapping[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def observe(self, text: str, conversation: Messages, info: Mapping[str, Any]) -> Messages:
        """Record what a step returned; return the conversation that its reply ``text`` belongs to, with the reply."""
        assert self.episode is not None
        reply, closing = assistant(text), info.get("closing")
        own = (*self.messages, *(closing or [reply]))
        self.episode, self.messages = self.episode.step(reply, conversation, closing), conversation
        self.count(info, self.tokens)
        self.user_messages = info.get("user_messages", ())
        return own

    def count(self, info: Mapping[str, Any], tokens: EpisodeTokens | None) -> None:
        """Record the metrics of a step, and as the last turn's the user's move that they name."""
        metrics = dict(info.get("metrics") or {})
        try:
            move = move_of(metrics)
        except ValueError as error:
            raise EnvError(str(error), "no_such_move") from error
        self.metrics.update(without_move(metrics))
        if move is not None:
            assert tokens is not None
            tokens.name_move(tokens.num_turns - 1, move)

    def pay(self, earlier: Mapping[int, Mapping[str, float]], replayed: int) -> None:
        """Record what earlier turns of the environment are paid; ``replayed`` ones are no turns of this episode."""
        assert self.tokens is not None
        first = self.first_turn + replayed
        for number in (number for number in earlier if number >= first):
            if number - first >= self.tokens.num_turns - 1:
                raise EnvError(f"the environment pays turn {number} before or in that turn", "no_such_turn")
            self.tokens.add_reward(number - first, earlier[number])
            if self.rewards.replaces:
                correction = {"environment_not_counted": -sum(earlier[number].values())}
                self.tokens.add_reward(number - first, correction)


def paid_by(info: Mapping[str, Any], reward: float) -> tuple[float, Mapping[str, float], Mapping[int, Any]]:
    """Return the reward and the terms of a step's own turn, and the terms that it pays to earlier turns."""
    if "earlier" in info:
        own = own_terms(info)
        return fsum(own.values()), own, info["earlier"]
    terms = info.get("terms")
    return reward, terms if isinstance(terms, Mapping) and terms else {"reward": reward}, {}
