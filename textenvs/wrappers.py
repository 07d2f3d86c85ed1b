"""Gymnasium wrappers for text environments.

They go on top of what ``gymnasium.make`` returns, and over each other. Each has the async twins of :class:`TextEnv`
(``areset``, ``astep``, ``aclose``), keeps ``info["terms"]`` summing to the reward, and records its arguments, so that
``env.spec`` makes the wrapped environment again::

    env = TextObservation(RewardTerms(gymnasium.make("textenv/gsm8k-interact"), {"extra_turn": 0.0}))
    text, info = env.reset(seed=0)

``gymnasium.Wrapper`` does not forward attributes: what else an environment has (``state``, ``fork``, ``tasks``) is at
``env.unwrapped``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from .env import EnvironmentFailure, TextEnv, check_numbers
from .event_loop import settle, wait_for
from .lookahead import FuturePolicy, Lookahead
from .messages import Message, Messages, transcript
from .options import Policy, PositiveInt, Weight, checked, resolve
from .spaces import Unicode

ObsT = TypeVar("ObsT")
Start: TypeAlias = tuple[Any, dict[str, Any]]
Step: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]


class TextWrapper(gymnasium.Wrapper[ObsT, "str | Message", Messages, "str | Message"], RecordConstructorArgs):
    """Base of these wrappers, and of your own: one pair of hooks serves both interfaces.

    Call ``RecordConstructorArgs.__init__(self, ...)`` with your arguments, and then ``super().__init__(env)``.

    Args:
        env: A text environment, wrapped or not.

    Raises:
        TypeError: Underneath ``env`` there is no :class:`~textenvs.env.TextEnv`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.unwrapped, TextEnv):
            raise TypeError(f"{type(self).__name__} wraps text environments, not a {type(env.unwrapped).__name__}")

    # ------------------------------------------------------------------ hooks

    def after_reset(self, observation: Any, info: dict[str, Any]) -> Start | Awaitable[Start]:
        """What ``reset`` returns, given what that of the inner environment did."""
        return observation, info

    def after_step(self, action: str | Message, result: Step) -> Step | Awaitable[Step]:
        """What ``step`` returns, given what that of the inner environment did."""
        return result

    def before_close(self) -> None:
        """Called before the inner environment is closed, perhaps more than once."""

    # ------------------------------------------------------------------ Gymnasium

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """Start an episode; see :meth:`TextEnv.reset`."""
        return wait_for(self.after_reset(*self.env.reset(seed=seed, options=options)))

    def step(self, action: str | Message) -> Step:  # type: ignore[override]
        """Play one assistant turn; see :meth:`TextEnv.step`."""
        result: Any = self.env.step(action)  # type: ignore[arg-type]
        return wait_for(self.after_step(action, result))

    def close(self) -> None:
        """Release what the environment holds; safe to call twice."""
        self.before_close()
        self.env.close()

    # ------------------------------------------------------------------ async twins

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """:meth:`reset`, awaitable."""
        return await settle(self.after_reset(*await self._inner().areset(seed=seed, options=options)))

    async def astep(self, action: str | Message) -> Step:
        """:meth:`step`, awaitable."""
        return await settle(self.after_step(action, await self._inner().astep(action)))

    async def aclose(self) -> None:
        """:meth:`close`, awaitable."""
        self.before_close()
        await self._inner().aclose()

    def _inner(self) -> Any:
        """The next environment within that has async twins.

        Of what ``gymnasium.make`` puts around an environment, these two only check how it is used, and are passed by;
        they are told, so that ``step`` and ``render`` work after ``areset``.
        """
        inner: Any = self.env
        while not hasattr(inner, "astep"):
            if not isinstance(inner, (OrderEnforcing, PassiveEnvChecker)):
                raise TypeError(
                    f"{type(inner).__name__} has no astep, so it would be left out. Put {type(self).__name__} inside "
                    "of it, or use step and reset; for a limit on turns there is max_assistant_turns"
                )
            if isinstance(inner, OrderEnforcing):
                inner._has_reset = True  # TextEnv itself refuses a step before the first reset
            else:
                inner.checked_step = inner.checked_data_reuse = True  # both compare with a reset it has not seen
            inner = inner.env
        return inner


class TextObservation(TextWrapper[str]):
    """The conversation as one string.

    Args:
        env: A text environment.
        template: Makes the string: a callable from the conversation, or ``"module:name"`` of one. ``None`` is a
            transcript, ``user: ...`` and ``assistant: ...``. A model's own chat template is
            ``functools.partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)``; only what
            was said last is ``lambda conversation: conversation[-1]["content"]``.

    Raises:
        ValueError: ``template`` is neither, or names nothing.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], template: Callable[[Messages], str] | str | None = None) -> None:
        RecordConstructorArgs.__init__(self, template=template)
        super().__init__(env)
        self.template: Callable[[Messages], str] = transcript if template is None else resolve("template", template)
        self.observation_space = Unicode()

    def after_reset(self, observation: Any, info: dict[str, Any]) -> Start:
        """The opening as a string."""
        return self.template(observation), info

    def after_step(self, action: str | Message, result: Step) -> Step:
        """The conversation as a string."""
        return self.template(result[0]), *result[1:]


class RewardTerms(TextWrapper[Messages]):
    """Other weights for the terms of the reward; the reward is their sum again.

    The environment still ends its episodes by its own rules, and :meth:`TextEnv.conversation_score` still speaks of the
    rewards it gave itself.

    Args:
        env: A text environment.
        weights: By the term's name. 0 leaves a term out of the reward; it stays in ``info["terms"]``, as 0.
        others: The weight of all terms that ``weights`` does not name.

    Raises:
        ValueError: A weight that is not a finite number; in ``step``: a name that is no term of this environment, or
            a weighted term above :data:`~textenvs.env.LARGEST` in magnitude.
    """

    @checked
    def __init__(self, env: gymnasium.Env[Any, Any], weights: Mapping[str, Weight], others: Weight = 1.0) -> None:
        RecordConstructorArgs.__init__(self, weights=dict(weights), others=others)
        super().__init__(env)
        self.weights = dict(weights)
        self.others = others

    def after_step(self, action: str | Message, result: Step) -> Step:
        """The turn with its terms weighted."""
        observation, reward, terminated, truncated, info = result
        if info["failed"]:
            return result
        if unknown := set(self.weights) - set(info["terms"]):
            raise ValueError(
                f"RewardTerms: there are no terms {sorted(unknown)}; {self.env.unwrapped} has {sorted(info['terms'])}"
            )
        terms = {name: self.weights.get(name, self.others) * term + 0.0 for name, term in info["terms"].items()}
        check_numbers("RewardTerms: the weighted terms", terms)
        return observation, math.fsum(terms.values()), terminated, truncated, {**info, "terms": terms}


class MultiturnAwareReward(TextWrapper[Messages]):
    """Rewards each turn by the conversations it leads to: CollabLLM's reward, see :mod:`textenvs.lookahead`.

    ``info["terms"]`` are those of the new reward, ``info["turn_reward"]`` is the environment's own, and
    ``info["metrics"]`` says what looking ahead cost (``lookahead_...``). If all futures of a turn failed, the episode
    ends as one that failed (``truncated``, ``info["failed"]``).

    The futures are played in forks of ``env.unwrapped``: wrappers inside this one have no part in them.

    Args:
        env: A text environment.
        policy: Plays the futures; see :class:`~textenvs.lookahead.Lookahead`, and so for all that is not below. Under
            ``step``, asynchronous callables run on a background loop, always the same one.
        credit: ``"value"``: the reward of a turn is its multiturn-aware reward, as in the paper: an estimate of what
            the whole conversation will be worth, so a turn's reward is its own return. ``"difference"``: what the turn
            changed in that estimate; the rewards of an episode then sum to the score of the conversation it became,
            for algorithms that add up rewards.
        **options: ``samples``, ``window``, ``formula`` and whatever else
            :class:`~textenvs.lookahead.Lookahead` takes.

    Raises:
        ValueError: A value that :class:`~textenvs.lookahead.Lookahead` refuses, or an unknown ``credit``.
    """

    @checked
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        policy: Policy | FuturePolicy | str,
        *,
        credit: Literal["value", "difference"] = "value",
        **options: Any,
    ) -> None:
        # Not copied: a policy may hold a model, or connections.
        RecordConstructorArgs.__init__(self, policy=policy, credit=credit, **options, _disable_deepcopy=True)
        super().__init__(env)
        self.credit = credit
        self.lookahead = Lookahead(policy, **options)
        self._before: dict[str, float] = {}  # the terms of the turn before

    def after_reset(self, observation: Any, info: dict[str, Any]) -> Start:
        """The opening, which has no reward."""
        self._before = {}
        return observation, info

    def step(self, action: str | Message) -> Step:  # type: ignore[override]
        """Play one assistant turn, and look ahead; see :meth:`TextEnv.step`."""
        with self._whole_or_not():
            return super().step(action)

    async def astep(self, action: str | Message) -> Step:
        """:meth:`step`, awaitable."""
        with self._whole_or_not():
            return await super().astep(action)

    async def after_step(self, action: str | Message, result: Step) -> Step:
        """The turn with the reward of its futures."""
        observation, reward, terminated, truncated, info = result
        if info["failed"]:
            return observation, reward, terminated, truncated, {**info, "turn_reward": reward}
        info = {**info, "turn_reward": reward}
        try:
            ahead = await self.lookahead(self._env())
        except EnvironmentFailure as failure:
            state = self._env().state
            state.terminated, state.truncated, state.stop = False, True, failure.stop
            info |= {"terms": {"reward": 0.0}, "stop": failure.stop, "failed": True, "failure": failure.reason}
            return observation, 0.0, False, True, info
        terms = dict(ahead.terms)
        if self.credit == "difference":
            before, self._before = self._before, dict(ahead.terms)
            terms = {name: term - before.get(name, 0.0) for name, term in terms.items()}
        check_numbers("MultiturnAwareReward: the terms", terms)
        info |= {"terms": terms, "metrics": {**info["metrics"], **ahead.metrics()}}
        return observation, math.fsum(terms.values()), terminated, truncated, info

    def _env(self) -> TextEnv[Any]:
        env = self.env.unwrapped
        assert isinstance(env, TextEnv)
        return env

    @contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        """A turn whose lookahead raised has not happened, so that the same step can be tried again."""
        before = self._before
        with self._env()._played_or_not():
            try:
                yield
            except BaseException:
                self._before = before
                raise


class RecordConversations(TextWrapper[Messages]):
    """Writes each episode as a line of JSON: task, conversation, rewards and their terms, and how it ended.

    A line has ``episode`` (their number), ``seed`` (``null`` when ``reset`` had none), ``task_key``, ``task_index``,
    ``data_source``, ``messages``, ``rewards``, ``terms``, ``metrics`` (one each turn), ``terminated``, ``truncated``,
    ``stop``, ``failed`` and ``finished``: an episode that was left (by ``reset`` or ``close``) is written too, with
    ``finished`` false, unless nothing had been said. Rewards are those of the environment inside this wrapper.

    Args:
        env: A text environment.
        path: The file, made with its folder if need be; lines are appended.
        every: Of so many episodes, the first is written.

    Raises:
        ValueError: ``every`` is below 1.
    """

    @checked
    def __init__(self, env: gymnasium.Env[Any, Any], path: str | Path, every: PositiveInt = 1) -> None:
        RecordConstructorArgs.__init__(self, path=str(path), every=every)
        super().__init__(env)
        self.path = Path(path)
        self.every = every
        self._episodes = 0
        self._line: dict[str, Any] | None = None  # of the episode that is being played

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """Start an episode; one that was left is written first."""
        self._write(finished=False)
        start = super().reset(seed=seed, options=options)
        self._line = self._begun(seed, start[1])
        return start

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        """:meth:`reset`, awaitable."""
        self._write(finished=False)
        start = await super().areset(seed=seed, options=options)
        self._line = self._begun(seed, start[1])
        return start

    def after_step(self, action: str | Message, result: Step) -> Step:
        """The turn as it is; it is noted down, and written when it was the last one."""
        _, reward, terminated, truncated, info = result
        if self._line is not None:
            self._line["rewards"].append(reward)
            self._line["terms"].append(dict(info["terms"]))
            self._line["metrics"].append(dict(info["metrics"]))
            self._line |= {"terminated": terminated, "truncated": truncated}
            self._line |= {"stop": info["stop"], "failed": info["failed"]}
            if terminated or truncated:
                self._write(finished=True)
        return result

    def before_close(self) -> None:
        """Write an episode that is being left."""
        self._write(finished=False)

    def _begun(self, seed: int | None, info: Mapping[str, Any]) -> dict[str, Any] | None:
        number, self._episodes = self._episodes, self._episodes + 1
        if number % self.every:
            return None
        line = {"episode": number, "seed": seed}
        line |= {name: info[name] for name in ("task_key", "task_index", "data_source")}
        return line | {"messages": [], "rewards": [], "terms": [], "metrics": []}

    def _write(self, finished: bool) -> None:
        line, self._line = self._line, None
        if line is None or not line["rewards"]:
            return
        env = self.env.unwrapped
        assert isinstance(env, TextEnv)
        line["messages"] = env.state.messages  # as they were said, whatever wrappers make of them
        text = json.dumps(line | {"finished": finished}, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
