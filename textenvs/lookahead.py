"""The multiturn-aware reward of CollabLLM (Wu et al. 2025, arXiv 2502.00640), for any text environment.

When a turn has been played, the environment is forked; each fork plays some turns more, with the policy and with the
environment's own user; each whole conversation is scored; and the mean is the reward of that turn::

    result = await multiturn_aware_reward(env, policy, samples=3, window=2)
    result.reward, result.terms, result.metrics()

The live episode is not touched, and the futures are a function of its seed and its actions, as far as policy, user and
judge are. A future that fails is left out and counted; if all fail, an exception says so. docs/lookahead.md has the
formulas and their sources.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import gymnasium
import numpy as np

from .chat.errors import ChatFailure
from .env import FAILURE_STOPS, EnvironmentFailure, TextEnv, check_env, check_numbers
from .event_loop import settle, together, wait_for
from .messages import Message, Messages, copy_messages, visible_text
from .options import Judge, NonNegativeInt, Policy, PositiveInt, Price, Seconds, Weight, checked, resolve
from .play import Episode, play
from .scoring.conversation import COST, FORMULAS, INTERACTIVITY, Formula, estimate_tokens

#: Exceptions of policy, judge, user and tools that cost only the future they happen in.
FAILURES: tuple[type[Exception], ...] = (EnvironmentFailure, ChatFailure, OSError)


@dataclass(frozen=True)
class Future:
    """One conversation that a turn led to, scored."""

    conversation: Messages  # the whole of it
    scores: Mapping[str, float]
    interactivity: float | None  # the judge's grade; None without a judge
    length: int  # in the formula's unit
    turns: int  # that the policy played in it
    words: int  # of policy and user (or tools) in those turns
    over: bool  # whether the episode ended in it


@dataclass(frozen=True)
class MultiturnReward:
    """The reward of one turn (the sum of ``terms``), and what it cost to find."""

    reward: float
    terms: Mapping[str, float]  # task scores, "cost" and, with a judge, "interactivity"
    futures: tuple[Future, ...]  # the conversations it is the mean of
    samples: int  # how many were tried: 1 where there was nothing left to play
    failures: tuple[str, ...]  # why the others were left out
    policy_calls: int  # those of failed futures included

    def metrics(self) -> dict[str, float]:
        return {
            "lookahead_samples": float(self.samples),
            "lookahead_failures": float(len(self.failures)),
            "lookahead_policy_calls": float(self.policy_calls),
            "lookahead_turns": float(sum(future.turns for future in self.futures)),
            "lookahead_words": float(sum(future.words for future in self.futures)),
        }


#: Replies to one future's conversation; ``None`` ends that future, which is scored as it stands.
Player: TypeAlias = Callable[[Messages], "str | Message | None | Awaitable[str | Message | None]"]


@runtime_checkable
class FuturePolicy(Protocol):
    """A policy that keeps something for each future: its tokens, its random numbers."""

    def start(self, env: TextEnv[Any], seed: int) -> Player:
        """Return the player of a future in ``env``; its seed follows from the episode's and the actions."""


class _NoRoom(Exception):
    """The policy has no room for another reply."""


@dataclass(frozen=True)
class Played:
    """A future that was played, and not graded yet."""

    conversation: Messages  # the whole of it
    scores: Callable[[], Mapping[str, float] | Awaitable[Mapping[str, float]]]  # of :func:`conversation_scores`
    turns: int  # that the policy played in it
    over: bool  # whether the episode ended in it


#: ``play(asked, began)`` plays a future when it is awaited. It calls ``asked`` each time before it asks the policy, and
#: ``began`` once it has an environment: the time limit counts from there on.
PlayFuture: TypeAlias = Callable[[Callable[[], None], Callable[[], None]], Awaitable[Played]]


@checked
@dataclass(eq=False)
class Lookahead:
    """A way to look ahead, for any number of episodes at once: ``await lookahead(env)`` rewards the last turn."""

    #: Plays on: a plain or asynchronous callable from the conversation to a reply (text or an assistant message), or
    #: ``"module:name"`` of one. Or a :class:`FuturePolicy`, which learns where a future begins. ``None`` where futures
    #: are played elsewhere, and :meth:`reward` is asked alone.
    policy: Policy | FuturePolicy | str | None
    _: KW_ONLY
    samples: PositiveInt = 3  # how many futures are played
    window: NonNegativeInt = 2  # the policy's turns in each; 0 scores the conversation as it stands
    formula: str | Formula = "textenvs"  # one of :data:`FORMULAS` by name, or your own
    weights: Mapping[str, Weight] | None = None  # of the task scores and ``"interactivity"``; 1 where none is given
    cost: Price | None = None  # the price of a word or token, in place of the formula's
    #: Grades a conversation, for example its interactivity from 0 to 1: a plain or asynchronous callable from the
    #: conversation to a number, or ``"module:name"`` of one, such as ``InteractivityJudge("gpt-4o-mini").score``. It is
    #: shown what the user saw: no system message, no private reasoning.
    judge: Judge | str | None = None
    count_tokens: Callable[[str], int] | str | None = None  # for formulas that count the tokens of a text
    seed: NonNegativeInt = 0  # of the futures' randomness, beside that of the episode
    concurrency: PositiveInt | None = None  # futures at a time on one event loop, all episodes together
    #: A future that takes longer has failed; waiting for its turn, or for an environment, is not counted.
    timeout_s: Seconds | None = None
    #: The exceptions of policy, judge, user and tools that cost only the future they happen in. Others are taken for
    #: bugs, or for reasons to stop, and raised.
    failures: tuple[type[Exception], ...] = FAILURES

    def __post_init__(self) -> None:
        formula = self.formula
        if not isinstance(formula, Formula):
            if not isinstance(formula, str) or formula not in FORMULAS:
                raise ValueError(f"formula must be a Formula or one of {', '.join(FORMULAS)}, not {formula!r}")
            formula = FORMULAS[formula]
        if self.cost is not None:
            formula = dataclasses.replace(formula, rate=self.cost)
        if formula.unit == "tokens" and self.count_tokens is None:
            raise ValueError(
                f"formula {formula.name!r} counts tokens: give count_tokens, for example "
                "lambda text: len(tokenizer.encode(text)), or choose 'textenvs' or 'recipe', which count words"
            )
        self.formula = self._formula = formula
        is_resolved = self.policy is None or isinstance(self.policy, FuturePolicy)
        self._policy = self.policy if is_resolved else resolve("policy", self.policy)
        self._judge = None if self.judge is None else resolve("judge", self.judge)
        self._count = estimate_tokens if self.count_tokens is None else resolve("count_tokens", self.count_tokens)
        self.weights = dict(self.weights or {})
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_gates"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _gates=WeakKeyDictionary())

    def __call__(self, env: TextEnv[Any]) -> Coroutine[Any, Any, MultiturnReward]:
        """Return the reward of the last turn of ``env``; just after ``reset``, the value of the opening.

        The forks are taken now, so the episode may continue before the result is awaited.

        Raises:
            EnvironmentFailure: When awaited: all futures failed, or the episode itself had.
            ValueError: The episode, or when awaited a future, has several contexts. When awaited: scores that are no
                finite numbers or have no weight's name.
        """
        check_env("looking ahead", env)
        state = env.state
        if not state.messages:
            raise gymnasium.error.ResetNeeded(
                f"{type(env).__name__}: there is no episode to look ahead in; reset first"
            )
        _check_contexts(type(env).__name__, state.contexts)
        samples = self.count(over=state.done)
        # From a copy of the episode's randomness: drawing must not change the episode.
        episode = int(copy.deepcopy(env.np_random).integers(2**63))
        root = np.random.SeedSequence([self.seed, episode, state.assistant_turns])
        seeds = [int(seed) for seed in root.generate_state(samples)]
        forks = [env.fork(seed) for seed in seeds]
        for fork in forks:
            fork.render_mode = None  # what might be said is not what was said
        policy: Any = self._policy
        assert policy is not None  # or futures are played elsewhere
        players: list[Player] = [
            policy.start(fork, seed) if isinstance(policy, FuturePolicy) else policy
            for fork, seed in zip(forks, seeds, strict=True)
        ]
        plays = [partial(self._play, *pair) for pair in zip(forks, players, strict=True)]
        return self.reward(plays, state.messages, state.assistant_turns, state.stop)

    def count(self, *, over: bool) -> int:
        """Return the number of futures of a turn; one where there is nothing left to play."""
        return 1 if over or self.window == 0 else self.samples

    async def reward(
        self, plays: Sequence[PlayFuture], messages: Messages, turns: int, stop: str | None = None
    ) -> MultiturnReward:
        """Return the reward of a turn whose futures are played elsewhere.

        Args:
            plays: The futures, none of which has begun.
            messages: The conversation that they begin with.
            turns: Turns of the policy in it.
            stop: Why its episode is over, if it is.

        Raises:
            EnvironmentFailure: All futures failed, or the episode itself had.
            ValueError: Scores that have no weight's name, or other names than those of another future.
        """
        if stop in FAILURE_STOPS:
            raise EnvironmentFailure(stop, "the episode itself failed, so there is nothing to score")
        replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        played = replies[-turns:] if turns else [len(messages)]
        start = {"all": 0, "played": played[0], "future": played[-1]}[self._formula.scope]
        calls: list[None] = []  # one for each time that the policy was asked
        results = await together(*(self._guarded(play, len(messages), start, calls) for play in plays))
        futures = tuple(result for result in results if isinstance(result, Future))
        errors = [result for result in results if isinstance(result, Exception)]
        reasons = tuple(f"{type(error).__name__}: {error}" for error in errors)
        if not futures:
            stop = next((error.stop for error in errors if isinstance(error, EnvironmentFailure)), "judge_failed")
            raise EnvironmentFailure(stop, f"all {len(errors)} futures failed; the first: {reasons[0]}") from errors[0]
        names = set(futures[0].scores)
        if any(set(future.scores) != names for future in futures):
            raise ValueError(
                "conversation_score must return the same names every time, not "
                + " and ".join(str(sorted(future.scores)) for future in futures)
            )
        self._check_weights(names)
        terms = self._formula.terms(futures, self.weights or {})
        return MultiturnReward(math.fsum(terms.values()), terms, futures, len(plays), reasons, len(calls))

    async def _guarded(self, play: PlayFuture, begin: int, start: int, calls: list[None]) -> Future | Exception:
        clock: asyncio.Timeout | None = None
        try:
            async with self._gate(), asyncio.timeout(None) as clock:
                began = partial(self._start_clock, clock)
                return await self._graded(await play(partial(calls.append, None), began), begin, start)
        except Exception as error:
            if isinstance(error, TimeoutError) and clock is not None and clock.expired():
                return TimeoutError(f"the future took longer than {self.timeout_s:g} s")
            if isinstance(error, self.failures):
                return error
            raise

    def _start_clock(self, clock: asyncio.Timeout) -> None:
        if self.timeout_s is not None:
            clock.reschedule(asyncio.get_running_loop().time() + self.timeout_s)

    async def _graded(self, played: Played, begin: int, start: int) -> Future:
        conversation = played.conversation

        async def scored() -> Mapping[str, float]:
            return await settle(played.scores())

        scores, grade = await together(scored(), self._grade(_as_seen(conversation)))
        return Future(
            conversation=conversation,
            scores=scores,
            interactivity=grade,
            length=self._formula.length(conversation[start:], self._count),
            turns=played.turns,
            words=sum(len(visible_text(message).split()) for message in conversation[begin:]),
            over=played.over,
        )

    async def _play(
        self, fork: TextEnv[Any], player: Player, on_request: Callable[[], None], began: Callable[[], None]
    ) -> Played:
        began()

        async def reply(conversation: Messages) -> str | Message:
            on_request()
            answer = await settle(player(conversation))
            if answer is None:
                raise _NoRoom
            return answer

        episode = Episode()
        with suppress(_NoRoom):
            await play(fork, reply, resume=True, turns=self.window, episode=episode)
        if episode.failed:
            raise EnvironmentFailure(episode.info["stop"], episode.info["failure"])
        _check_contexts(type(fork).__name__, episode.contexts)
        return Played(episode.conversation, partial(conversation_scores, fork), len(episode.rewards), fork.state.done)

    async def _grade(self, conversation: Messages) -> float | None:
        if self._judge is None:
            return None
        grade = await settle(self._judge(conversation))
        if isinstance(grade, bool) or not isinstance(grade, (int, float, np.number)) or not math.isfinite(grade):
            raise ValueError(f"judge must return a finite number, not {grade!r}")
        return float(grade)

    async def check_weights(self, env: TextEnv[Any]) -> None:
        """Raise ``ValueError`` unless every weight has a score now; the judge is not asked."""
        check_env("looking ahead", env)
        self._check_weights(set(await conversation_scores(env)))

    def _check_weights(self, names: Set[str]) -> None:
        scored = names | ({INTERACTIVITY} if self.judge is not None else set())
        if unknown := set(self.weights or {}) - scored:
            raise ValueError(f"weights names {sorted(unknown)}, but what is scored is {sorted(scored)}")

    def _gate(self) -> asyncio.Semaphore:
        if self.concurrency is None:
            return asyncio.Semaphore()
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.concurrency))


def multiturn_aware_reward(
    env: TextEnv[Any], policy: Policy | FuturePolicy | str, **options: Any
) -> Coroutine[Any, Any, MultiturnReward]:
    """Return the multiturn-aware reward of the last turn of ``env``; see :class:`Lookahead`."""
    return Lookahead(policy, **options)(env)


async def conversation_scores(env: TextEnv[Any]) -> dict[str, float]:
    """Return :meth:`~textenvs.env.TextEnv.conversation_score` of the conversation as it stands.

    Raises:
        ValueError: It returned no named, finite numbers.
    """
    if env.blocking:
        scores = await asyncio.to_thread(lambda: wait_for(env.conversation_score()))
    else:
        scores = await settle(env.conversation_score())
    return checked_scores(scores, f"{type(env).__name__}.conversation_score")


def checked_scores(scores: Any, where: str) -> dict[str, float]:
    """Return the scores of a conversation as floats.

    Raises:
        ValueError: They are no finite numbers by name; ``where`` says whose they are.
    """
    if not isinstance(scores, Mapping) or not scores:
        raise ValueError(f"{where} must return named scores, for example {{'accuracy': 1.0}}, not {scores!r}")
    if reserved := {COST, INTERACTIVITY} & set(scores):
        raise ValueError(f"{where}: the names {sorted(reserved)} are those of other terms")
    numbers = {name: float(value) for name, value in scores.items()}
    check_numbers(f"{where}: the scores", numbers)
    return numbers


def _check_contexts(env: str, contexts: tuple[Messages, ...]) -> None:
    if contexts:
        raise ValueError(
            f"{env}: the multiturn-aware reward scores and measures one conversation, and this episode has left "
            f"{len(contexts)} of them (compaction, sub-agents); reward its turns in the environment"
        )


def _as_seen(messages: Messages) -> Messages:
    visible = []
    for message in copy_messages(messages):
        if message["role"] != "system":
            if message["role"] == "assistant":
                message["content"] = visible_text(message)
            message.pop("reasoning_content", None)
            visible.append(message)
    return tuple(visible)
