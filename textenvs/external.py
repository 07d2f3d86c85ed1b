"""Environments whose episodes run elsewhere: a program, a connection, a rollout of another library.

The running episode is no part of the state: the state has the conversation and the task. Where there is no running
episode that has just come to the same point (after ``restore``, in a fork, in another process), one is begun from the
task and the replies are played again; its messages are compared with the conversation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from .env import EnvironmentFailure, EpisodeState, StepResult, TextEnv, Turn
from .messages import Message, Messages, clean_messages
from .task import Task


class Answer(Turn):
    """An episode's answer to one reply: a turn that may also say which budget ran out elsewhere (``cut``)."""

    cut: str | None

    def __init__(self, *, cut: str | None = None, **turn: Any) -> None:
        super().__init__(**turn)
        self.__dict__["cut"] = cut


class Running(Protocol):
    """An episode that runs; ``opening`` are its first messages. After an exception it is thrown away.

    ``reply`` raises ``EnvironmentFailure`` where the episode says nothing about the policy. ``close`` may come twice.
    """

    opening: Messages

    def reply(self, message: Message) -> Answer: ...

    def close(self) -> None: ...


@dataclass
class ExternalState(EpisodeState):
    """The number of messages before the first reply."""

    opened: int = 0


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
        return running.opening

    def respond(self, reply: Message) -> Turn:
        state = self.state
        if state.assistant_turns == 1:
            state.opened = len(state.messages) - 1
        running, replies = self._take(state.opened, state.messages[state.opened : -1])
        try:
            answer = running.reply(reply)
        except BaseException as error:  # its state is unknown now
            running.close()
            if isinstance(error, ValueError):  # of Turn: terms that do not sum to the reward, a number that is none
                raise EnvironmentFailure("tool_failed", f"{self.tasks.name}: {error}") from error
            raise
        if answer.terminated or answer.cut:
            running.close()
        else:
            self._live = (self.task, (*replies, reply), running)
        return answer

    def close(self) -> None:
        self._drop()
        super().close()

    async def aclose(self) -> None:
        self._drop()
        await super().aclose()

    def _conclude(self, turn: Turn) -> StepResult:
        if not isinstance(turn, Answer) or turn.cut is None:
            result = super()._conclude(turn)
            if self.state.done:  # a budget ran out
                self._drop()
            return result
        state = self.state
        state.return_so_far += turn.reward or 0.0
        state.messages = (*state.messages, *turn.messages)
        state.user_turns += any(message["role"] == "user" for message in turn.messages)
        state.truncated, state.stop = True, turn.cut
        return self._result(turn)

    def _running(self) -> Running:
        """Return the running episode, which waits for the next reply; it is played again where there is none."""
        state = self.state
        opened = state.opened if state.assistant_turns else len(state.messages)
        running, replies = self._take(opened, state.messages[opened:])
        self._live = (self.task, replies, running)
        return running

    def _take(self, opened: int, past: Messages) -> tuple[Running, Messages]:
        """Return the running episode after ``opened`` messages and ``past``, and the replies that it has received."""
        replies = tuple(message for message in past if message["role"] == "assistant")
        if self._live is not None:
            task, had, running = self._live
            if task is self.task and had == replies:
                self._live = None
                return running, replies
            self._drop()
        running = self.begin(self.task)
        try:
            opening = clean_messages(running.opening)
            self._compare("its opening", opening, self.state.messages[opened - len(opening) : opened])
            replayed: Messages = ()
            for number, reply in enumerate(replies, start=1):
                replayed = (*replayed, reply, *clean_messages(running.reply(reply).messages))
                self._compare(f"turn {number}", replayed, past[: len(replayed)])
        except BaseException:
            running.close()
            raise
        return running, replies

    def _compare(self, where: str, replayed: Messages, before: Messages) -> None:
        if replayed != before:
            played = f"{self.tasks.name}: played again, it said something else ({where})"
            raise EnvironmentFailure("tool_failed", f"{played}; it can neither be forked nor restored")

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live[2].close()
