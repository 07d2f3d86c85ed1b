"""Environments of other libraries as text environments: what all bridges to a running episode have in common.

The running episode (a game object, a connection) is no part of the state: the state has the conversation and the
task's seed. Where there is no running episode that has just come to the same point (after ``restore``, in a fork, in
another process), one is begun from the seed and played again, and what it says is held against the conversation.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ...data.endless import Endless
from ...env import EnvironmentFailure, EpisodeState, StepResult, TextEnv, Turn
from ...messages import Message, Messages, clean_messages, user
from ...task import SPLITS, Split, Task, TaskError


@dataclass(frozen=True)
class Answer:
    """What a foreign environment made of one reply.

    Args:
        messages: What it said.
        reward: The turn's reward.
        terminated: The task is over.
        truncated: A budget of the foreign environment ran out; never together with ``terminated``.
        stop: Why it is over.
        terms: The reward by named parts, where it says them; else it is one term, ``reward``.
        metrics: Numbers that are not reward.
    """

    messages: Messages = ()
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    stop: str | None = None
    terms: Mapping[str, float] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        return self.terminated or self.truncated


class Running(Protocol):
    """A foreign episode that runs. After an exception it is thrown away."""

    #: What it said first.
    opening: Messages

    def reply(self, message: Message) -> Answer:
        """Play one reply.

        Raises:
            EnvironmentFailure: It gave up, and the episode says nothing about the policy.
        """

    def close(self) -> None:
        """Release what it holds; safe to call twice."""


@dataclass
class ImportedState(EpisodeState):
    """Where the conversation begins: how many messages there were before the first reply."""

    opened: int = 0


RunningT = TypeVar("RunningT", bound=Running)


class Imported(TextEnv[ImportedState], Generic[RunningT]):
    """Base class of the bridges: define :meth:`begin`, and have tasks with an ``extra["seed"]`` (:class:`Seeds`)."""

    state_type = ImportedState
    blocking = True  # it may run anything
    _live: tuple[Task, Messages, RunningT] | None = None

    @abstractmethod
    def begin(self, seed: int) -> RunningT:
        """A new running episode: the same seed begins the same one, wherever it can.

        Raises:
            EnvironmentFailure: It could not be begun.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Without the running episode: a copy, a fork or another process plays it again."""
        return {**self.__dict__, "_live": None}

    def opening(self, task: Task) -> Sequence[Message]:
        """What the foreign environment says first."""
        self._drop()
        running = self.begin(seed_of(task))
        self._live = (task, (), running)
        return running.opening

    def respond(self, reply: Message) -> Turn:
        """Play the reply there, and pass on what it says."""
        state = self.state
        if state.assistant_turns == 1:
            state.opened = len(state.messages) - 1
        running, replies = self._take()
        try:
            answer = running.reply(reply)
            turn = _ImportedTurn(answer)
        except ValueError as error:  # terms that do not sum to the reward, a number that is none
            running.close()
            raise EnvironmentFailure("tool_failed", f"{self.tasks.name}: {error}") from error
        except BaseException:  # its state is unknown now
            running.close()
            raise
        if answer.done:
            running.close()
        else:
            assert state.task is not None
            self._live = (state.task, (*replies, reply), running)
        return turn

    def close(self) -> None:
        """Release the running episode, also a fork's own."""
        self._drop()
        super().close()

    async def aclose(self) -> None:
        """:meth:`close`, awaitable."""
        self._drop()
        await super().aclose()

    def _conclude(self, turn: Turn) -> StepResult:
        answer = turn.answer if isinstance(turn, _ImportedTurn) else None
        if answer is None or not answer.truncated:
            return super()._conclude(turn)
        state = self.state
        state.return_so_far += answer.reward
        state.messages = (*state.messages, *turn.messages)
        state.user_turns += any(message["role"] == "user" for message in turn.messages)
        state.truncated, state.stop = True, answer.stop or "truncated"
        return self._result(turn)

    def _take(self) -> tuple[RunningT, Messages]:
        """The running episode as it stood before the reply in hand, and the replies it has had."""
        state = self.state
        assert state.task is not None
        past = state.messages[state.opened : -1]
        replies = tuple(message for message in past if message["role"] == "assistant")
        live, self._live = self._live, None
        if live is not None:
            if live[0] is state.task and live[1] == replies:
                return live[2], replies
            live[2].close()
        running = self.begin(seed_of(state.task))
        try:
            opening = clean_messages(running.opening)
            if opening != state.messages[state.opened - len(opening) : state.opened]:
                raise _not_the_same(self, "its opening")
            said: Messages = ()
            for number, reply in enumerate(replies, start=1):
                said = (*said, reply, *clean_messages(running.reply(reply).messages))
                if said != past[: len(said)]:
                    raise _not_the_same(self, f"turn {number}")
        except BaseException:
            running.close()
            raise
        return running, replies

    def _drop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live[2].close()


class _ImportedTurn(Turn):
    """A turn that remembers what it was made of: an author's own may not report a budget."""

    answer: Answer

    def __init__(self, answer: Answer) -> None:
        super().__init__(
            messages=answer.messages,
            reward=answer.reward,
            terminated=answer.terminated,
            stop=(answer.stop or "done") if answer.terminated else None,
            terms=answer.terms,
            metrics=answer.metrics,
        )
        self.__dict__["answer"] = answer


@dataclass(frozen=True)
class Seeds(Endless):
    """The episodes of a foreign environment as an endless task set: one for every seed it may be begun with.

    A task only names its seed: what is said first comes from the environment itself. Seeds are drawn by a hash of
    ``seed`` and the task's index, the same on every machine, and are below 2**31, which every generator takes. Those of
    training and test tasks differ (even and odd). Two tasks of a set may come to the same seed, one in 2**30 pairs.

    Args:
        source: Which environment it is, in a word.
        seed: Another seed is another sequence. (Episodes are seeded by ``reset``.)
        split: ``"train"`` or ``"test"``.
    """

    source: str
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        self.check_choices()
        if self.seed < 0:
            raise ValueError(f"seed must be an integer of at least 0, not {self.seed!r}")

    @property
    def name(self) -> str:
        """Which episodes these are, in a line."""
        return f"{self.source} ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        digest = hashlib.blake2b(f"{self.seed}/{index}".encode(), digest_size=4).digest()
        drawn = int.from_bytes(digest, "big") >> 2
        return Task(
            key=f"{self.source}/{self.split}/{self.seed}/{index}",
            data_source=self.source,
            prompt=(user(f"{self.source}, number {index}"),),
            ground_truth=None,
            extra={"seed": 2 * drawn + SPLITS.index(self.split)},
        )


def seed_of(task: Task) -> int:
    """The seed that a task is begun with.

    Raises:
        TaskError: It names none.
    """
    seed = task.extra.get("seed")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise TaskError(f"task {task.key}: extra_info.seed must be an integer of at least 0, not {seed!r}")
    return seed


def _not_the_same(env: Imported[Any], where: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        "tool_failed",
        f"{env.tasks.name}: played again from its seed, it said something else ({where}); it can neither be forked nor "
        "restored",
    )
