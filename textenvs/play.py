"""One episode, played from its reset to its end: ``episode = await play(env, policy, seed=3)``."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .env import EnvironmentFailure, ResetResult, StepResult, TextEnv, Turn, check_env
from .messages import Messages, copy_messages
from .options import Policy
from .threads import Calls


@dataclass(slots=True)
class Episode:
    """An episode that is over, or as far as it came."""

    number: int = 0  # which of several episodes it is, in the order of their tasks
    seed: int | None = None  # what ``reset`` was given
    conversation: Messages = ()  # the last observation, up to the error if there was one
    contexts: tuple[Messages, ...] = ()  # conversations that were left before it; :attr:`EpisodeState.contexts`
    rewards: Sequence[float] = ()  # one for each turn
    terms: Sequence[Mapping[str, float]] = ()  # the named parts of each reward
    info: Mapping[str, Any] = field(default_factory=dict)  # the last one; after an error, what identifies the task
    terminated: bool = False  # the task was over
    truncated: bool = False  # a budget ran out, or the environment failed (``info["failed"]``)
    error: Exception | None = None  # what ended it otherwise

    @property
    def reward(self) -> float:
        return sum(self.rewards)

    @property
    def stop(self) -> str | None:
        return None if self.error is not None else self.info.get("stop")

    @property
    def task_key(self) -> str | None:
        return self.info.get("task_key")

    @property
    def task_index(self) -> int | None:
        """-1 for a task that was brought along; ``None`` where there was an error before there was one."""
        return self.info.get("task_index")

    @property
    def failed(self) -> bool:
        """True where it says nothing about the policy: an error, or a simulator, judge or tool that gave up."""
        return self.error is not None or bool(self.info.get("failed"))


class Calling(Protocol):
    """Calls of an environment; :class:`~textenvs.threads.Calls` is one kind."""

    async def reset(self, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        """:meth:`TextEnv.reset`."""

    async def step(self, action: Any) -> StepResult:
        """:meth:`TextEnv.step`."""


async def play(
    env: TextEnv[Any],
    policy: Policy,
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
    resume: bool = False,
    turns: int | None = None,
    on_turn: Callable[[StepResult], None] | None = None,
    calls: Calling | None = None,
    episode: Episode | None = None,
) -> Episode:
    """Play an episode of ``env`` itself.

    What a policy, a hook or ``on_turn`` raises is raised. ``env`` may then be in the middle of a turn: reset it before
    it is stepped again.

    Args:
        env: The environment.
        policy: Replies to the conversation, at once or when awaited.
        seed: Of the reset.
        options: Of the reset.
        resume: Continue the episode that ``env`` is in; ``seed`` and ``options`` are then not read.
        turns: Stop after so many, if the episode is not over before; ``None`` for no limit.
        on_turn: Called with what each step returned.
        calls: How ``env`` is called; ``None``: directly, or in a thread where it may block.
        episode: Filled in and returned, in place of a new one: after an exception it has what was played.
    """
    check_env("play", env)
    if calls is None and env.blocking:
        calls = Calls(env, undo=False)
    if episode is None:
        episode = Episode(seed=seed)
    # No list: the garbage collector looks at those, and there may be ten thousand episodes.
    rewards, terms = array("d"), list[Mapping[str, float]]()
    terminated = truncated = started = False
    result: Any
    try:
        # Not areset and astep: an episode that raises is over, so its state before the turn need not be copied.
        if resume:
            result = (copy_messages(env.state.messages), env._identity())
            terminated, truncated = env.state.terminated, env.state.truncated
        elif calls is not None:
            result = await calls.reset(seed, options)
        else:
            if seed is not None:
                env._np_random, env._np_random_seed = None, seed  # made when needed, perhaps never
            if not isinstance(result := env._begin_episode(None, options), tuple):
                result = await result
        started = True
        while not (terminated or truncated) and len(rewards) != turns:
            reply: Any = policy(result[0])
            del result  # nothing of it is kept while the environment is waited for
            if not isinstance(reply, (str, dict)) and inspect.isawaitable(reply):
                reply = await reply
            if calls is not None:
                result = await calls.step(reply)
            else:  # as env._play does it, without another coroutine for each episode that waits
                try:
                    turn: Any = env._ask(reply)
                    if not isinstance(turn, Turn) and inspect.isawaitable(turn):
                        turn = await turn
                    result = env._conclude(turn)
                    del turn
                except EnvironmentFailure as failure:
                    result = env._fail(failure)
            terminated, truncated = result[2:4]
            rewards.append(result[1])
            terms.append(result[4]["terms"])
            if on_turn is not None:
                on_turn(result)
        episode.conversation, episode.info = result[0], result[-1]
    except Exception:
        if started:
            episode.conversation, episode.info = copy_messages(env.state.messages), env._identity()
        raise
    finally:
        episode.contexts = tuple(map(copy_messages, env.state.contexts))
        episode.rewards, episode.terms = tuple(rewards), tuple(terms)
        episode.terminated, episode.truncated = terminated, truncated
    return episode
