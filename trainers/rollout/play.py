"""One episode, from its first observation to a :class:`Trajectory`: observation -> tokens -> reply -> step -> ...

Whatever the environment or the engine does, an episode ends as a trajectory with a status; errors are data. Two things
are not: a dead engine, and an exception that neither the engine nor the environment is entitled to raise (a bug). Those
are raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from textenvs.messages import Messages

from ..engines.base import Engine, EngineDeadError, EngineError, Sampling
from ..trajectory import Status, Trajectory
from .environments import Backend, EnvError, EnvSpec, EnvTimeoutError, Lease
from .episode import EpisodeTokens
from .renderer import Renderer, Tools
from .rewards import PendingRewards, RewardError, Scores, TurnContext
from .tasks import derive_seed
from .timeline import Load, Timeline


@dataclass(frozen=True)
class Episode:
    """What to play.

    Args:
        episode_id: Unique within a run.
        group_id: Shared by the siblings of a group.
        options: For the environment's reset, for example ``{"task_index": 3}``.
        env_seed: For the environment's reset.
        sampling: How to sample; its own seed is not used.
        sampling_seed: Each turn's seed is derived from it and the turn's number.
        training: Whether it is for training; rewards that come later may leave others alone.
    """

    episode_id: str
    group_id: str
    options: Mapping[str, Any]
    env_seed: int
    sampling: Sampling
    sampling_seed: int
    training: bool = True


@dataclass(frozen=True)
class _End:
    status: Status
    terminated: bool = False
    stop: str | None = None
    error: str | None = None
    cause: str | None = None


@dataclass
class _Progress:
    """How far an episode has come, for whoever has to end it."""

    timeline: Timeline
    rewards: PendingRewards | None
    spec: EnvSpec
    tokens: EpisodeTokens | None = None
    messages: Messages = ()
    metrics: dict[str, float] = field(default_factory=dict)


class _TooSlowError(Exception):
    """A generation took longer than it may."""


class _AbortedError(Exception):
    """A weight update cut a reply that is not to go on."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class Player:
    """Plays episodes with one engine; any number at a time.

    Args:
        engine: What replies.
        renderer: Turns conversations into tokens; its stop tokens end a reply.
        max_context: Prompt and replies of an episode together have at most this many tokens; ``None`` for what the
            engine can hold, which is the limit in any case.
        max_response_tokens: At most this many tokens after the opening, those of the environment included (verl's
            ``max_response_length``); ``None`` for no limit but the context.
        generation_timeout: Seconds for one reply; ``None`` for no limit.
        episode_timeout: Seconds for an episode, once it has its environment; ``None`` for no limit. Rewards that come
            later have their own.
        partial: A reply that a weight update cut goes on from its tokens, under the new weights; otherwise its episode
            ends as aborted.
        partial_max_age: With ``partial``, an episode whose oldest token would then be more versions old than this ends
            as aborted all the same; ``None`` for no limit.
        scores: Rewards that come later.

    Raises:
        ValueError: A limit that is not positive, or ``partial_max_age`` without ``partial``.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        max_context: int | None = None,
        max_response_tokens: int | None = None,
        generation_timeout: float | None = None,
        episode_timeout: float | None = None,
        partial: bool = False,
        partial_max_age: int | None = None,
        scores: Scores | None = None,
    ) -> None:
        if partial_max_age is not None and (not partial or partial_max_age < 0):
            raise ValueError(f"partial_max_age={partial_max_age} needs partial=True, and must be at least 0")
        limits: dict[str, float | None] = {"max_context": max_context, "max_response_tokens": max_response_tokens}
        limits |= {"generation_timeout": generation_timeout, "episode_timeout": episode_timeout}
        for name, limit in limits.items():
            if limit is not None and limit <= 0:
                raise ValueError(f"{name} must be above 0 or None, not {limit}")
        self.engine = engine
        self.renderer = renderer
        self.max_context = engine.max_context if max_context is None else min(max_context, engine.max_context)
        self.max_response_tokens = max_response_tokens
        self.generation_timeout = generation_timeout
        self.episode_timeout = episode_timeout
        self.partial = partial
        self.partial_max_age = partial_max_age
        self._interruptions = 0  # beginnings and ends of updates that cut what is running
        self._interrupting = 0  # such updates now
        self._scores = scores
        self._newest = engine.version  # of the weights that are out, or on their way
        self._name = f"{id(self):x}"  # two players of one engine must not share a session

    @contextlib.contextmanager
    def interrupting(self, version: int) -> Iterator[None]:
        """Inside, the engine takes weights of this version, and cuts what is running."""
        self._interruptions += 1
        self._interrupting += 1
        self._newest = version
        try:
            yield
        finally:
            self._interruptions += 1
            self._interrupting -= 1

    def moment(self) -> int:
        """For :meth:`interrupted_since`."""
        return self._interruptions

    def interrupted_since(self, moment: int) -> bool:
        """Whether a weight update may have cut a request made at that moment or later."""
        return self._interruptions != moment or self._interrupting > 0

    async def play(self, backend: Backend, episode: Episode, timeline: Timeline | None = None) -> Trajectory:
        """Play ``episode`` in an environment of ``backend``.

        Args:
            backend: The environments.
            episode: What to play.
            timeline: Where to note what the time went on; it is closed at the end.

        Raises:
            EngineDeadError: The engine is gone.
        """
        timeline = timeline or Timeline(Load(1))
        rewards = None if self._scores is None else self._scores.open(timeline.lanes)
        progress = _Progress(timeline, rewards, backend.spec)
        end = None
        try:
            end = await self._whole(backend, episode, progress)
        finally:
            if rewards is not None:
                rewards.cancel()
            timeline.close("cancelled" if end is None else end.status.value, None if end is None else end.cause)
        return self._finish(episode, progress, end)

    async def _whole(self, backend: Backend, episode: Episode, progress: _Progress) -> _End:
        """The turns, then the rewards still awaited; whatever goes wrong is an end too."""
        session = f"{self._name}/{episode.episode_id}"
        clock: asyncio.Timeout | None = None
        try:
            try:
                progress.timeline.phase("queue")
                async with backend.lease() as env, asyncio.timeout(self.episode_timeout) as clock:
                    end = await self._turns(env, episode, session, progress, backend.tools)
                    progress.timeline.phase("own")
            finally:
                with contextlib.suppress(EngineError):
                    await self.engine.release(session)
            if progress.rewards is not None and end.status.trainable:
                await self._settle(progress.rewards, progress)
            return end
        except EnvTimeoutError as error:
            return _End(Status.TRUNCATED_TIME, error=str(error), cause=error.cause)
        except EnvError as error:
            return _End(Status.ERROR_ENV, error=str(error), cause=error.cause)
        except EngineDeadError:
            raise
        except EngineError as error:
            return _End(Status.ERROR_ENGINE, error=f"{type(error).__name__}: {error}", cause=type(error).__name__)
        except _TooSlowError as error:
            return _End(Status.TRUNCATED_TIME, error=str(error), cause="generation_timeout")
        except _AbortedError as error:
            return _End(Status.ABORTED, error=str(error), cause=error.cause)
        except RewardError as error:
            return _End(Status.ERROR_REWARD, error=str(error), cause=error.cause)
        except TimeoutError:
            if clock is None or not clock.expired():
                raise
            said = f"the episode took longer than {self.episode_timeout:g} s"
            return _End(Status.TRUNCATED_TIME, error=said, cause="episode_timeout")
        except Exception as error:
            error.add_note(f"in episode {episode.episode_id}, task_index {episode.options.get('task_index')}")
            raise

    async def _settle(self, rewards: PendingRewards, progress: _Progress) -> None:
        if rewards.pending:
            progress.timeline.phase("rewards")
        assert progress.tokens is not None  # or nothing would have been asked for
        for turn, terms in await rewards.settle():
            progress.tokens.add_reward(turn, terms)

    async def _turns(self, env: Lease, episode: Episode, session: str, progress: _Progress, tools: Tools) -> _End:
        enter = progress.timeline.phase
        enter("reset")
        conversation, info = await env.reset(episode.env_seed, episode.options)
        enter("own")
        progress.messages = conversation
        names: dict[str, Any] = {"episode_id": episode.episode_id, "group_id": episode.group_id}
        names |= {name: str(info.get(name, "")) for name in ("task_key", "data_source")}
        tokens = progress.tokens = EpisodeTokens(self.renderer, conversation, tools=tools, **names)
        opening = tokens.context_size
        limit = self._limit(opening)
        if opening >= limit:
            said = f"the opening takes {opening} tokens, and the context has room for {limit}"
            return _End(Status.TRUNCATED_CONTEXT, error=said, cause="no_room")
        for turn in itertools.count():
            cut_before = progress.timeline.cut
            text = await self._reply(episode, turn, limit, session, progress)
            response_tokens = tokens.context_size - opening
            enter("step")
            conversation, reward, terminated, truncated, info = await env.step(text)
            enter("own")
            terms = _terms(info, reward)
            tokens.reward(reward, terms)
            progress.messages = conversation
            progress.metrics.update(info.get("metrics") or {})
            stop = info.get("stop")
            if info.get("failed"):
                cause = str(stop or "env_failed")
                return _End(Status.ERROR_ENV, stop=stop, error=str(info.get("failure", stop)), cause=cause)
            end = None
            if terminated:
                end = _End(Status.COMPLETED, terminated=True, stop=stop)
            else:
                tokens.observe(conversation)
                if truncated:
                    end = _End(Status.TRUNCATED_TURNS, stop=stop)
                elif tokens.context_size >= limit:
                    end = _End(Status.TRUNCATED_CONTEXT)
            if progress.rewards is not None:
                so_far = TurnContext(
                    **names,
                    messages=conversation,
                    reply=text,
                    reward=reward,
                    terms=dict(terms),
                    over=end is not None,
                    stop=stop,
                    env=env.inline,
                    spec=progress.spec,
                    task_index=episode.options.get("task_index"),
                    training=episode.training,
                    response_tokens=response_tokens,
                    cut=progress.timeline.cut > cut_before,
                )
                progress.rewards.ask(so_far, turn)
            if end is not None:
                return end
        raise AssertionError("unreachable")

    async def _reply(self, episode: Episode, turn: int, limit: int, session: str, progress: _Progress) -> str:
        """The policy's words: one generation, or more where weight updates cut it and it may go on."""
        tokens, timeline = progress.tokens, progress.timeline
        assert tokens is not None
        stops = tuple(dict.fromkeys((*episode.sampling.stop_token_ids, *self.renderer.stop_token_ids)))
        left = min(episode.sampling.max_new_tokens, limit - tokens.context_size)
        seed = derive_seed(episode.sampling_seed, turn)
        timeline.phase("generate")
        try:
            async with asyncio.timeout(self.generation_timeout) as clock:
                for piece in itertools.count(1):
                    context, moment = tokens.context, self.moment()
                    sampling = replace(episode.sampling, max_new_tokens=left, stop_token_ids=stops, seed=seed)
                    generation = await self.engine.generate(context, sampling, session)
                    count = len(generation.token_ids)
                    timeline.generated(len(context), count, generation.metrics)
                    if generation.finish_reason != "abort":
                        if not count:
                            said = f"the engine returned no token, with finish_reason {generation.finish_reason!r}"
                            raise EngineError(said)
                        break
                    text = tokens.reply(generation)  # also where it does not go on: how long it was is measured
                    if not self.partial or not self.interrupted_since(moment):
                        raise _AbortedError("the engine aborted the generation", "aborted")
                    left -= count
                    if left <= 0:  # it was cut behind the last token that it could have
                        timeline.replied(cut=True)
                        return text
                    self._check_age(tokens)
                    # Not the seed of before: an engine may count its random numbers from a request's first token.
                    seed = derive_seed(episode.sampling_seed, turn, piece)
                    timeline.continued += 1
        except TimeoutError:
            if not clock.expired():
                raise
            raise _TooSlowError(f"the generation took longer than {self.generation_timeout:g} s") from None
        timeline.phase("own")
        timeline.replied(cut=generation.finish_reason == "length")
        return tokens.reply(generation)

    def _check_age(self, tokens: EpisodeTokens) -> None:
        oldest = tokens.oldest_version
        if oldest is None or self.partial_max_age is None or self._newest - oldest <= self.partial_max_age:
            return
        raise _AbortedError(
            f"its oldest token is {self._newest - oldest} versions old, more than partial_max_age="
            f"{self.partial_max_age}: it is played again",
            "too_old",
        )

    def _limit(self, opening: int) -> int:
        if self.max_response_tokens is None:
            return self.max_context
        return min(self.max_context, opening + self.max_response_tokens)

    def _finish(self, episode: Episode, progress: _Progress, end: _End) -> Trajectory:
        if progress.tokens is None:  # it did not even open
            return _nothing(episode, end)
        trajectory = progress.tokens.finish(
            terminated=end.terminated,
            truncated=not end.terminated,
            status=end.status,
            stop=end.stop,
            error=end.error,
            metrics=progress.metrics,
            messages=progress.messages,
        )
        return _cut(trajectory, self.max_context)


def _terms(info: Mapping[str, Any], reward: float) -> Mapping[str, float]:
    terms = info.get("terms")
    return terms if isinstance(terms, Mapping) and terms else {"reward": reward}


def _nothing(episode: Episode, end: _End) -> Trajectory:
    return Trajectory(
        token_ids=np.zeros(0, np.int32),
        action_mask=np.zeros(0, np.bool_),
        logprobs=np.zeros(0, np.float32),
        weight_version=np.zeros(0, np.int32),
        turn_id=np.zeros(0, np.int32),
        turn_rewards=np.zeros(0, np.float64),
        truncated=True,
        status=end.status,
        stop=end.stop,
        episode_id=episode.episode_id,
        group_id=episode.group_id,
        error=end.error,
    )


def _cut(trajectory: Trajectory, limit: int) -> Trajectory:
    """Leave out what the context cannot hold of the last observation: the model never saw it, and never could."""
    size = len(trajectory.token_ids)
    sampled = np.flatnonzero(trajectory.action_mask)
    keep = max(int(trajectory.segment_starts[-1]) + limit, int(sampled[-1]) + 1 if sampled.size else 0)
    if size <= keep:
        return trajectory
    arrays = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id", "kept_counts")
    return replace(trajectory, **{name: getattr(trajectory, name)[:keep] for name in arrays})
