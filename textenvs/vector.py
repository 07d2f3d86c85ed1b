"""Many text environments in lock step, as a Gymnasium vector environment, with the results of its ``SyncVectorEnv``.

In one ``step`` all asynchronous hooks wait at the same time, environments that block run in a thread each, and plain
hooks run in the caller's thread. ``episodes`` plays without a barrier.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .actions import as_reply
from .env import TextEnv
from .event_loop import submit, wait_for
from .messages import Message, Messages, copy_messages
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
        self._ready = False  # not before the first reset, and not after a step or reset that failed half-way
        blocking = sum(env.blocking for env in self.envs)
        self._threads = ThreadPoolExecutor(blocking, "textenvs-blocking") if blocking else None

    @classmethod
    def of(cls, env: TextEnv[Any], num_envs: int, **kwargs: Any) -> TextVectorEnv:
        """``env`` and forks of it, ``num_envs`` in all: the task set is loaded once and shared."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        forks = [env.fork() for _ in range(num_envs - 1)]
        for fork in forks:  # unseeded resets must not all play the same episode
            fork._np_random, fork._np_random_seed = None, None
        return cls([env, *forks], **kwargs)

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        return tuple(env.np_random for env in self.envs)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment; -1 where it is not known."""
        return tuple(env.np_random_seed for env in self.envs)

    def reset(  # type: ignore[override]
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start an episode in every environment, or in those of a mask.

        Args:
            seed: ``s`` seeds environment ``i`` with ``s + i``; a sequence of ``N`` seeds each with its own.
            options: ``"reset_mask"``, bool ``[N]``, leaves the others where they are. ``"task_index"`` and ``"task"``
                are given to every environment, or each its own if they are sequences of ``N`` (``None``: draw one).
        """
        options = dict(options or {})
        chosen = self._chosen(options.pop("reset_mask", None))
        seeds = self._seeds(seed)
        rows = [{name: self._share(name, value, i) for name, value in options.items()} for i in range(self.num_envs)]

        results = self._together({i: partial(self.envs[i]._begin_episode, seeds[i], rows[i]) for i in chosen})
        infos: dict[str, Any] = {}
        for i, (_, info) in results.items():
            infos = self._add_info(infos, info, i)
        self._done[chosen] = False
        return self._conversations(), infos

    def step(self, actions: Sequence[str | Message | None]) -> BatchResult:
        """Play one assistant turn in every environment.

        ``actions`` are ``N`` replies; where an environment is due for its automatic reset (``NextStep``), it is not
        looked at.

        Raises:
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
            i: partial(env._begin_episode, None, None) if i in due else partial(env._play, replies[i])
            for i, env in enumerate(self.envs)
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
            started = self._together({i: partial(self.envs[i]._begin_episode, None, None) for i in over})
            for i in over:
                infos = self._add_info(infos, {"final_obs": results[i][0], "final_info": results[i][-1]}, i)
            results |= started
            self._done = np.zeros(self.num_envs, np.bool_)
        for i in range(self.num_envs):
            infos = self._add_info(infos, results[i][-1], i)
        return self._conversations(), rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...]:
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _together(self, calls: Mapping[int, Callable[[], T | Awaitable[T]]]) -> dict[int, T]:
        """Return the results of all calls by environment; all end before the first error is raised."""
        self._ready = False
        outcomes: dict[int, Any] = {}
        futures: dict[int, Future[T]] = {}  # of the threads
        awaitables: dict[int, Awaitable[T]] = {}
        ended: Future[list[T | BaseException]] | None = None
        try:
            for i, call in calls.items():
                if self._threads is not None and self.envs[i].blocking:
                    futures[i] = self._threads.submit(_resolved, call)
                    continue
                try:
                    outcomes[i] = call()
                except Exception as error:
                    outcomes[i] = error
                if inspect.isawaitable(outcomes[i]):
                    awaitables[i] = outcomes[i]
            if awaitables:
                ended = submit(_all(awaitables.values()))  # at once: every crossing to the other loop has its price
            wait(futures.values())
            settled = [] if ended is None else ended.result()
        except BaseException:
            for future in futures.values():
                future.cancel()
            if ended is not None:
                ended.cancel()
            raise
        outcomes |= dict(zip(awaitables, settled, strict=True))
        outcomes |= {i: future.exception() or future.result() for i, future in futures.items()}
        for i in sorted(outcomes):
            if isinstance(outcome := outcomes[i], BaseException):
                outcome.add_note(f"(in environment {i} of {self.num_envs}; all must be reset before the next step)")
                raise outcome
        self._ready = True
        return outcomes

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
                    replies[i] = as_reply(action, self.envs[i].state.messages)
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
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != np.bool_ or not np.any(mask):
            raise ValueError(f"options['reset_mask'] must be bool [{self.num_envs}] with a True in it, not {mask!r}")
        if not self._ready and not np.all(mask):
            raise gymnasium.error.ResetNeeded("reset all environments first, without 'reset_mask'")
        return [int(i) for i in np.flatnonzero(mask)]

    def _share(self, name: str, value: Any, i: int) -> Any:
        if not isinstance(value, (list, tuple, np.ndarray)):
            return value
        if len(value) != self.num_envs:
            raise ValueError(f"options[{name!r}] has {len(value)} values for {self.num_envs} environments")
        return value[i]


async def _all(awaitables: Iterable[Awaitable[T]]) -> list[T | BaseException]:
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
