"""Many text environments together: in lock step, as a Gymnasium vector environment, or each at its own pace.

In one ``step`` all asynchronous hooks wait at the same time, environments that block run in a thread each, and plain
hooks run in the caller's thread. The results are those of Gymnasium's ``SyncVectorEnv``, down to the format of
``infos``; on top of it, ``reset`` takes options for each environment. A step takes as long as its slowest environment;
where that costs too much, :meth:`TextVectorEnv.episodes` plays without a barrier.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .env import ResetResult, StepResult, TextEnv, as_reply
from .episodes import Plan, Tasks
from .event_loop import submit, wait_for
from .messages import Message, Messages, copy_messages
from .options import Policy
from .play import Episode
from .registry import make

T = TypeVar("T")
Observations = tuple[Messages, ...]
BatchResult = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class TextVectorEnv(VectorEnv[Observations, "Sequence[str | Message | None]", NDArray[Any]]):
    """``N`` text environments in lock step.

    An observation is a tuple of ``N`` conversations, actions are a sequence of ``N`` replies; rewards are float64
    ``[N]``, terminations and truncations bool ``[N]``.

    Args:
        envs: The environments, at least one, of one kind. They belong to this object now: ``close`` closes them.
        autoreset_mode: What happens to an environment whose episode is over: ``NextStep`` (its next action is ignored
            and starts a new episode; ``None`` will do), ``SameStep`` (the new episode starts at once; the last
            conversation and info are ``infos["final_obs"]`` and ``infos["final_info"]``) or ``Disabled`` (call
            ``reset`` with ``options={"reset_mask": ...}`` before the next ``step``).

    Raises:
        ValueError: No environment, or an unknown autoreset mode.
    """

    def __init__(
        self, envs: Sequence[TextEnv[Any]], *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
    ) -> None:
        if not envs:
            raise ValueError("TextVectorEnv needs at least one environment")
        self.envs = tuple(envs)
        self.num_envs = len(self.envs)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = self.envs[0].render_mode
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._done = np.zeros(self.num_envs, np.bool_)
        self._playing = False  # whether an iterator of episodes() is at work
        self._ready = False  # not before the first reset, and not after a step or reset that failed half-way
        blocking = sum(env.blocking for env in self.envs)
        self._threads = ThreadPoolExecutor(blocking, "textenvs-blocking") if blocking else None

    @classmethod
    def of(cls, env: TextEnv[Any], num_envs: int, **kwargs: Any) -> TextVectorEnv:
        """``env`` and forks of it, ``num_envs`` in all: the task set is loaded once and shared.

        Args:
            env: The first of the environments.
            num_envs: How many.
            **kwargs: For the constructor.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        forks = [env.fork() for _ in range(num_envs - 1)]
        for fork in forks:  # unseeded resets must not all play the same episode
            fork._np_random, fork._np_random_seed = None, None
        return cls([env, *forks], **kwargs)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generator of each environment."""
        return tuple(env.np_random for env in self.envs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment; -1 where it is not known."""
        return tuple(env.np_random_seed for env in self.envs)

    # ------------------------------------------------------------------ Gymnasium

    def reset(  # type: ignore[override]
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode in every environment, or in those of a mask.

        Args:
            seed: ``s`` seeds environment ``i`` with ``s + i``; a sequence of ``N`` seeds each with its own.
            options: ``"reset_mask"``, bool ``[N]``, leaves the others where they are. ``"task_index"`` and ``"task"``
                are given to every environment, or each its own if they are sequences of ``N`` (``None``: draw one).

        Returns:
            All conversations, and the infos of the environments that were reset.

        Raises:
            ValueError: Seeds, options or mask do not have one value for each environment.
            TypeError: The mask is not a NumPy array of bool.
            gymnasium.error.ResetNeeded: A mask before the first whole reset, or after a failed step.
        """
        options = dict(options or {})
        chosen = self._chosen(options.pop("reset_mask", None))
        seeds = self._seeds(seed)
        rows = [{name: self._share(name, value, i) for name, value in options.items()} for i in range(self.num_envs)]

        results = self._together({i: functools.partial(self._reset_one, i, seeds[i], rows[i]) for i in chosen})
        infos: dict[str, Any] = {}
        for i, (_, info) in results.items():
            infos = self._add_info(infos, info, i)
        self._done[chosen] = False
        return self._conversations(), infos

    def step(self, actions: Sequence[str | Message | None]) -> BatchResult:
        """Play one assistant turn in every environment.

        Args:
            actions: ``N`` replies. Where an environment is due for its automatic reset (``NextStep``), the reply is
                not looked at.

        Returns:
            ``(conversations, rewards, terminations, truncations, infos)``.

        Raises:
            ValueError: Not one action for each environment.
            gymnasium.error.InvalidAction: An action is not a reply; nothing has been played then.
            gymnasium.error.ResetNeeded: ``reset`` is due, for all or (``Disabled``) for those that are over.
        """
        if not self._ready:
            raise gymnasium.error.ResetNeeded("call reset() first: the environments have not started, or a step failed")
        if self.autoreset_mode == AutoresetMode.DISABLED and self._done.any():
            over = np.flatnonzero(self._done).tolist()
            raise gymnasium.error.ResetNeeded(
                f"the episodes of environments {over} are over, and autoreset is disabled; call "
                "reset(options={'reset_mask': terminations | truncations}) first"
            )
        due = set(np.flatnonzero(self._done).tolist())  # for their automatic reset, in NextStep mode
        replies = self._replies(actions, due)
        calls: dict[int, Callable[[], Any]] = {
            i: functools.partial(self._reset_one, i) if i in due else functools.partial(self._play_one, i, replies[i])
            for i in range(self.num_envs)
        }
        results = self._together(calls)
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        for i in results.keys() - due:
            _, rewards[i], terminations[i], truncations[i], _ = results[i]
        self._done = terminations | truncations
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            over = np.flatnonzero(self._done).tolist()
            started = self._together({i: functools.partial(self._reset_one, i) for i in over})
            for i in over:
                infos = self._add_info(infos, {"final_obs": results[i][0], "final_info": results[i][-1]}, i)
            results |= started
            self._done = np.zeros(self.num_envs, np.bool_)
        for i in range(self.num_envs):
            infos = self._add_info(infos, results[i][-1], i)
        return self._conversations(), rewards, terminations, truncations, infos

    def episodes(
        self,
        policy: Policy | str,
        tasks: Tasks = None,
        *,
        seed: int | None = None,
        buffer: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Episode, None]:
        """Play whole episodes without a barrier: each environment goes on to its next one as soon as one is over.

        See :mod:`textenvs.episodes` for what is promised; :func:`~textenvs.episodes.play_episodes` does the same with a
        single environment. ``step`` then needs a ``reset`` first.

        Args:
            policy: Replies: a plain or asynchronous callable from a conversation to a reply, or ``"module:name"``.
            tasks: Indices, tasks or rows, one for each episode; how many to draw; or ``None`` to draw without end.
            seed: Of the first episode; episode ``k`` has ``seed + k``. ``None`` draws one.
            buffer: How many finished episodes may wait to be taken before no new one is started; ``None`` for ``N``.
            timeout_s: An episode that takes longer ends with a ``TimeoutError``; ``None`` for no limit.

        Returns:
            An iterator for ``async for``. Close it to stop early, or use ``contextlib.aclosing``.

        Raises:
            ValueError: A value outside the above.
            RuntimeError: When iterated: the environments are already playing episodes.
        """
        plan = Plan(policy, tasks, seed, self.num_envs if buffer is None else buffer, timeout_s)
        return self._episodes(plan)

    async def _episodes(self, plan: Plan) -> AsyncGenerator[Episode, None]:
        if self._playing:
            raise RuntimeError("these environments are playing episodes already; finish or close that iterator first")
        self._playing, self._ready = True, False
        stream = plan.stream(self.envs)
        try:
            async for episode in stream:
                yield episode
        finally:
            await stream.aclose()
            self._playing = False

    def render(self) -> tuple[Any, ...]:
        """What each environment's ``render`` returns."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------------ inside

    def _together(self, calls: Mapping[int, Callable[[], T | Awaitable[T]]]) -> dict[int, T]:
        """Make all calls, wait for what they leave to be awaited, and return the results by environment.

        All calls come to their end before the first error is raised: none is left running behind the caller's back.
        """
        self._ready = False
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}
        in_threads: dict[int, Future[T]] = {}
        awaitables: dict[int, Awaitable[T]] = {}
        ended: Future[list[T | BaseException]] | None = None
        try:
            for i, call in calls.items():
                if self._threads is not None and self.envs[i].blocking:
                    in_threads[i] = self._threads.submit(_resolved, call)
                    continue
                try:
                    value = call()
                except Exception as error:
                    errors[i] = error
                    continue
                if inspect.isawaitable(value):
                    awaitables[i] = value
                else:
                    results[i] = value
            if awaitables:
                ended = submit(_all(awaitables.values()))  # at once: every crossing to the other loop has its price
            wait(in_threads.values())
            settled = [] if ended is None else ended.result()
        except BaseException:
            for future in in_threads.values():
                future.cancel()
            if ended is not None:
                ended.cancel()
            raise
        outcomes: dict[int, T | BaseException] = dict(zip(awaitables, settled, strict=True))
        outcomes |= {i: future.exception() or future.result() for i, future in in_threads.items()}
        for i, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                errors[i] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                results[i] = outcome
        if errors:
            first = min(errors)
            errors[first].add_note(f"(in environment {first} of {self.num_envs}; it needs a reset of all to go on)")
            raise errors[first]
        self._ready = True
        return results

    def _reset_one(
        self, i: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> ResetResult | Awaitable[ResetResult]:
        return self.envs[i]._begin_episode(seed, options)

    def _play_one(self, i: int, reply: Message) -> StepResult | Awaitable[StepResult]:
        return self.envs[i]._play(reply)

    def _conversations(self) -> Observations:
        return tuple(copy_messages(env.state.messages) for env in self.envs)

    def _replies(self, actions: Any, due: set[int]) -> dict[int, Message]:
        listed = hasattr(actions, "__len__") and not isinstance(actions, (str, bytes, Mapping))
        if not listed or len(actions) != self.num_envs:
            raise ValueError(f"actions must be a sequence of {self.num_envs} replies, one for each environment")
        replies = {}
        for i, action in enumerate(actions):
            if i not in due:
                try:
                    replies[i] = as_reply(action)
                except gymnasium.error.InvalidAction as error:
                    raise gymnasium.error.InvalidAction(f"environment {i}: {error}") from error
        return replies

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"seed has {len(seed)} values for {self.num_envs} environments")
        return list(seed)

    def _chosen(self, mask: Any) -> list[int]:
        if mask is None:
            return list(range(self.num_envs))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must be a NumPy array of bool, not {mask!r}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"options['reset_mask'] must have shape ({self.num_envs},) and a True, not {mask!r}")
        if not self._ready and not mask.all():
            raise gymnasium.error.ResetNeeded("reset all environments first, without 'reset_mask'")
        return [int(i) for i in np.flatnonzero(mask)]

    def _share(self, name: str, value: Any, i: int) -> Any:
        """Environment ``i``'s part of an option."""
        if not isinstance(value, (list, tuple, np.ndarray)):
            return value
        if len(value) != self.num_envs:
            raise ValueError(f"options[{name!r}] has {len(value)} values for {self.num_envs} environments")
        return value[i]


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T | BaseException]:
    """What each gives or raises, once all have ended."""
    return await asyncio.gather(*awaitables, return_exceptions=True)


def _resolved(call: Callable[[], T | Awaitable[T]]) -> T:
    return wait_for(call())


def __getattr__(name: str) -> Callable[..., TextVectorEnv]:
    """``textenvs.vector:<id>`` as a vector entry point: Gymnasium does not tell an entry point which id it makes."""
    if "/" not in name:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def make_vector(
        num_envs: int = 1, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **kwargs: Any
    ) -> TextVectorEnv:
        return TextVectorEnv.of(make(name, **kwargs), num_envs, autoreset_mode=autoreset_mode)

    return make_vector
