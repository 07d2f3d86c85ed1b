"""The interface between environments and simulated users, scripted or LLM.

A user is immutable: what it remembers is the conversation, and what it decides by chance comes from the environment's
own generator. So one user serves any number of episodes, and forks of an episode.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from ..event_loop import settle
from ..messages import Message, Messages, clean_text, visible_conversation, visible_text
from ..words import standing
from .guard import numbers_in
from .manners import PLAIN, Manner

GoalT = TypeVar("GoalT")
GoalT_contra = TypeVar("GoalT_contra", contravariant=True)


@dataclass(frozen=True)
class UserTurn:
    """A user's message."""

    text: str  # empty only where it ends the conversation without any words
    ends: bool = False  # it leaves: this is the end of the conversation
    why: str | None = None  # why it leaves, as ``info["stop"]`` will say; given when ``ends``, and only then
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: The conversation from the side of a model that plays the user, with what it replied to last; for records.
    side: Messages = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", clean_text(self.text).strip())
        if not self.text and not self.ends:
            raise ValueError("UserTurn: a user who stays must say something")
        if self.ends != bool(self.why):
            raise ValueError(f"UserTurn: ends={self.ends} and why={self.why!r}; a user who leaves says why, no other")


class SimulatedUser(Protocol[GoalT_contra]):
    """A user: its goal is its own, and it sees of a conversation what a person would."""

    def speak(
        self, conversation: Messages, goal: GoalT_contra, rng: np.random.Generator
    ) -> UserTurn | Awaitable[UserTurn]:
        """Answer the assistant's last words, or open the conversation when it is empty.

        Args:
            conversation: What was said so far, as :func:`~textenvs.messages.visible_conversation` gives it.
            goal: What this user wants. Only the user sees it.
            rng: All chance comes from here.

        Raises:
            EnvironmentFailure: ``"user_failed"``: the user gave up.
        """
        ...


@dataclass(frozen=True)
class Fact:
    """Something that only the user knows at first, for reports on what it gives away and when.

    Args:
        name: Unique in an episode.
        saying: A text that states it.
        tells: Whether a text states it; called with the text, and with all that was said before.
        named: Whether a sentence that asks is about it; ``None`` where telling it is always a leak, as of the answer.
    """

    name: str
    saying: str
    tells: Callable[[str, str], bool]
    named: Callable[[str], object] | None = None


@dataclass(frozen=True)
class UserView:
    """The state of an environment's user, scripted or not: its goal, its conversation, its progress."""

    goal: str  # the text that a model gets which plays this user
    talk: Messages  # the conversation as far as the user sees it
    manner: str = ""  # how it behaves, in words; empty for a plain one
    disclosed: int = 0  # how many of the things that must be asked for it has told
    values: Sequence[str] = ()  # words that state a fact, beside numbers, true or not
    #: The share of what only it knows, and a right outcome needs, that a rule recovers from its messages, from 0 to 1.
    recovered: float = 1.0
    #: What it holds back until it is asked for it, in the whole episode, told or not.
    facts: Sequence[Fact] = ()
    #: Whether it has accepted something as settled that its goal does not want so.
    conceded: bool = False
    behavior: Manner = PLAIN  # the strengths of its manner

    def foreign(self, text: str) -> bool:
        """Return whether a message states a value that neither the goal, the opening nor the assistant states."""
        return bool(self._foreign(text))

    def contradicts(self, text: str) -> bool:
        """Return whether a message states such a value and does not correct itself: no value of the goal follows."""
        foreign = self._foreign(text)
        own = self._stated(self.goal)
        return bool(foreign) and not any(
            value in own for value, place in self._stated(text).items() if place > foreign[-1]
        )

    def _foreign(self, text: str) -> list[int]:
        """Return the positions of such values, in order."""
        texts = [self.goal]
        for message in self.talk:
            if message["role"] == "assistant" or len(texts) == 1:  # what the user says later may be what it made up
                texts.append(visible_text(message))
        known_values = {value for part in texts for value in self._stated(part)}
        if re.search(r"\bone\b", " ".join(texts).lower()):
            known_values.add("1")
        return sorted(place for value, place in self._stated(text).items() if value not in known_values)

    def _stated(self, text: str) -> dict[str, int]:
        """Return the values in a text, with the position of each one's last occurrence."""
        lowered = text.lower()
        places = {value: list(standing(value).finditer(lowered)) for value in {word.lower() for word in self.values}}
        return {value: matches[-1].start() for value, matches in places.items() if matches} | numbers_in(text)


@dataclass(frozen=True)
class Entitled:
    """The limits of a user's answer to a reply."""

    asks: bool  # whether the reply asks for something that the user has not told yet
    problem: Callable[[str], str | None]  # what is wrong with a message that tells too much; else ``None``
    most: int | None = None  # how many facts the answer tells at most; ``None`` for any number
    free: int = 0  # how many facts it may tell that no question names: the answer to an open question
    evadable: bool = False  # whether a manner may leave the reply unanswered, to be asked again

    def guard(self, view: UserView) -> Callable[[str], str | None]:
        """Return a check of messages by a model that plays the user: what is wrong with a message, else ``None``.

        A message is wrong if it tells too much, or states a false value.
        """

        def wrong(text: str) -> str | None:
            return self.problem(text) or ("it states a value that is not yours" if view.contradicts(text) else None)

        return wrong


@runtime_checkable
class HasUser(Protocol):
    """An environment whose user holds something back until it is asked for it."""

    def user_view(self) -> UserView:
        """Return the user's view of the episode so far."""
        ...

    def user_may(self, reply: Message) -> Entitled:
        """Return what the user may say to ``reply``, which comes next (or was just added to the conversation)."""
        ...


async def take_turn(
    user: SimulatedUser[GoalT], messages: Messages, goal: GoalT, rng: np.random.Generator, *, tools: bool = False
) -> UserTurn:
    """Get the user's next message, showing it no more of the conversation than it may see.

    ``tools`` says whether it sees tool calls and their results; ``rng`` is the environment's (``self.np_random``).
    """
    turn = await settle(user.speak(visible_conversation(messages, tools=tools), goal, rng))
    if not isinstance(turn, UserTurn):
        raise TypeError(f"{type(user).__name__}.speak must return a UserTurn, not {type(turn).__name__}")
    return turn
