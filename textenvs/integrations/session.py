"""The core of every adapter: which episode a row of a host's dataset stands for, and that episode, reply by reply."""

from __future__ import annotations

import itertools
import json
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ..compaction import Compact
from ..env import EnvironmentFailure, StepResult, TextEnv
from ..messages import Message, Messages, copy_messages, text_of
from ..registry import make
from ..trust import Environments, Trust
from ..turn import messages_of_turn
from ..users.moves import without_move


class SpecError(ValueError):
    """An episode's description is malformed; the message says where, and what was expected."""


class SeveralContextsError(RuntimeError):
    """An episode has several conversations, and the host has one an episode."""

    def __init__(self, env: str, reason: str) -> None:
        super().__init__(refusal_of(env, reason))


def refusal_of(env: str, reason: str) -> str:
    """Return the words with which a host of one conversation an episode refuses an environment."""
    return (
        f"{env} {reason}, and this library plays one conversation an episode; train it with `python -m trainers.ppo` "
        "(or TRL, by trainers.integrations.trl.credit.TurnCreditGRPOTrainer), or play it by "
        "textenvs.integrations.torchrl or an OpenEnv server, whose observations are whole"
    )


def several_roles(env: TextEnv[Any]) -> str | None:
    """Return what is to be said of an environment with several roles; ``None`` for one with one role."""
    if len(env.roles) == 1:
        return None
    return f"has several roles ({', '.join(env.roles)}), each with a conversation of its own"


def several_conversations(env: TextEnv[Any]) -> str | None:
    """Return why the episodes of an environment have several conversations; ``None`` where that shows only in one."""
    if isinstance(env, Compact):
        return "has its conversations summarised (`compact`), and each summary begins another one"
    return several_roles(env)


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode: the same spec and the same replies give the same messages, rewards and end.

    Raises:
        SpecError: A field has the wrong type, or ``env_kwargs`` is not JSON.
    """

    env: str  # the environment's id
    seed: int  # what `reset` is given
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the environment's constructor, as in JSON
    task_index: int | None = None  # a task of the set; ``None`` where the seed draws one

    def __post_init__(self) -> None:
        where = "an episode's description"
        if not isinstance(self.env, str) or not self.env:
            raise SpecError(f"{where}: env must be an environment's id, not {self.env!r}")
        for name, number in (("seed", self.seed), ("task_index", 0 if self.task_index is None else self.task_index)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise SpecError(f"{where}: {name} must be an integer of at least 0, not {number!r}")
        if not isinstance(self.env_kwargs, Mapping):
            raise SpecError(f"{where}: env_kwargs must be a mapping, not {type(self.env_kwargs).__name__}")
        try:
            json.dumps(dict(self.env_kwargs), allow_nan=False)
        except (TypeError, ValueError) as problem:
            raise SpecError(f"{where}: env_kwargs must be JSON: {problem}") from None

    @property
    def options(self) -> dict[str, Any] | None:
        """Options of ``reset`` beside the seed."""
        return None if self.task_index is None else {"task_index": self.task_index}

    def make(self) -> TextEnv[Any]:
        return make(self.env, **self.env_kwargs)

    def to_row(self) -> dict[str, Any]:
        """Plain values with one type a column, as Arrow tables want them: ``env_kwargs`` is a JSON text."""
        kwargs = json.dumps(dict(self.env_kwargs), sort_keys=True, ensure_ascii=False)
        return {"env": self.env, "seed": self.seed, "env_kwargs": kwargs, "task_index": self.task_index}

    @classmethod
    def from_row(cls, row: Any, where: str = "the row", environments: Environments | None = None) -> EpisodeSpec:
        """Read a row of :meth:`to_row`, a mapping or its JSON text; ``env_kwargs`` may be a mapping, too.

        ``environments`` is what the person who runs the program allows rows beyond the environments that ship and their
        harmless options (:class:`~textenvs.trust.Trust`); ``where`` is named in errors.

        Raises:
            SpecError: It is not such a row, or it chooses what a row may not.
        """
        row = _parsed(row, where)
        if not isinstance(row, Mapping):
            raise SpecError(f"{where}: expected a mapping, not {type(row).__name__}")
        kwargs = _parsed(row.get("env_kwargs") or {}, f"{where}: env_kwargs")
        try:
            spec = cls(**{**row, "env_kwargs": kwargs})
        except (TypeError, SpecError) as problem:  # an unknown or a missing field; a value
            raise SpecError(f"{where}: {problem}") from None
        if refused := Trust(environments or {}).problem(spec.env, spec.env_kwargs):
            raise SpecError(f"{where}: {refused}")
        return spec


def _parsed(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as problem:  # it may be nested too deeply, or have a number of too many digits
        raise SpecError(f"{where}: not JSON: {problem}") from None


def episode_specs(
    env: str, count: int | None, *, seed: int = 0, env_kwargs: Mapping[str, Any] | None = None
) -> Iterator[EpisodeSpec]:
    """``count`` episodes (``None``: endless), with the seeds ``seed``, ``seed + 1``, ..."""
    if count is not None and (not isinstance(count, int) or count < 1):
        raise SpecError(f"count must be an integer of at least 1, not {count!r}")
    for number in itertools.count() if count is None else range(count):
        yield EpisodeSpec(env, seed + number, env_kwargs or {})


def text_of_all(messages: Messages) -> str:
    """Join the texts of messages, for hosts that take one text."""
    return "\n\n".join(map(text_of, messages))


@dataclass(frozen=True)
class SessionTurn:
    """An environment's answer to one reply, which is ``messages``.

    ``context`` is the next observation as a whole, where it does not extend the conversation.
    """

    messages: Messages
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    context: Messages | None = None

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    @property
    def outcome(self) -> dict[str, Any]:
        """A turn's numbers that hosts record beside its reward."""
        ends = {"terminated": self.terminated, "truncated": self.truncated}
        return ends | {"stop": self.info["stop"], "terms": dict(self.info["terms"])}

    @property
    def metrics(self) -> dict[str, float]:
        """The environment's metrics that hosts may average: without the user's move, which is a number of one."""
        return without_move(self.info.get("metrics") or {})

    @property
    def text(self) -> str:
        return text_of_all((*self.messages, *(self.context or ())))


class Session:
    """Plays one environment, an episode at a time, and keeps what happened.

    Plain and awaitable methods come in pairs, as in the environment; an environment that may block its thread gets one
    of asyncio's own for the awaitable ones. After an exception out of :meth:`reply` the episode is as it was before,
    and the reply may be tried again.

    Args:
        env: The environment.
        contexts: Whether the host takes observations that do not extend the conversation.

    Raises:
        SeveralContextsError: The host takes one conversation an episode, and the environment has several roles or
            summarises. Where that shows only in an episode (a sub-agent, edited history), :meth:`reply` raises it, and
            closes the session.
    """

    def __init__(self, env: TextEnv[Any], *, contexts: bool = False) -> None:
        if not contexts and (reason := several_conversations(env)):
            env.close()
            raise SeveralContextsError(type(env).__name__, reason)
        self.env = env
        self.turns: list[SessionTurn] = []  # of the running episode
        self.info: Mapping[str, Any] = {}  # what reset said of the task
        self._contexts = contexts
        self._messages: Messages = ()
        self._left: tuple[Messages, ...] = ()  # the state's contexts
        self._close = weakref.finalize(self, env.close)  # also when it is collected: many hosts never close

    @classmethod
    def of(cls, spec: EpisodeSpec) -> tuple[Self, Messages]:
        """Return a session that has begun the episode of ``spec``, and the opening messages."""
        session = cls(spec.make())
        try:
            return session, session.start(spec.seed, spec.options)
        except BaseException:
            session.close()
            raise

    @classmethod
    async def aof(cls, spec: EpisodeSpec, *, contexts: bool = False) -> tuple[Self, Messages]:
        session = cls(spec.make(), contexts=contexts)
        try:
            return session, await session.astart(spec.seed, spec.options)
        except BaseException:
            await session.aclose()
            raise

    @property
    def messages(self) -> Messages:
        """The last observation, as a copy."""
        return copy_messages(self._messages)

    @property
    def done(self) -> bool:
        return bool(self.turns) and self.turns[-1].done

    @property
    def turn_rewards(self) -> list[float]:
        return [turn.reward for turn in self.turns]

    @property
    def reward(self) -> float:
        return sum(self.turn_rewards)

    @property
    def terms(self) -> dict[str, float]:
        """The named parts of the reward, each summed over the turns."""
        total: Counter[str] = Counter()
        for turn in self.turns:
            total.update(turn.info["terms"])
        return dict(total)

    @property
    def stop(self) -> str | None:
        """Why the episode is over; ``None`` while it runs."""
        return self.turns[-1].info["stop"] if self.turns else None

    @property
    def failed(self) -> bool:
        """True where a simulator, judge or tool gave up, so that the episode says nothing about the policy."""
        return bool(self.turns) and bool(self.turns[-1].info["failed"])

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def check(self) -> None:
        """Raise ``EnvironmentFailure`` for a failed episode, where the host has no place for one."""
        if self.failed:
            raise EnvironmentFailure(str(self.stop), str(self.turns[-1].info.get("failure", "no reason given")))

    def start(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Messages:
        """Begin an episode, and return its opening messages; raises what ``reset`` raises."""
        return self._opened(*self.env.reset(seed=seed, options=options))

    async def astart(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Messages:
        return self._opened(*await self.env.areset(seed=seed, options=options))

    def reply(self, action: str | Message) -> SessionTurn:
        """Play the assistant's reply; raises what ``step`` raises."""
        return self._played(self.env.step(action))

    async def areply(self, action: str | Message) -> SessionTurn:
        return self._played(await self.env.astep(action))

    def close(self) -> None:
        self._close()

    async def aclose(self) -> None:
        if self._close.detach():
            await self.env.aclose()

    def _opened(self, messages: Messages, info: Mapping[str, Any]) -> Messages:
        self.turns, self.info, self._messages, self._left = [], info, messages, self.env.state.contexts
        return copy_messages(messages)

    def _played(self, result: StepResult) -> SessionTurn:
        conversation, reward, terminated, truncated, info = result
        added, context = messages_of_turn(self.env.state, len(self._messages), self._left)
        if context is not None:
            if not self._contexts:
                self.close()
                reason = "has begun another conversation (compaction, a sub-agent, edited history)"
                raise SeveralContextsError(type(self.env).__name__, reason)
            context = copy_messages(context)
        self._messages, self._left = conversation, self.env.state.contexts
        self.turns.append(SessionTurn(copy_messages(added[1:]), reward, terminated, truncated, info, context))
        return self.turns[-1]
