"""Rewards that come later (reward models, judges, looking ahead), awaited beside the next turns and not before them.

A score is asked once a turn, right after the environment has answered, and returns at once: an awaitable of what the
turn earns beside the environment's reward, or ``None`` where it has nothing to say (a score of whole episodes answers
only where ``so_far.over``)::

    def helpful(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        return judge.score(so_far.messages) if so_far.over else None

    Collector(..., rewards={"helpful": helpful})

A number becomes the term of the score's name; a mapping of names to numbers, these terms. Both add to the turn's
reward, so that it stays the sum of its terms. Looking ahead is such a reward (:mod:`trainers.rollout.multiturn`).

A score that raises, takes too long, or returns no finite number ends its episode with ``Status.ERROR_REWARD``, which is
played again like one whose environment failed. It is never a 0. One that raises ``CollectionError`` when it is asked
ends collecting.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from textenvs.env import LARGEST
from textenvs.messages import Messages
from textenvs.text import quoted

from ..trajectory import is_reward
from .group_scheduler import CollectionError
from .timeline import loop_time
from .trace import Lane

if TYPE_CHECKING:
    from .environments import EnvSpec


@dataclass(frozen=True)
class TurnContext:
    """An episode as it stands after a turn.

    Args:
        episode_id: Unique within a run.
        group_id: Shared by the siblings of a group.
        task_key: The task's stable name.
        data_source: The task's source.
        messages: The whole conversation, as the environment tells it.
        reply: What the policy said in this turn.
        reward: What the environment gave for it.
        terms: The named parts of that.
        over: Whether the episode ends with this turn, be it by the environment or by a budget of tokens.
        stop: The environment's word for why, if it is over.
        env: The environment itself, to be forked and never stepped; ``None`` unless it runs inline.
        spec: How the environment is made; its ``tasks`` have the row that is played.
        task_index: Which of them, where the episode was asked to play one.
        training: Whether it is an episode to train on; otherwise it is one of an evaluation.
        response_tokens: From the opening to the end of the reply, those of the environment included: what
            ``max_response_tokens`` limits.
        cut: Whether the reply had no end when it reached its limit of tokens.
    """

    episode_id: str
    group_id: str
    task_key: str
    data_source: str
    messages: Messages
    reply: str
    reward: float
    terms: Mapping[str, float]
    over: bool
    stop: str | None
    env: Any = None
    spec: EnvSpec | None = None
    task_index: int | None = None
    training: bool = True
    response_tokens: int = 0
    cut: bool = False


Earned: TypeAlias = float | Mapping[str, float]
#: ``score(so_far, turn)``; turns count from 0.
Score: TypeAlias = Callable[[TurnContext, int], Awaitable[Earned] | None]


class RewardError(Exception):
    """A score raised, took too long, or returned no reward; ``cause`` is which, in one word."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Scores:
    """The scores of a run.

    Args:
        scores: By name.
        timeout: Seconds from the turn until its reward must be there; ``None`` for no limit.

    Raises:
        ValueError: A score that cannot be called, or a timeout that is not positive.
    """

    def __init__(self, scores: Mapping[str, Score], timeout: float | None = None) -> None:
        for name, score in scores.items():
            if not callable(score):
                raise ValueError(f"rewards[{name!r}] must be a function score(so_far, turn), not {score!r}")
        if timeout is not None and timeout <= 0:
            raise ValueError(f"reward_timeout must be above 0 or None, not {timeout}")
        self.scores = dict(scores)
        self.timeout = timeout

    def open(self, lanes: Callable[[str], Lane] | None = None) -> PendingRewards:
        """For one episode; ``lanes`` give a reward its place in a trace."""
        return PendingRewards(self.scores, self.timeout, lanes)


class PendingRewards:
    """The rewards of one episode that were asked for."""

    def __init__(self, scores: Mapping[str, Score], timeout: float | None, lanes: Callable[[str], Lane] | None) -> None:
        self._scores = scores
        self._timeout = timeout
        self._lanes = lanes
        self._tasks: dict[asyncio.Task[dict[str, float]], int] = {}  # with their turns, in the order asked

    def ask(self, so_far: TurnContext, turn: int) -> None:
        """Ask every score for this turn's reward, and do not wait.

        Raises:
            RewardError: A score refuses at once, or one that was asked before has failed.
            CollectionError: A score says that it will score none.
        """
        self.check()
        for name, score in self._scores.items():
            try:
                awaitable = score(so_far, turn)
            except CollectionError:  # no episode could be scored
                raise
            except Exception as error:
                raise _failed(name, turn, error) from error
            if awaitable is not None:
                task = asyncio.ensure_future(self._wait(name, turn, awaitable, so_far.episode_id))
                if isinstance(awaitable, asyncio.Future):  # which runs by itself, awaited or not
                    task.add_done_callback(partial(_leave, awaitable))
                self._tasks[task] = turn

    def check(self) -> None:
        """Raise ``RewardError`` if a reward that was asked for has failed."""
        for task, turn in self._tasks.items():
            if task.cancelled():
                raise RewardError(f"a reward of turn {turn} was cancelled from inside", "reward_raised")
            if task.done() and (problem := task.exception()) is not None:
                raise problem

    async def settle(self) -> list[tuple[int, dict[str, float]]]:
        """Wait for all of them; the terms and the turns they belong to, in the order asked.

        Raises:
            RewardError: One has failed; the others are not waited for.
        """
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self.check()
        return [(turn, task.result()) for task, turn in self._tasks.items()]

    @property
    def pending(self) -> bool:
        """Whether one is still awaited."""
        return any(not task.done() for task in self._tasks)

    def cancel(self) -> None:
        """Nobody needs them any more."""
        for task in self._tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # mark as seen

    async def _wait(self, name: str, turn: int, awaitable: Awaitable[Earned], episode: str) -> dict[str, float]:
        began = loop_time()
        lane = None if self._lanes is None else self._lanes(f"{episode} turn {turn}: {name}")
        try:
            async with asyncio.timeout(self._timeout) as clock:
                earned = await awaitable
        except TimeoutError as error:
            if not clock.expired():
                raise _failed(name, turn, error) from error
            raise RewardError(
                f"the reward {name!r} of turn {turn} took longer than {self._timeout:g} s", "reward_timeout"
            ) from None
        except Exception as error:
            raise _failed(name, turn, error) from error
        finally:
            if lane is not None:
                lane.close(began, loop_time(), {})
        return _terms(name, turn, earned)


def _leave(work: asyncio.Future[Any], _: object) -> None:
    work.cancel()


def _failed(name: str, turn: int, error: Exception) -> RewardError:
    told = "".join(traceback.format_exception(error)).rstrip()
    return RewardError(f"the reward {name!r} of turn {turn} failed: {told}", "reward_raised")


def _terms(name: str, turn: int, earned: Any) -> dict[str, float]:
    terms = dict(earned) if isinstance(earned, Mapping) else {name: earned}
    for term, value in terms.items():
        if not isinstance(term, str) or not is_reward(value):
            raise RewardError(
                f"the reward {name!r} of turn {turn} is {quoted(earned)}: it must be a finite number of at most "
                f"{LARGEST:g}, or a mapping of names to such numbers",
                "reward_nonsense",
            )
    return {term: float(value) for term, value in terms.items()}
