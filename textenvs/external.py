"""Environments whose episodes run elsewhere: a program, a connection, a rollout of another library.

The running episode is no part of the state: the state has the task, the replies, and a digest of the answer to each.
Where there is no running episode that has just come to the same point (after ``restore``, in a fork, in another
process), one is begun from the task and the replies are played again; its answers are compared with the digests.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from .env import EnvironmentFailure, EpisodeState, StepResult, TextEnv, Turn
from .messages import Message, Messages, clean_messages, clean_text
from .task import Task
from .turn import payment


class Answer(Turn):
    """An episode's answer to one reply: a turn that may also say which budget ran out elsewhere (``cut``).

    A turn that was cut has no next observation, so no context (``ValueError``). ``reason`` says in words why the
    episode ends, where its stop needs them; they are in ``info["reason"]``.
    """

    cut: str | None
    reason: str | None

    def __init__(self, *, cut: str | None = None, reason: str | None = None, **turn: Any) -> None:
        super().__init__(**turn)
        if cut is not None and self.context is not None:
            raise ValueError(f"a turn that ends by {cut!r} has no next observation, so no context")
        self.__dict__["cut"], self.__dict__["reason"] = cut, None if reason is None else clean_text(reason)


class Running(Protocol):
    """An episode that runs; ``opening`` are its first messages. After an exception it is thrown away.

    ``reply`` raises ``EnvironmentFailure`` where the episode says nothing about the policy. ``close`` may come twice.
    """

    opening: Messages

    def reply(self, message: Message) -> Answer: ...

    def close(self) -> None: ...


@dataclass
class ExternalState(EpisodeState):
    """The replies so far, and digests of the opening and of the answer to each reply."""

    shared: ClassVar[tuple[str, ...]] = (*EpisodeState.shared, "replies", "digests")

    replies: Messages = ()
    digests: tuple[bytes, ...] = ()


ExternalStateT = TypeVar("ExternalStateT", bound=ExternalState)


class ExternalEnv(TextEnv[ExternalStateT]):
    """Base class of environments whose episodes run elsewhere: define :meth:`begin`."""

    state_type: ClassVar[type[EpisodeState]] = ExternalState
    blocking = True  # it may run anything
    _live: tuple[Task, Messages, Running] | None = None

    @abstractmethod
    def begin(self, task: Task) -> Running:
        """Begin an episode: the same task begins the same one, where that is possible."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_live": None}

    def opening(self, task: Task) -> Sequence[Message]:
        self._drop()
        running = self.begin(task)
        self._live = (task, (), running)
        self.state.digests = (_digest(clean_messages(running.opening)),)
        return running.opening

    def respond(self, reply: Message) -> Turn:
        state = self.state
        running = self._take()
        try:
            answer = running.reply(reply)
        except BaseException as error:  # its state is unknown now
            running.close()
            if isinstance(error, ValueError):  # of Turn: terms that do not sum to the reward, a number that is none
                raise EnvironmentFailure("tool_failed", f"{self.tasks.name}: {error}") from error
            raise
        state.replies, state.digests = (*state.replies, reply), (*state.digests, _digest_of(answer))
        if answer.terminated or answer.cut:
            running.close()
        else:
            self._live = (self.task, state.replies, running)
        return answer

    def close(self) -> None:
        self._drop()
        super().close()

    def _conclude(self, turn: Turn) -> StepResult:
        if not isinstance(turn, Answer) or turn.cut is None:
            result = super()._conclude(turn)
            if self.state.done:  # a budget ran out
                self._drop()
            if isinstance(turn, Answer) and turn.reason is not None:
                result[-1]["reason"] = turn.reason
            return result
        state = self.state
        reward, terms = payment(turn, state.assistant_turns - 1)
        state.return_so_far += reward
        state.messages = (*state.messages, *turn.messages)
        state.user_turns += any(message["role"] == "user" for message in turn.messages)
        state.truncated, state.stop = True, turn.cut
        return self._result(turn, reward, terms)

    def _running(self) -> Running:
        """Return the running episode, which waits for the next reply; it is played again where there is none."""
        running = self._take()
        self._live = (self.task, self.state.replies, running)
        return running

    def _take(self) -> Running:
        """Return the running episode before the current reply, one that has received the earlier replies."""
        state = self.state
        if self._live is not None:
            task, replies, running = self._live
            if task is self.task and replies == state.replies:
                self._live = None
                return running
            self._drop()
        running = self.begin(self.task)
        try:
            self._compare("its opening", _digest(clean_messages(running.opening)), state.digests[0])
            for number, reply in enumerate(state.replies, start=1):
                self._compare(f"turn {number}", _digest_of(running.reply(reply)), state.digests[number])
        except BaseException:
            running.close()
            raise
        return running

    def _compare(self, where: str, replayed: bytes, before: bytes) -> None:
        if replayed != before:
            played = f"{self.tasks.name}: played again, it said something else ({where})"
            raise EnvironmentFailure("tool_failed", f"{played}; it can neither be forked nor restored")

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live[2].close()


def _digest_of(answer: Answer) -> bytes:
    """Return a digest of what is said to a reply, to whom, and whether that is the end; rewards may differ."""
    return _digest(answer.messages, answer.context, answer.role, over=answer.terminated or answer.cut is not None)


def _digest(
    messages: Messages, context: Messages | None = None, role: str | None = None, *, over: bool = False
) -> bytes:
    text = json.dumps([messages, context, role, over], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
