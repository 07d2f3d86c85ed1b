"""Gymnasium wrappers for text environments, on top of what ``gymnasium.make`` returns, and over each other.

Each has the async twins of :class:`TextEnv`, keeps ``info["terms"]`` summing to the reward, and records its arguments,
so that ``env.spec`` makes the wrapped environment again. What else an environment has is at ``env.unwrapped``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from .compaction import Compact as Compact  # noqa: PLC0414 (it is a TextEnv of its own, and belongs to these)
from .env import EnvironmentFailure, TextEnv, check_numbers
from .event_loop import settle, wait_for
from .lookahead import Lookahead
from .messages import Message, Messages, transcript
from .options import Policy, Weight, checked, resolve
from .spaces import Unicode

ObsT = TypeVar("ObsT")
Start: TypeAlias = tuple[Any, dict[str, Any]]
Step: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]


class TextWrapper(gymnasium.Wrapper[ObsT, "str | Message", Messages, "str | Message"], RecordConstructorArgs):
    """Base of these wrappers, and of your own: one pair of hooks serves both interfaces.

    Call ``RecordConstructorArgs.__init__(self, ...)`` with your arguments, and then ``super().__init__(env)``.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.unwrapped, TextEnv):
            raise TypeError(f"{type(self).__name__} wraps text environments, not a {type(env.unwrapped).__name__}")
        self._text_env: TextEnv[Any] = env.unwrapped

    def after_reset(self, observation: Any, info: dict[str, Any]) -> Start | Awaitable[Start]:
        """Return the result of ``reset``, given the inner environment's; so does :meth:`after_step`."""
        return observation, info

    def after_step(self, action: str | Message, result: Step) -> Step | Awaitable[Step]:
        return result

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        return wait_for(self.after_reset(*self.env.reset(seed=seed, options=options)))

    def step(self, action: str | Message) -> Step:  # type: ignore[override]
        result: Any = self.env.step(action)  # type: ignore[arg-type]
        return wait_for(self.after_step(action, result))

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        return await settle(self.after_reset(*await self._inner().areset(seed=seed, options=options)))

    async def astep(self, action: str | Message) -> Step:
        return await settle(self.after_step(action, await self._inner().astep(action)))

    async def aclose(self) -> None:
        await self._inner().aclose()

    def _inner(self) -> Any:
        """Return the next environment within that has async twins.

        Of what ``gymnasium.make`` puts around an environment, these two only check how it is used, and are passed by.
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
        template: Makes the string: a callable from the conversation, or ``"module:name"`` of one. ``None`` is a
            transcript, ``user: ...`` and ``assistant: ...``. A model's own chat template is
            ``functools.partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)``; only what
            was said last is ``lambda conversation: conversation[-1]["content"]``.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], template: Callable[[Messages], str] | str | None = None) -> None:
        RecordConstructorArgs.__init__(self, template=template)
        super().__init__(env)
        self.template: Callable[[Messages], str] = transcript if template is None else resolve("template", template)
        self.observation_space = Unicode()

    def after_reset(self, observation: Any, info: dict[str, Any]) -> Start:
        return self.template(observation), info

    def after_step(self, action: str | Message, result: Step) -> Step:
        return self.template(result[0]), *result[1:]


class RewardTerms(TextWrapper[Messages]):
    """Other weights for the terms of the reward; the reward is their sum again.

    The environment still ends its episodes by its own rules, and :meth:`TextEnv.conversation_score` still speaks of the
    rewards it gave itself.

    Args:
        weights: By the term's name. 0 leaves a term out of the reward; it stays in ``info["terms"]``, as 0.
        others: The weight of all terms that ``weights`` does not name.
    """

    @checked
    def __init__(self, env: gymnasium.Env[Any, Any], weights: Mapping[str, Weight], others: Weight = 1.0) -> None:
        RecordConstructorArgs.__init__(self, weights=dict(weights), others=others)
        super().__init__(env)
        self.weights = dict(weights)
        self.others = others

    def after_step(self, action: str | Message, result: Step) -> Step:
        observation, reward, terminated, truncated, info = result
        if info["failed"]:
            return result
        if unknown := set(self.weights) - set(info["terms"]):
            raise ValueError(
                f"RewardTerms: there are no terms {sorted(unknown)}; {self.env.unwrapped} has {sorted(info['terms'])}"
            )
        terms = self._weighted(info["terms"])
        check_numbers("RewardTerms: the weighted terms", terms)
        info = {**info, "terms": terms}
        if "earlier" in info:
            info["earlier"] = {number: self._weighted(parts) for number, parts in info["earlier"].items()}
            info["own_terms"] = self._weighted(info["own_terms"])
        return observation, math.fsum(terms.values()), terminated, truncated, info

    def _weighted(self, terms: Mapping[str, float]) -> dict[str, float]:
        return {name: self.weights.get(name, self.others) * term + 0.0 for name, term in terms.items()}


class MultiturnAwareReward(TextWrapper[Messages]):
    """Rewards each turn by the conversations it leads to: CollabLLM's reward, see :mod:`textenvs.lookahead`.

    ``info["terms"]`` are those of the new reward, ``info["turn_reward"]`` is the environment's own, and
    ``info["metrics"]`` says what looking ahead cost (``lookahead_...``). If all futures of a turn failed, the episode
    ends as one that failed (``truncated``, ``info["failed"]``).

    The futures are played in forks of ``env.unwrapped``: wrappers inside this one have no part in them.

    Args:
        policy: Plays the futures. Under ``step``, asynchronous callables run on a background loop, always the same one.
        credit: ``"value"``: the reward of a turn is its multiturn-aware reward, as in the paper: an estimate of what
            the whole conversation will be worth, so a turn's reward is its own return. ``"difference"``: what the turn
            changed in that estimate; the rewards of an episode then sum to the score of the conversation it became, for
            algorithms that add up rewards.
        **options: ``samples``, ``window``, ``formula`` and whatever else :class:`Lookahead` takes.
    """

    @checked
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        policy: Policy | str,
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
        self._before = {}
        return observation, info

    def step(self, action: str | Message) -> Step:  # type: ignore[override]
        with self._whole_or_not():
            return super().step(action)

    async def astep(self, action: str | Message) -> Step:
        with self._whole_or_not():
            return await super().astep(action)

    async def after_step(self, action: str | Message, result: Step) -> Step:
        observation, reward, terminated, truncated, info = result
        if info["failed"]:
            return observation, reward, terminated, truncated, {**info, "turn_reward": reward}
        info = {name: value for name, value in info.items() if name not in ("earlier", "own_terms")}
        info["turn_reward"] = reward
        try:
            ahead = await self.lookahead(self._text_env)
        except EnvironmentFailure as failure:
            state = self._text_env.state
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

    @contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        """Undo a turn whose lookahead raised, so that the same step can be tried again."""
        before = self._before
        with self._text_env._played_or_not():
            try:
                yield
            except BaseException:
                self._before = before
                raise
