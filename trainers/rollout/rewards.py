"""Rewards that come later (reward models, judges, lookahead), awaited beside the next turns and not before them.

A score is called once a turn, right after the environment has answered, and returns at once: an awaitable of what the
turn earns beside the environment's reward, or ``None`` where it does not apply (a score of whole episodes answers
only where ``so_far.over``)::

    def helpful(so_far: TurnContext, turn: int) -> Awaitable[float] | None:
        return judge.score(so_far.episode) if so_far.over else None

    Collector(..., rewards={"helpful": helpful})

A number becomes the term of the score's name; a mapping of names to numbers, these terms. Both add to the turn's
reward, so that it stays the sum of its terms. Looking ahead is such a reward (:class:`MultiturnScore`). A
:class:`NamedMove` adds nothing: it says what the user did about the reply.

A score that raises, takes too long, or returns no finite number ends its episode with ``Status.ERROR_REWARD``, which is
played again; it is never a 0. ``CollectionError`` ends collecting.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from textenvs.env import LARGEST
from textenvs.lookahead import Lookahead, MultiturnReward, Played, PlayFuture
from textenvs.messages import Messages
from textenvs.text import quoted
from textenvs.users.moves import Move

from ..config.reward_model import MultiturnRewardSection
from ..engines.base import Sampling
from ..trajectory import EpisodeError, Status, is_reward
from .environments import EnvSpec
from .group_scheduler import CollectionError
from .stats import Timeline


@dataclass(frozen=True)
class TurnContext:
    """An episode as it stands after a turn."""

    episode_id: str  #: unique within a run
    group_id: str  #: shared by the siblings of a group
    task_key: str  #: the task's stable name
    data_source: str  #: the task's source
    messages: Messages  #: the conversation that the reply belongs to, as the environment returns it
    #: The messages of all conversations in the order of time (:class:`textenvs.turn.EpisodeMessages`), and the policy's
    #: replies in them, also of replayed turns. What is paid for a whole episode is computed from these.
    episode: Messages
    replies: Messages
    reply: str  #: the policy's reply of this turn
    reward: float  #: the environment's reward for it
    terms: Mapping[str, float]  #: the named parts of that
    over: bool  #: whether the episode ends with this turn, be it by the environment or by a budget of tokens
    stop: str | None  #: the environment's reason, if it is over
    #: Plays the episode on, in forks of it; ``None`` unless a score :attr:`needs_futures`
    futures: Futures | None = None
    spec: EnvSpec | None = None  #: how the environment is made; its ``tasks`` have the row that is played
    task_index: int | None = None  #: which of them, where the episode's options name one
    training: bool = True  #: whether it is an episode to train on; otherwise it is one of an evaluation
    #: Of all contexts, to the end of the reply, without those that each began with
    response_tokens: int = 0
    cut: bool = False  #: whether the reply had no end when it reached its limit of tokens
    replayed: int = 0  #: replies before its first turn, of an episode that begins in the middle of another one


class Futures(Protocol):
    """The episode as it stands after a turn, to be played on any number of times; it is not touched itself."""

    @property
    def over(self) -> bool: ...

    @property
    def rewards(self) -> PendingRewards:
        """The episode's pending rewards, one object as long as it is played."""

    async def play(
        self,
        number: int,
        turns: int,
        sampling: Sampling | None,
        on_reply: Callable[[], None],
        on_start: Callable[[], None],
    ) -> Played:
        """Play fork ``number``, of at most ``turns``; ``on_reply`` is called for each. Raises EpisodeError.

        ``on_start`` is called once it has an environment.
        """


@dataclass(frozen=True)
class NamedMove:
    """The move of the user about the turn's reply, in place of a reward; it is nothing that the turn earns."""

    move: Move


Earned: TypeAlias = float | Mapping[str, float] | NamedMove
#: ``score(so_far, turn)``; turns count from 0.
Score: TypeAlias = Callable[[TurnContext, int], Awaitable[Earned] | None]


class RewardError(EpisodeError):
    """A score raised, took too long, or returned no reward."""

    status = Status.ERROR_REWARD


class PendingRewards:
    """Requested rewards of one episode, from ``scores`` by name; ``root``: those of the episode it was forked from.

    ``timeout``: seconds from the turn until its reward must be there.
    """

    def __init__(
        self, scores: Mapping[str, Score], timeout: float | None, timeline: Timeline, root: PendingRewards | None = None
    ) -> None:
        self._scores, self._timeout, self._timeline, self.root = scores, timeout, timeline, root
        self.needs_futures = any(getattr(score, "needs_futures", False) for score in scores.values())
        #: Whether one of them stands in place of the environment's reward
        self.replaces = any(getattr(score, "replaces", False) for score in scores.values())
        self._tasks: dict[asyncio.Task[dict[str, float]], int] = {}  # with their turns, in the order of requests
        self.moves: dict[int, Move] = {}  #: what users did about replies, by turn, as far as it was named by now

    def ask(self, so_far: TurnContext, turn: int) -> None:
        """Request this turn's reward of every score, without waiting; RewardError where one refuses or has failed."""
        self._check()
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

    async def settle(self) -> list[tuple[int, dict[str, float]]]:
        """Wait for all rewards; return turns and terms in the order of requests. Raises RewardError."""
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._check()
        return [(turn, task.result()) for task, turn in self._tasks.items()]

    def __bool__(self) -> bool:
        return bool(self._scores)

    @property
    def pending(self) -> bool:
        return any(not task.done() for task in self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            if not task.cancel() and not task.cancelled():
                task.exception()  # mark as seen

    def _check(self) -> None:
        """Raise ``RewardError`` if a requested reward has failed."""
        for task, turn in self._tasks.items():
            if task.cancelled():
                raise RewardError(f"a reward of turn {turn} was cancelled from inside", "reward_raised")
            if task.done() and (problem := task.exception()) is not None:
                raise problem

    async def _wait(self, name: str, turn: int, awaitable: Awaitable[Earned], episode: str) -> dict[str, float]:
        with self._timeline.later(f"{episode} turn {turn}: {name}"):
            try:
                async with asyncio.timeout(self._timeout) as clock:
                    earned = await awaitable
            except Exception as error:
                if isinstance(error, TimeoutError) and clock.expired():
                    message = f"the reward {name!r} of turn {turn} took longer than {self._timeout:g} s"
                    raise RewardError(message, "reward_timeout") from None
                raise _failed(name, turn, error) from error
        if isinstance(earned, NamedMove):
            self.moves[turn] = earned.move
            return {}
        terms = dict(earned) if isinstance(earned, Mapping) else {name: earned}
        if not all(isinstance(term, str) and is_reward(value) for term, value in terms.items()):
            raise RewardError(
                f"the reward {name!r} of turn {turn} is {quoted(earned)}: it must be a finite number of at most "
                f"{LARGEST:g}, or a mapping of names to such numbers",
                "reward_nonsense",
            )
        return {term: float(value) for term, value in terms.items()}


def _leave(work: asyncio.Future[Any], _: object) -> None:
    work.cancel()


def _failed(name: str, turn: int, error: Exception) -> RewardError:
    trace = "".join(traceback.format_exception(error)).rstrip()
    return RewardError(f"the reward {name!r} of turn {turn} failed: {trace}", "reward_raised")


# ------------------------------------------------------------------------------------------------ looking ahead


class MultiturnScore:
    """The multiturn-aware reward as a :data:`Score`, in training alone: futures are played beside the episode.

    Futures are forks (:class:`Futures`), played by the engine's model of that moment. See :mod:`textenvs.lookahead`;
    the ``lookahead`` is without a policy. They sample by ``sampling``, ``None`` as the episodes do.

    With ``credit=value`` each turn earns its multiturn-aware reward, an estimate of what the whole conversation will be
    worth: it is the turn's return already, and must not be added up over turns (a discount of 0 over turns). With
    ``difference`` it earns what it changed in that estimate; an episode's rewards then sum to the score of the
    conversation that it became. ``replace``: in place of the environment's reward, not beside it: a term
    ``environment_not_counted`` takes that away.
    """

    needs_futures = True

    def __init__(
        self, lookahead: Lookahead, section: MultiturnRewardSection | None = None, sampling: Sampling | None = None
    ) -> None:
        section = section or MultiturnRewardSection()
        self._lookahead, self._credit, self._replace = lookahead, section.credit, section.replace
        self._sampling, self.replaces = sampling, section.replace
        # The estimates on the way of each episode, by turn.
        self._before: WeakKeyDictionary[PendingRewards, dict[int, asyncio.Task[MultiturnReward]]] = WeakKeyDictionary()
        self._counts: Counter[str] = Counter()

    def __call__(self, so_far: TurnContext, turn: int) -> Awaitable[Mapping[str, float]] | None:
        """Return the turn's terms, to be awaited; ``None`` in evaluation."""
        if not so_far.training:
            return None
        futures = so_far.futures
        assert futures is not None  # requested by `needs_futures`
        replies = so_far.replayed + turn + 1
        ahead = asyncio.ensure_future(self._lookahead.reward(self._plays(futures), so_far.messages, replies))
        before = None
        if self._credit == "difference":
            estimates = self._before.setdefault(futures.rewards, {})
            estimates[turn] = ahead
            if turn > 0 and (before := estimates.get(turn - 1)) is None:  # the first turn of a fork
                assert futures.rewards.root is not None
                before = self._before[futures.rewards.root][turn - 1]
        terms = asyncio.ensure_future(self._terms(ahead, before, so_far.reward))
        terms.add_done_callback(lambda _: ahead.cancel())  # also when it was cancelled before its first line
        return terms

    def _plays(self, futures: Futures) -> list[PlayFuture]:
        lookahead = self._lookahead

        def play(number: int) -> PlayFuture:
            return lambda on_reply, on_start: futures.play(number, lookahead.window, self._sampling, on_reply, on_start)

        return [play(number) for number in range(lookahead.count(over=futures.over))]

    def stats(self) -> dict[str, float]:
        """Return the counts since the last call: ``turns``, ``samples``, ``failures``, ``policy_calls``, ``words``."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in ("turns", "samples", "failures", "policy_calls", "words")}

    async def _terms(
        self, ahead: asyncio.Task[MultiturnReward], before: asyncio.Task[MultiturnReward] | None, env_reward: float
    ) -> Mapping[str, float]:
        result = await ahead
        self._counts["turns"] += 1
        self._counts["samples"] += result.samples
        self._counts["failures"] += len(result.failures)
        self._counts["policy_calls"] += result.policy_calls
        self._counts["words"] += sum(future.words for future in result.futures)
        terms = dict(result.terms)
        if before is not None:
            earlier = (await asyncio.shield(before)).terms
            terms = {name: term - earlier.get(name, 0.0) for name, term in terms.items()}
        if self._replace and env_reward:
            terms["environment_not_counted"] = -env_reward
        return terms
