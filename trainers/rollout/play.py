"""One episode, from its first observation to a :class:`Trajectory`: observation -> tokens -> reply -> step -> ...

Whatever the environment or the engine does, an episode ends as a trajectory with a status; errors are data. Two things
are not: a dead engine, and an exception that neither the engine nor the environment is entitled to raise (a bug). Those
are raised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from textenvs.messages import Messages

from ..engines.base import Engine, EngineDeadError, EngineError, Generation, Sampling
from ..trajectory import Status, Trajectory
from .environments import Backend, EnvError, EnvTimeoutError, Lease
from .episode import EpisodeTokens
from .renderer import Renderer
from .tasks import derive_seed


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
    """

    episode_id: str
    group_id: str
    options: Mapping[str, Any]
    env_seed: int
    sampling: Sampling
    sampling_seed: int


@dataclass(frozen=True)
class _End:
    status: Status
    terminated: bool = False
    stop: str | None = None
    error: str | None = None


@dataclass
class _Progress:
    """How far an episode has come, for whoever has to end it."""

    tokens: EpisodeTokens | None = None
    messages: Messages = ()
    metrics: dict[str, float] = field(default_factory=dict)


class _TooSlowError(Exception):
    """A generation took longer than it may."""


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
        episode_timeout: Seconds for an episode, once it has its environment; ``None`` for no limit.

    Raises:
        ValueError: A limit that is not positive.
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
    ) -> None:
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
        self._name = f"{id(self):x}"  # two players of one engine must not share a session

    async def play(self, backend: Backend, episode: Episode) -> Trajectory:
        """Play ``episode`` in an environment of ``backend``.

        Raises:
            EngineDeadError: The engine is gone.
        """
        progress = _Progress()
        session = f"{self._name}/{episode.episode_id}"
        clock: asyncio.Timeout | None = None
        try:
            async with backend.lease() as env, asyncio.timeout(self.episode_timeout) as clock:
                end = await self._turns(env, episode, session, progress)
        except EnvTimeoutError as error:
            end = _End(Status.TRUNCATED_TIME, error=str(error))
        except EnvError as error:
            end = _End(Status.ERROR_ENV, error=str(error))
        except EngineDeadError:
            raise
        except EngineError as error:
            end = _End(Status.ERROR_ENGINE, error=f"{type(error).__name__}: {error}")
        except _TooSlowError as error:
            end = _End(Status.TRUNCATED_TIME, error=str(error))
        except TimeoutError:
            if clock is None or not clock.expired():
                raise
            end = _End(Status.TRUNCATED_TIME, error=f"the episode took longer than {self.episode_timeout:g} s")
        except Exception as error:
            error.add_note(f"in episode {episode.episode_id}, task_index {episode.options.get('task_index')}")
            raise
        finally:
            with contextlib.suppress(EngineError):
                await self.engine.release(session)
        return self._finish(episode, progress, end)

    async def _turns(self, env: Lease, episode: Episode, session: str, progress: _Progress) -> _End:
        conversation, info = await env.reset(episode.env_seed, episode.options)
        progress.messages = conversation
        tokens = progress.tokens = EpisodeTokens(
            self.renderer,
            conversation,
            episode_id=episode.episode_id,
            group_id=episode.group_id,
            task_key=str(info.get("task_key", "")),
            data_source=str(info.get("data_source", "")),
        )
        context = tokens.context
        limit = self._limit(len(context))
        stops = tuple(dict.fromkeys((*episode.sampling.stop_token_ids, *self.renderer.stop_token_ids)))
        turn = 0
        while (room := limit - len(context)) > 0:
            sampling = replace(
                episode.sampling,
                max_new_tokens=min(episode.sampling.max_new_tokens, room),
                stop_token_ids=stops,
                seed=derive_seed(episode.sampling_seed, turn),
            )
            generation = await self._generate(context, sampling, session)
            if generation.finish_reason == "abort":
                return _End(Status.ABORTED, error="the engine aborted the generation")
            conversation, reward, terminated, truncated, info = await env.step(tokens.reply(generation))
            tokens.reward(reward, _terms(info, reward))
            progress.messages = conversation
            progress.metrics.update(info.get("metrics") or {})
            stop = info.get("stop")
            if info.get("failed"):
                return _End(Status.ERROR_ENV, stop=stop, error=str(info.get("failure", stop)))
            if terminated:
                return _End(Status.COMPLETED, terminated=True, stop=stop)
            tokens.observe(conversation)
            if truncated:
                return _End(Status.TRUNCATED_TURNS, stop=stop)
            turn, context = turn + 1, tokens.context
        error = None if turn else f"the opening takes {len(context)} tokens, and the context has room for {limit}"
        return _End(Status.TRUNCATED_CONTEXT, error=error)

    async def _generate(self, context: list[int], sampling: Sampling, session: str) -> Generation:
        try:
            async with asyncio.timeout(self.generation_timeout) as clock:
                generation = await self.engine.generate(context, sampling, session)
        except TimeoutError:
            if not clock.expired():
                raise
            raise _TooSlowError(f"the generation took longer than {self.generation_timeout:g} s") from None
        if not len(generation.token_ids) and generation.finish_reason != "abort":
            raise EngineError(f"the engine returned no token, with finish_reason {generation.finish_reason!r}")
        return generation

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
    arrays = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id")
    return replace(trajectory, **{name: getattr(trajectory, name)[:keep] for name in arrays})
