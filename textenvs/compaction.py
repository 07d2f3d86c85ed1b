"""Compaction: where a conversation becomes long, the policy writes a summary, and goes on from that.

The environment within never notices. Its ``state.messages`` is the whole conversation; what the policy observes is the
opening with the last summary, and the messages since. A summary is a turn of its own: its reward is 0, and it earns by
the turns that follow. Its request continues the conversation, and the observation after it begins anew (as with
``Turn.context``).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from .actions import as_reply, separated
from .attack import Attack
from .env import ResetResult, StepResult, TextEnv
from .messages import Message, Messages, clean_text, copy_messages, text_of, transcript, user, visible_text
from .options import NonNegativeInt, PositiveInt, checked, resolve
from .privileged import Privilege
from .task import Task
from .turn import EpisodeState, Turn, enter_context

REQUEST = (
    "The conversation has become long. Write a summary of it for yourself: what you know, what you have done, and what "
    "is left to do. You will go on from the task, this summary and the last messages, without the rest."
)
#: The line before a summary, in the message that shows it.
HEADING = "Your summary of the conversation so far:"


@dataclass
class CompactState(EpisodeState):
    """The state of the environment within, and what of its conversation the policy sees."""

    inner: EpisodeState = field(default_factory=EpisodeState)
    opening_size: int = 0  #: messages of the opening
    head: Messages = ()  #: shown in place of the first ``start`` messages
    start: int = 0
    awaits_summary: bool = False  #: whether the next reply is a summary
    summaries: int = 0
    turn_since: bool = True  #: whether a turn was played since the last summary
    #: Of each conversation that the environment within has left: the conversation, and what the policy saw of it
    views: tuple[tuple[Messages, Messages, int, int], ...] = ()
    turns: tuple[int, ...] = ()  #: by turn of the environment within: its number among all turns
    terms: tuple[str, ...] = ("reward",)  #: the names of the last reward's terms

    def shared_values(self) -> list[Any]:
        return [*super().shared_values(), self.views, *self.inner.shared_values()]


class Compact(TextEnv[CompactState]):
    """An environment whose policy summarises conversations that become long.

    A summary is requested after a turn whose conversation is longer than ``tokens``, at most once between two turns,
    and only where it shortens the conversation. ``tokens`` is no limit: a conversation whose opening and last messages
    are longer goes on. A summary of more than half of ``tokens`` is cut. Budgets of turns do not count summaries.

    Args:
        env: A text environment, of any kind; it belongs to this one from now on.
        tokens: The length from which on a summary is requested, counted by ``count``.
        keep: How many of the last messages stay as they are, at least; they begin with a reply.
        count: Counts a text's tokens: a callable, or ``"module:name"`` of one. ``None`` estimates four characters a
            token.
        request: The request for a summary.
        script: Writes the summary of demonstrations: a callable from what the policy sees, without the request, or its
            name. ``None`` quotes what was said to the policy since the opening, the latest first.
    """

    state_type: ClassVar[type[EpisodeState]] = CompactState

    @checked
    def __init__(
        self,
        env: Any,
        tokens: PositiveInt,
        keep: NonNegativeInt = 2,
        count: Callable[[str], int] | str | None = None,
        request: str = REQUEST,
        script: Callable[[Messages], str] | str | None = None,
    ) -> None:
        while isinstance(env, (OrderEnforcing, PassiveEnvChecker)):
            env = env.env
        if not isinstance(env, TextEnv):
            raise TypeError(
                f"Compact is for a text environment itself, not for a {type(env).__name__}; wrap its result"
            )
        if len(env.roles) > 1:
            raise ValueError(f"Compact is for one role, and this environment has {', '.join(env.roles)}")
        super().__init__(env.tasks, render_mode=env.render_mode)
        env.render_mode = None  # this one prints what the policy sees
        self.env, self.tokens, self.keep, self.request = env, tokens, keep, request
        self.count = _estimate if count is None else resolve("count", count)
        self.script = None if script is None else resolve("script", script)
        for name in ("blocking", "has_success", "levels", "attack_margin", "own_script"):
            setattr(self, name, getattr(env, name))
        self.max_assistant_turns, self.max_user_turns = env.max_assistant_turns, env.max_user_turns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.__dict__["env"], name)

    # ------------------------------------------------------------------ hooks of the environment within

    def attacks(self) -> Sequence[Attack]:
        return self._inner().attacks()

    def secrets(self) -> Sequence[str]:
        return self._inner().secrets()

    def twin(self, task: Task) -> Task | None:
        return self.env.twin(task)

    def reveals(self, reply: Message) -> bool:
        return not self.state.awaits_summary and self._inner().reveals(reply)

    def conversation_score(self) -> Mapping[str, float] | Awaitable[Mapping[str, float]]:
        return self._inner().conversation_score()

    def privileged(self, kind: Privilege, rng: np.random.Generator) -> str | None | Awaitable[str | None]:
        if kind == "expert":
            return super().privileged(kind, rng)  # of the summary, too
        return self._inner().privileged(kind, rng)

    def close(self) -> None:
        self.env.close()

    async def aclose(self) -> None:
        await self.env.aclose()

    def check_options(self, options: Mapping[str, Any]) -> None:
        self.env.check_options(options)

    @property
    def scripts(self) -> frozenset[str]:
        return self.env.scripts

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        return self._summary_by_script() if self.state.awaits_summary else self._inner().demonstration(rng)

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        return self._summary_by_script() if self.state.awaits_summary else self._inner().careless_reply(rng)

    def _summary_by_script(self) -> str:
        state = self.state
        if self.script is not None:
            return self.shortened(self.script(self._view()))
        since = state.inner.messages[max(state.opening_size, state.start) :]
        words = [text_of(message) for message in since if message["role"] != "assistant"]
        before = text_of(state.head[-1]).rpartition(f"{HEADING}\n")[2] if state.head else ""
        return self.shortened("\n".join([*reversed(words), before]).strip())

    # ------------------------------------------------------------------ snapshots

    def snapshot(self) -> CompactState:
        saved = super().snapshot()
        saved.inner = self._inner().snapshot()
        return saved

    def restore(self, state: CompactState, seed: int | None = None) -> None:
        super().restore(state, seed)
        self.env.restore(state.inner)
        self.state.inner = self.env.state

    def fork(self, seed: int | None = None) -> Self:
        child = super().fork(seed)
        child.env = self._inner().fork()
        return child

    # ------------------------------------------------------------------ an episode

    def _inner(self) -> TextEnv[Any]:
        """Return the environment within, in the state that belongs to this one's, with this one's randomness."""
        self.env.state, self.env._np_random = self.state.inner, self.np_random
        return self.env

    def _begin_episode(
        self, seed: int | None, options: dict[str, Any] | None
    ) -> ResetResult | Coroutine[Any, Any, ResetResult]:
        gymnasium.Env.reset(self, seed=seed)
        self.state, self._printed = CompactState(), 0
        self.env._np_random = self.np_random
        result = self.env._begin_episode(None, options)
        return self._opened_later(result) if inspect.isawaitable(result) else self._opened(result)

    async def _opened_later(self, result: Awaitable[ResetResult]) -> ResetResult:
        return self._opened(await result)

    def _opened(self, result: ResetResult) -> ResetResult:
        inner = self.env.state
        self.state = CompactState(
            task=inner.task, task_index=inner.task_index, inner=inner, opening_size=len(inner.messages)
        )
        self.state.messages = inner.messages
        if self.render_mode == "human":
            self.render()
        return copy_messages(inner.messages), result[1]

    def _play(self, action: str | Message) -> StepResult | Coroutine[Any, Any, StepResult]:
        state = self.state
        if not state.messages or state.done:
            raise gymnasium.error.ResetNeeded(
                f"Compact: the episode is {'over' if state.done else 'not started'}; call reset() first"
            )
        if state.awaits_summary:
            reply, marks = as_reply(action, state.messages), self.env.reasoning_marks
            return self._take_summary(reply if marks is None else separated(reply, marks, self._inner()._call_spans))
        contexts = state.inner.contexts
        result = self._inner()._play(action)
        return self._played_later(result, contexts) if inspect.isawaitable(result) else self._played(result, contexts)

    async def _played_later(self, result: Awaitable[StepResult], contexts: tuple[Messages, ...]) -> StepResult:
        return self._played(await result, contexts)

    def _played(self, result: StepResult, contexts: tuple[Messages, ...]) -> StepResult:
        """Return a step's result as the policy sees it; ``contexts`` were left within before the step."""
        state, inner = self.state, self.env.state
        observation, reward, terminated, truncated, info = result
        state.turns = (*state.turns, state.assistant_turns)
        state.assistant_turns += 1
        state.inner, state.turn_since, state.terms = inner, True, tuple(info["terms"])
        for name in ("user_side", "user_turns", "terminated", "truncated", "stop", "return_so_far"):
            setattr(state, name, getattr(inner, name))
        if inner.contexts is contexts:
            state.messages = self._view()
        else:  # the environment within begins anew by itself
            state.messages = (*state.head, *inner.contexts[-1][state.start :])
            self._enter(inner)
            contexts, first = enter_context(state.contexts, state.messages, self._view())
            self._print_context(contexts, first)
            state.contexts, state.messages = contexts, self._view()
        if not state.done and self._is_long():
            state.awaits_summary = True
            state.messages = _with_text(state.messages, self.request)
        metrics = {**info["metrics"], "summaries": float(state.summaries)}
        info = {**info, "assistant_turns": state.assistant_turns, "metrics": metrics}
        if "earlier" in info:
            info = {**info, "earlier": {state.turns[turn]: terms for turn, terms in info["earlier"].items()}}
        if self.render_mode == "human":
            self.render()
        return copy_messages(state.messages), reward, terminated, truncated, info

    def _enter(self, inner: EpisodeState) -> None:
        """Leave the conversation within, and see the one that it continues as before, or all of a new one."""
        state = self.state
        views = [*state.views, (inner.contexts[-1], state.head, state.start, state.opening_size)]
        before = [view for view in views if inner.messages[: len(view[0])] == view[0]]
        state.head, state.start, state.opening_size = (), 0, len(inner.messages)
        if before:
            view = max(before, key=lambda view: len(view[0]))
            _, state.head, state.start, state.opening_size = view
            views.remove(view)
        state.views = tuple(views)

    def _view(self) -> Messages:
        return (*self.state.head, *self.state.inner.messages[self.state.start :])

    def _is_long(self) -> bool:
        """Return whether the conversation is too long, and shorter with the longest summary."""
        state = self.state
        if not state.turn_since or (start := self._cut()) is None:
            return False
        size = self.count(transcript(self._view()))
        rest = (*state.inner.messages[: state.opening_size], *state.inner.messages[start:])
        return size > max(self.tokens, self.count(transcript(rest)) + self.tokens // 2)

    def _cut(self) -> int | None:
        """Return the message within from which on all stay; ``None`` where that leaves nothing out."""
        state = self.state
        messages, first = state.inner.messages, max(state.opening_size, state.start)
        start = len(messages) - self.keep
        while self.keep and start > first and messages[start]["role"] != "assistant":
            start -= 1
        return start if start > first else None

    def _take_summary(self, reply: Message) -> StepResult:
        state = self.state
        start = self._cut()
        assert start is not None, "a summary is requested only where it shortens the conversation"
        summary = self.shortened(clean_text(visible_text(reply)).strip())
        opening = state.inner.messages[: state.opening_size]
        current = (*state.messages, reply)
        state.head, state.start = _with_text(opening, f"{HEADING}\n{summary or '(nothing)'}"), start
        contexts, first = enter_context(state.contexts, current, self._view())
        state.messages = current
        self._print_context(contexts, first)
        state.messages, state.contexts, state.awaits_summary, state.turn_since = self._view(), contexts, False, False
        state.assistant_turns += 1
        state.summaries += 1
        zeros = dict.fromkeys(state.terms, 0.0)
        turn = Turn(terms=zeros, metrics={"summaries": float(state.summaries)})
        return self._result(turn, 0.0, zeros, closing=copy_messages((reply,)))

    def shortened(self, text: str) -> str:
        """Return what stays of a summary: at most half of ``tokens``."""
        limit = self.tokens // 2
        while text and (size := self.count(text)) > limit:
            text = text[: min(len(text) - 1, len(text) * limit // size)]
        return text


def _estimate(text: str) -> int:
    return -(-len(text) // 4)


def _with_text(messages: Messages, text: str) -> Messages:
    """Return messages that end with this text: in the last one where it is the user's, as many templates want it."""
    *before, last = messages
    if last["role"] == "user" and isinstance(last["content"], str):
        return (*before, {**last, "content": f"{last['content']}\n\n{text}"})
    return (*messages, user(text))
