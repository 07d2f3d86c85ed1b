"""One episode, from its first observation to a :class:`Trajectory`: observation -> tokens -> reply -> step -> ...

An episode ends as a trajectory with a status, whatever environment or engine do. Raised are a dead engine, and an
exception that neither of them is entitled to raise (a bug).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from textenvs.lookahead import Played
from textenvs.messages import Messages, assistant, clean_text
from textenvs.privileged import Privilege, with_privileged
from textenvs.turn import EpisodeMessages, has_success

from ..chat_template import RendererError
from ..config.rollout import RolloutSection
from ..engines.base import Engine, EngineDeadError, EngineError, Generation, Sampling
from ..trajectory import EpisodeError, Status, Trajectory
from .contexts import without_unseen
from .curriculum import Start, context_digest
from .environments import Backend, EnvError, Lease
from .episode_tokens import EpisodeTokens
from .forks import ForkPoint
from .group_scheduler import CollectionError
from .progress import End, Progress, paid_by
from .renderer import Renderer
from .rewards import PendingRewards, Score, TurnContext
from .roles import USER, RolePlay
from .seeds import derive_seed
from .stats import Load, Timeline


@dataclass(frozen=True)
class Episode:
    """An episode to play."""

    episode_id: str  #: unique within a run
    group_id: str  #: shared by the siblings of a group
    options: Mapping[str, Any]  #: for the environment's reset, for example ``{"task_index": 3}``
    env_seed: int  #: for the environment's reset
    sampling: Sampling  #: how to sample; its own seed is not used
    sampling_seed: int  #: each turn's seed is derived from it and the turn's number
    training: bool = True  #: whether it is for training; rewards that come later may skip other episodes
    begin: ForkPoint | None = None  #: where a fork begins, in place of a reset
    start: Start | None = None  #: where the episode begins, otherwise than at its opening; its seed is ``env_seed``
    #: Turns of a *future*, which is played to be scored (:class:`~trainers.rollout.rewards.Futures`): it begins with
    #: randomness of ``env_seed``, no reward comes later in it, and the environment scores its conversation. ``None``
    #: for an episode.
    window: int | None = None
    #: Number of forks to make of this episode before its reply at a turn; ``None`` for none
    forks: Callable[[int], int] | None = None


def sampling_of(rollout: RolloutSection) -> Sampling:
    """Return how training samples a reply."""
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_new_tokens=rollout.max_response_length,
        return_kept=rollout.keep_sampling_mask,
    )


_NOT_EXACT = (
    "what the environment says is no function of its seed and the replies (is a model its user, a clock its limit?), "
    "so no episode can begin in the middle of one. Set env.curriculum.reverse_share=0"
)


_SWITCHED = (
    "the multiturn-aware reward scores one conversation, and this episode has left one (compaction, sub-agents): set "
    "multiturn_reward.enable=false, and reward its turns in the environment"
)


class _TooSlowError(EpisodeError):
    """A generation took longer than it may."""

    status = Status.TRUNCATED_TIME


class FutureError(EpisodeError):
    """A future failed, and gives no estimate for the turn that it was played for."""

    def __init__(self, status: Status, message: str, cause: str) -> None:
        super().__init__(f"{status.value}: {message}", cause)
        self.status = status


class _AbortedError(EpisodeError):
    """A weight update cut a reply that does not continue."""

    status = Status.ABORTED


class Player:
    """Plays episodes with one engine, any number at a time.

    Args:
        engine: The engine that samples replies.
        renderer: The renderer of the engine's model.
        rollout: Limits of an episode; those of groups, and how to sample, are not read.
        rewards: Rewards that come later, by name.
        reward_timeout: Seconds from a turn until such a reward must be there; ``None`` for no limit.
        privileged: What of the environment a teacher sees and the policy does not: asked for before each reply of an
            episode for training, and kept with the episode's tokens alone. ``None``: nothing.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        rollout: RolloutSection = RolloutSection(),  # noqa: B008 (it is frozen)
        rewards: Mapping[str, Score] | None = None,
        reward_timeout: float | None = 600.0,
        privileged: Privilege | None = None,
    ) -> None:
        self.engine, self.renderer, self.rollout = engine, renderer, rollout
        self._privileged = privileged
        self._rewards, self._reward_timeout = dict(rewards or {}), reward_timeout
        for name, score in self._rewards.items():
            if not callable(score):
                raise ValueError(f"rewards[{name!r}] must be a function score(so_far, turn), not {score!r}")
        self._interruptions = 0  # beginnings and ends of updates that cut what is running
        self._interrupting = 0  # such updates now
        self._newest = engine.version  # of the weights that are out, or on their way
        self._name = f"{id(self):x}"  # two players of one engine must not share a session

    @contextlib.contextmanager
    def interrupting(self, version: int) -> Iterator[None]:
        """Mark that the engine takes weights of this version and cuts what is running, until the block ends."""
        self._interruptions += 1
        self._interrupting += 1
        self._newest = version
        try:
            yield
        finally:
            self._interruptions += 1
            self._interrupting -= 1

    def moment(self) -> int:
        return self._interruptions

    def interrupted_since(self, moment: int) -> bool:
        """Return whether a weight update may have cut a request made at that moment or later."""
        return self._interruptions != moment or self._interrupting > 0

    async def play(
        self,
        backend: Backend,
        episode: Episode,
        timeline: Timeline | None = None,
        points: list[ForkPoint] | None = None,
        roles: dict[str, Trajectory] | None = None,
    ) -> Trajectory:
        """Play ``episode`` in an environment of ``backend``; ``timeline`` records the time of each phase.

        ``points`` gets the states to fork it in, where it ends well; the engine then keeps what it computed until
        :meth:`release`. ``roles`` gets the trajectories of all roles by their names, first the one that is
        returned, where the policy plays several (:attr:`textenvs.env.TextEnv.roles`): the same episode, each in a group
        of its own.
        """
        timeline = timeline or Timeline(Load(1))
        root = None if episode.begin is None else episode.begin.rewards
        rewards = PendingRewards(self._rewards, self._reward_timeout, timeline, root)
        progress = Progress(timeline, rewards, backend)
        end = None
        try:
            end = await self._whole(episode, progress)
        finally:
            rewards.cancel()
            timeline.close("cancelled" if end is None else end.status.value, None if end is None else end.cause)
            if points is not None and end is not None and end.status.trainable:
                points += progress.points
            if not points and (progress.points or rewards.needs_futures):
                await self.release(episode.episode_id)
        if roles is None and episode.training and len(progress.roles) > 1:
            raise ValueError(f"{', '.join(progress.roles)} all act in {backend.spec.target}; only one is expected here")
        trajectory = self._finish(episode, progress, end)
        if roles is None or not progress.roles:
            return trajectory
        main, *partner_roles = progress.roles
        roles[main] = trajectory
        for role in partner_roles:
            if (tokens := progress.roles[role]).num_turns:
                completed = End(Status.COMPLETED, terminated=True, stop=end.stop)  # rewarded: no message would do
                refused = progress.refused and role == USER
                roles[role] = self._finished(tokens, episode, completed if refused else end)
        return trajectory

    async def play_future(
        self, backend: Backend, future: Episode, on_reply: Callable[[], None], on_start: Callable[[], None], over: bool
    ) -> Played:
        """Play a future, again where a weight update cut it; ``on_reply`` is called for each reply. EpisodeError.

        ``on_start`` is called once it has an environment. ``over``: the episode that it begins in is over.
        """
        async with backend.lease() as env:
            on_start()
            while True:
                progress = Progress(timeline := Timeline(Load(1)), PendingRewards({}, None, timeline), backend)
                end = await self._whole(future, progress, env)
                turns = 0 if progress.tokens is None else progress.tokens.num_turns
                for _ in range(turns):
                    on_reply()
                if end.status is not Status.ABORTED:
                    break
        if not end.status.trainable:
            raise FutureError(end.status, end.error or end.stop or "no reason given", end.cause or "")
        over = over or end.terminated or end.stop is not None
        return Played(progress.messages, lambda: progress.scores, turns, over)

    async def release(self, episode_id: str) -> None:
        """Let the engine forget what it computed for this episode."""
        with contextlib.suppress(EngineError):
            await self.engine.release(f"{self._name}/{episode_id}")

    async def _whole(self, episode: Episode, progress: Progress, leased: Lease | None = None) -> End:
        """Play the turns, then await the pending rewards; a failure is returned as an end, too."""
        session = f"{self._name}/{episode.episode_id}"
        clock: asyncio.Timeout | None = None
        try:
            try:
                progress.timeline.phase("queue")
                lease = progress.backend.lease() if leased is None else contextlib.nullcontext(leased)
                async with lease as env, asyncio.timeout(self.rollout.episode_timeout_s) as clock:
                    end = await self._turns(env, episode, session, progress)
                    if episode.window is not None and end.status.trainable:
                        progress.scores = await env.conversation_score()
                    progress.timeline.phase("own")
            finally:
                if not progress.points and not progress.rewards.needs_futures:
                    await self.release(episode.episode_id)
                for role in list(progress.roles)[1:]:
                    await self.release(f"{episode.episode_id}/{role}")
            if end.status.trainable:
                await self._settle(progress)
            return end
        except EpisodeError as error:
            return End(error.status, error=str(error), cause=error.cause)
        except RendererError as error:  # of this conversation: the template can render others, or there would be no run
            return End(Status.ERROR_ENV, error=str(error), cause="not_shown")
        except EngineDeadError:
            raise
        except EngineError as error:
            return End(Status.ERROR_ENGINE, error=f"{type(error).__name__}: {error}", cause=type(error).__name__)
        except TimeoutError:
            if clock is None or not clock.expired():
                raise
            message = f"the episode took longer than {self.rollout.episode_timeout_s:g} s"
            return End(Status.TRUNCATED_TIME, error=message, cause="episode_timeout")
        except Exception as error:
            error.add_note(f"in episode {episode.episode_id}, task_index {episode.options.get('task_index')}")
            raise

    async def _settle(self, progress: Progress) -> None:
        if progress.rewards.pending:
            progress.timeline.phase("rewards")
        for turn, terms in await progress.rewards.settle():
            assert progress.tokens is not None  # or no reward would have been requested
            progress.tokens.add_reward(turn - progress.first_turn, terms)
        for turn, move in progress.rewards.moves.items():
            assert progress.tokens is not None
            if turn - progress.first_turn not in progress.tokens.moves:  # the environment knows its own user
                progress.tokens.name_move(turn - progress.first_turn, move)

    async def _turns(self, env: Lease, episode: Episode, session: str, progress: Progress) -> End:
        enter = progress.timeline.phase
        enter("reset")
        if episode.begin is None:
            conversation, info = await env.reset(episode.env_seed, episode.options)
            enter("own")
            if "role" in info:
                return await self._roles(env, episode, session, progress, conversation, info)
            point = await self._open(env, episode, progress, conversation, _names(episode, info))
        else:
            point = await _restore(env, episode, episode.begin)
        enter("own")
        tokens, limit = point.tokens, point.limit
        progress.tokens, progress.episode, progress.first_turn = tokens, point.messages, point.turn
        progress.messages = point.messages.current
        if episode.start is not None:  # also of a fork, whose turns are counted from there, too
            progress.metrics["start_turn"] = float(episode.start.turn)
        if (size := point.opening if episode.start is None else tokens.context_size) >= limit:
            message = f"the opening takes {size} tokens, and the context has room for {limit}"
            return End(Status.TRUNCATED_CONTEXT, error=message, cause="no_room")
        for turn in itertools.count(point.turn):
            if episode.window is not None:
                if tokens.context_size >= limit:
                    return _no_room(tokens, limit)
                if turn - point.turn >= episode.window:
                    return End(Status.TRUNCATED_TURNS)
            if episode.forks is not None and (samples := episode.forks(turn)):
                progress.points.append(replace(await _snapshot(env, point, turn, progress), samples=samples))
            if self._privileged is not None and episode.training and episode.window is None:
                await self._teach(env, episode, self._privileged, progress, tokens, turn)
            if (end := await self._turn(env, episode, session, progress, point, turn)) is not None:
                return end
        raise AssertionError("unreachable")

    async def _roles(
        self,
        env: Lease,
        episode: Episode,
        session: str,
        progress: Progress,
        conversation: Messages,
        info: Mapping[str, Any],
    ) -> End:
        if episode.start or episode.forks or episode.window is not None or progress.rewards:
            message = "an episode of several roles has no forks, futures, later rewards or beginning in the middle"
            raise EnvError(message, "several_roles")

        def begin(first: Messages, tools: Any, names: Mapping[str, Any]) -> EpisodeTokens:
            return EpisodeTokens(self.renderer, first, tools=tools, **names)

        async def reply(turn: int, limit: int, place: str | None, tokens: EpisodeTokens) -> str:
            own = session if place is None else f"{session}/{place}"
            return await self.reply(episode, turn, limit, own, tokens, progress.timeline)

        names = {"episode_id": episode.episode_id, **_names(episode, info)}
        return await RolePlay(progress, names, begin, self._room, reply).play(env, conversation, info)

    def _room(self, tokens: EpisodeTokens) -> int:
        """Return how many tokens a conversation may take that begins with these."""
        most = self.rollout.max_response_tokens
        limit = self.engine.max_context
        return limit if most is None else min(limit, tokens.context_size + most)

    async def _turn(
        self, env: Lease, episode: Episode, session: str, progress: Progress, point: ForkPoint, turn: int
    ) -> End | None:
        """Sample a reply of the episode that began at ``point``, step, record the rewards; return its end, if it is."""
        tokens, timeline = point.tokens, progress.timeline
        cut_before = timeline.counts["cut"]
        text = await self.reply(episode, turn, point.limit, session, tokens, timeline)
        response_tokens = tokens.response_tokens
        timeline.phase("step")
        conversation, reward, terminated, truncated, info = await env.step(text)
        timeline.phase("own")
        earlier: Mapping[int, Any] = {}
        terms, stop = info.get("terms"), info.get("stop")
        if "earlier" in info or not terms or not isinstance(terms, Mapping):
            reward, terms, earlier = paid_by(info, reward)
        tokens.reward(reward, terms)
        progress.pay(earlier, 0 if episode.start is None else episode.start.turn)
        own = progress.observe(text, conversation, info)
        if info.get("failed"):
            cause = str(stop or "env_failed")
            return End(Status.ERROR_ENV, stop=stop, error=str(info.get("failure", stop)), cause=cause)
        end = _end(tokens, conversation, point.limit, terminated=terminated, truncated=truncated, stop=stop)
        if end is not None:
            end = end.explained(info)
        if (switched := not terminated and tokens.switched) and (progress.rewards.needs_futures or episode.window):
            raise CollectionError(_SWITCHED)
        if progress.rewards:
            assert progress.episode is not None
            futures = None
            if progress.rewards.needs_futures and episode.training:
                over = end is not None and end.status is not Status.TRUNCATED_CONTEXT
                next_point = await _snapshot(env, point, turn + 1, progress)
                futures = _Futures(self, progress.backend, episode, next_point, progress.rewards, over)
            so_far = TurnContext(
                episode_id=episode.episode_id,
                **{name: value for name, value in point.names.items() if name != "has_success"},
                messages=own if switched else conversation,
                episode=progress.episode.messages,
                replies=progress.episode.replies,
                reply=text,
                reward=reward,
                terms=dict(terms),
                over=end is not None,
                stop=stop,
                futures=futures,
                spec=progress.backend.spec,
                task_index=episode.options.get("task_index"),
                training=episode.training,
                response_tokens=response_tokens,
                cut=timeline.counts["cut"] > cut_before,
                replayed=0 if episode.start is None else episode.start.turn,
            )
            progress.rewards.ask(so_far, turn)
        return end

    async def _teach(
        self, env: Lease, episode: Episode, kind: Privilege, progress: Progress, tokens: EpisodeTokens, turn: int
    ) -> None:
        """Note the context in which a teacher scores the next reply, where the environment tells it more."""
        progress.timeline.phase("step")
        text = await env.privileged(kind, derive_seed(episode.sampling_seed, "privileged", turn))
        progress.timeline.phase("own")
        if text is not None:
            tokens.teach(lambda conversation: with_privileged(conversation, kind, text))

    async def _open(
        self, env: Lease, episode: Episode, progress: Progress, conversation: Messages, names: dict[str, Any]
    ) -> ForkPoint:
        progress.messages = conversation
        tokens = EpisodeTokens(
            self.renderer, conversation, tools=progress.backend.tools, episode_id=episode.episode_id, **names
        )
        opening, limit, messages = tokens.context_size, self._room(tokens), EpisodeMessages.begin(conversation)
        if episode.start is not None and episode.begin is None:
            messages = await self._replay(env, episode.start, tokens, messages)
            tokens = tokens.fork(episode_id=episode.episode_id, **names)
        values = (episode.episode_id, 0, 0, None, tokens, messages, opening, limit, names)
        return ForkPoint(*values, progress.rewards)

    async def _replay(
        self, env: Lease, start: Start, tokens: EpisodeTokens, messages: EpisodeMessages
    ) -> EpisodeMessages:
        """Replay an episode up to ``start``; return its messages there, or raise EnvError if it differs."""
        for ids in start.replies[: start.turn]:
            zeros = np.zeros(len(ids), np.float32)
            text = tokens.reply(Generation(np.array(ids, np.int32), zeros, zeros.astype(np.int32), "stop"))
            conversation, _, terminated, truncated, info = await env.step(text)
            if terminated or truncated:
                raise EnvError(f"a replayed episode ended too early ({info.get('stop')}): {_NOT_EXACT}", "replay_ended")
            tokens.observe(conversation)
            messages = messages.step(assistant(text), conversation, info.get("closing"))
        if context_digest(tokens.context) != start.contexts[start.turn - 1]:
            raise EnvError(f"a replayed episode came to another conversation: {_NOT_EXACT}", "replay_differs")
        return messages

    async def reply(
        self, episode: Episode, turn: int, limit: int, session: str, tokens: EpisodeTokens, timeline: Timeline
    ) -> str:
        """Sample a reply: one generation, or several where weight updates cut it and it may continue."""
        remaining = min(episode.sampling.max_new_tokens, limit - tokens.context_size)
        seed = derive_seed(episode.sampling_seed, turn)
        timeline.phase("generate")
        try:
            async with asyncio.timeout(self.rollout.generation_timeout_s) as clock:
                for piece in itertools.count(1):
                    context, moment = tokens.context, self.moment()
                    sampling = episode.sampling.of_reply(remaining, self.renderer.stop_token_ids, seed)
                    generation = await self.engine.generate(context, sampling, session)
                    count = len(generation.token_ids)
                    timeline.generated(len(context), count, generation.metrics)
                    if generation.finish_reason != "abort":
                        if not count:
                            message = f"the engine returned no token, with finish_reason {generation.finish_reason!r}"
                            raise EngineError(message)
                        break
                    text = tokens.reply(generation)  # also where it does not continue: its length is measured
                    if not self.rollout.partial or not self.interrupted_since(moment):
                        raise _AbortedError("the engine aborted the generation", "aborted")
                    remaining -= count
                    if remaining <= 0:  # it was cut behind the last token that it could have
                        timeline.replied(cut=True)
                        return text
                    self._check_age(tokens.oldest_version)
                    # A new seed: an engine may count its random numbers from a request's first token.
                    seed = derive_seed(episode.sampling_seed, turn, piece)
                    timeline.counts["continued"] += 1
        except TimeoutError:
            if not clock.expired():
                raise
            message = f"the generation took longer than {self.rollout.generation_timeout_s:g} s"
            raise _TooSlowError(message, "generation_timeout") from None
        timeline.phase("own")
        timeline.replied(cut=generation.finish_reason == "length")
        return tokens.reply(generation)

    def _check_age(self, oldest: int | None) -> None:
        most, age = self.rollout.partial_max_age, 0 if oldest is None else self._newest - oldest
        if most is not None and age > most:
            message = f"its oldest token is {age} versions old, more than partial_max_age={most}: it is played again"
            raise _AbortedError(message, "too_old")

    def _finish(self, episode: Episode, progress: Progress, end: End) -> Trajectory:
        if progress.tokens is None:  # it did not even open
            return _nothing(episode, end)
        messages = progress.messages or None  # of a user: those of its tokens
        fields = {"metrics": progress.metrics, "messages": messages, "user_messages": progress.user_messages}
        return self._finished(progress.tokens, episode, end, **fields)

    def _finished(self, tokens: EpisodeTokens, episode: Episode, end: End, **fields: Any) -> Trajectory:
        how = {"terminated": end.terminated, "truncated": not end.terminated, "status": end.status}
        trajectory = tokens.finish(**how, stop=end.stop, error=end.error, **_origin(episode), **fields)  # type: ignore[arg-type]
        return without_unseen(trajectory, self.engine.max_context)


def _end(
    tokens: EpisodeTokens, conversation: Messages, limit: int, *, terminated: bool, truncated: bool, stop: str | None
) -> End | None:
    """Return the end of an episode that a step has brought, if it has; else show it the observation."""
    if terminated:
        return End(Status.COMPLETED, terminated=True, stop=stop)
    tokens.observe(conversation)
    if truncated:
        return End(Status.TRUNCATED_TURNS, stop=stop)
    return _no_room(tokens, limit) if tokens.context_size >= limit else None


def _no_room(tokens: EpisodeTokens, limit: int) -> End:
    if not tokens.switched:
        return End(Status.TRUNCATED_CONTEXT)
    message = f"the context that turn {tokens.num_turns} goes on in has {tokens.context_size} tokens; there is room for"
    return End(Status.TRUNCATED_CONTEXT, error=f"{message} {limit}", cause="no_room_context")


async def _snapshot(env: Lease, point: ForkPoint, turn: int, progress: Progress) -> ForkPoint:
    """Return the state of the episode that began at ``point``, before its reply ``turn``."""
    progress.timeline.phase("step")
    state = await env.snapshot()
    progress.timeline.phase("own")
    assert progress.episode is not None
    return replace(point, turn=turn, state=state, tokens=point.tokens.fork(), messages=progress.episode)


async def _restore(env: Lease, episode: Episode, begin: ForkPoint) -> ForkPoint:
    await env.restore(begin.state, begin.messages.current, None if episode.window is None else episode.env_seed)
    names = {"episode_id": episode.episode_id, "forked_from": begin.episode_id, "forked_turn": begin.turn}
    return replace(begin, tokens=begin.tokens.fork(**begin.names, **names))


@dataclass(frozen=True, eq=False)
class _Futures:
    """Implements :class:`~trainers.rollout.rewards.Futures`."""

    player: Player
    backend: Backend
    episode: Episode
    point: ForkPoint
    rewards: PendingRewards
    over: bool

    async def play(
        self,
        number: int,
        turns: int,
        sampling: Sampling | None,
        on_reply: Callable[[], None],
        on_start: Callable[[], None],
    ) -> Played:
        name = f"t{self.point.turn}-future{number}"
        seeds = self.episode.sampling_seed, "future", self.point.turn, number
        future = replace(
            self.episode,
            episode_id=f"{self.episode.episode_id}-{name}",
            env_seed=derive_seed(*seeds, "environment", bits=32),
            sampling=sampling or self.episode.sampling,
            sampling_seed=derive_seed(*seeds),
            begin=self.point,
            window=0 if self.over else turns,
            forks=None,
        )
        return await self.player.play_future(self.backend, future, on_reply, on_start, self.over)


def _names(episode: Episode, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an episode's trajectory that are known from the info of its reset."""
    names = {name: str(info.get(name, "")) for name in ("task_key", "data_source")}
    return {"group_id": episode.group_id, **names, "has_success": has_success(info)}


def _origin(episode: Episode) -> dict[str, Any]:
    task = episode.options.get("task_index")
    seeds = {"env_seed": episode.env_seed, "sampling_seed": episode.sampling_seed}
    return seeds | {"task_index": int(task) if isinstance(task, (int, np.integer)) else None}


def _nothing(episode: Episode, end: End) -> Trajectory:
    whole, real = np.zeros(0, np.int32), np.zeros(0)
    arrays = {"token_ids": whole, "action_mask": np.zeros(0, np.bool_), "logprobs": np.zeros(0, np.float32)}
    arrays |= {"weight_version": whole, "turn_id": whole, "turn_rewards": real}
    names: dict[str, Any] = {"episode_id": episode.episode_id, "group_id": episode.group_id}
    names |= _origin(episode)
    error = None if end.error is None else clean_text(end.error)
    return Trajectory(**arrays, **names, truncated=True, status=end.status, stop=end.stop, error=error)  # type: ignore[arg-type]
