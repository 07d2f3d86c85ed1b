"""Results of one assistant message: a turn, a failure, and the state of the episode that it changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import fsum, isclose
from typing import Any, ClassVar, TypeVar

from .messages import Message, Messages, check_conversation, clean_messages, clean_text, plain_text, transcript
from .task import Task
from .text import quoted

#: Stops that say the environment's own machinery failed, not the policy. Such an episode is truncated, and training
#: leaves it out.
FAILURE_STOPS: frozenset[str] = frozenset({"user_failed", "judge_failed", "tool_failed"})

#: Stops that say the conversation outgrew the context of a model that plays the user or judges. Such an episode is
#: truncated and no failure: otherwise a policy that is losing could fill that context, and training would leave its
#: episode out.
NO_ROOM_STOPS: frozenset[str] = frozenset({"user_no_room", "judge_no_room"})

#: The stop of an episode that succeeded.
SOLVED = "solved"

#: Stops set here when a budget ran out.
BUDGET_STOPS: frozenset[str] = frozenset({"max_assistant_turns", "max_user_turns"})

#: The largest reward or metric, in magnitude. Sums of squares of larger ones overflow in a learner's float32: one
#: episode would make every mean infinite.
LARGEST = 1e12


class EnvironmentFailure(Exception):
    """Raised in a hook when a simulator, judge or tool gave up after its retries.

    In ``respond`` it ends the episode as truncated with ``info["stop"] == stop`` (one of :data:`FAILURE_STOPS`) and
    ``info["failure"] == reason``; the action gets reward 0, and training leaves the whole episode out
    (``info["failed"]``). One of :data:`NO_ROOM_STOPS` truncates it, too, but is no failure, and training counts it. In
    ``opening`` there is no episode yet: there it leaves ``reset`` as any other exception does.
    """

    def __init__(self, stop: str, reason: str) -> None:
        if stop not in (known := FAILURE_STOPS | NO_ROOM_STOPS):
            raise ValueError(f"stop must be one of {sorted(known)}, not {stop!r}")
        super().__init__(stop, reason)  # both, so that the exception survives pickling between processes
        self.stop = stop
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.stop}: {self.reason}"


class NoDemonstration(NotImplementedError):
    """Raised in ``demonstration`` when there is none of this task; there may be some of other tasks."""


@dataclass(frozen=True, init=False)
class Turn:
    """The environment's answer to one assistant message.

    Args:
        messages: What is said next to the assistant (user or tool messages). With a ``context``, what answered the
            reply inside the conversation that is left; often nothing.
        reward: The turn's reward. Left out, it is the sum of ``terms``.
        terminated: The task is over (solved, given up, ...). A budget that runs out is not for the author to report.
        stop: Why it is over; given when ``terminated``, and only then.
        terms: The reward by named parts. Left out, the whole reward is one term, ``"reward"``.
        metrics: Numbers worth reporting that are not reward.
        role: Who acts next, where it is another of :attr:`TextEnv.roles <textenvs.env.TextEnv.roles>`. ``messages``
            go on in that role's own conversation, or begin it; with a ``context``, that is its conversation.
        context: The next observation as a whole, where it does not extend the conversation: one that begins anew
            (compaction, a sub-agent), or one that was left before and continues. At least one message; of any role,
            as in an opening. ``None``: the conversation goes on.
        earlier: Terms that earlier turns earned, by the turn's number from 0, where they are known only now. They are
            part of the step's reward and ``info["terms"]``, so returns are right; ``info["earlier"]`` says which part
            is whose, and training adds it to those turns. What is left for this turn is ``info["own_terms"]``.

    Raises:
        ValueError: The terms do not sum to the reward, a number is not finite or above :data:`LARGEST` in magnitude, a
            message is malformed or is not from the user or a tool, ``terminated`` and ``stop`` do not come together, or
            a context is empty, or a context or a role comes with ``terminated``.
    """

    messages: Messages
    reward: float | None  # never None; the type is that of the argument, for dataclasses.replace
    terminated: bool
    stop: str | None
    terms: Mapping[str, float]
    metrics: Mapping[str, float]
    context: Messages | None
    earlier: Mapping[int, Mapping[str, float]]
    role: str | None

    # Written out for speed: one of these is made on every turn of every episode.
    def __init__(
        self,
        messages: Sequence[Message] = (),
        reward: float | None = None,
        terminated: bool = False,
        stop: str | None = None,
        terms: Mapping[str, float] | None = None,
        metrics: Mapping[str, float] | None = None,
        context: Sequence[Message] | None = None,
        earlier: Mapping[int, Mapping[str, float]] | None = None,
        role: str | None = None,
    ) -> None:
        if terms:
            parts = {name: float(value) + 0.0 for name, value in terms.items()}  # -0.0 becomes 0.0
            check_numbers("Turn: reward terms", parts)
            total = fsum(parts.values())
            reward = total if reward is None else float(reward)
            if total != reward and not isclose(total, reward, rel_tol=1e-9, abs_tol=1e-9):
                raise ValueError(f"Turn: the terms {parts} sum to {total}, but reward is {reward}")
        else:
            reward = 0.0 if reward is None else float(reward)
            parts = {"reward": reward}
            check_numbers("Turn: reward terms", parts)
        numbers = {name: float(value) for name, value in metrics.items()} if metrics else {}
        check_numbers("Turn: metrics", numbers)
        if terminated and not stop:
            raise ValueError("Turn: terminated needs a stop that says why, for example stop='solved'")
        if stop is not None:
            if not terminated:
                raise ValueError(f"Turn: stop={stop!r} says that the episode is over, but terminated is not set")
            if stop in BUDGET_STOPS:
                raise ValueError(f"Turn: stop={stop!r} is set by TextEnv when a budget runs out, not by respond()")
            if stop in FAILURE_STOPS:
                raise ValueError(f"Turn: stop={stop!r} is a failure; raise EnvironmentFailure({stop!r}, reason)")
        if terminated and role is not None:
            raise ValueError(f"Turn: a turn that terminates has no next one, so no role; it is {role!r}")
        fields = self.__dict__  # frozen for everybody else
        fields["messages"] = _said(messages)
        fields["reward"] = reward
        fields["terminated"] = terminated
        fields["stop"] = stop
        fields["terms"] = parts
        fields["metrics"] = numbers
        fields["earlier"] = {} if earlier is None else _checked_earlier(earlier)
        fields["context"] = None if context is None else _checked_context(context, terminated)
        fields["role"] = role


def check_numbers(what: str, values: Mapping[str, float]) -> None:
    """Raise ``ValueError`` unless rewards or metrics are finite and at most :data:`LARGEST` in magnitude."""
    for value in values.values():
        if not -LARGEST <= value <= LARGEST:
            bad = {name: value for name, value in values.items() if not -LARGEST <= value <= LARGEST}
            raise ValueError(
                f"{what} must be finite numbers of at most {LARGEST:g} in magnitude, not {quoted(bad)}; scale them"
            )


def _said(messages: Sequence[Message]) -> Messages:
    """Check an environment's messages, and return a clean copy."""
    if type(messages) in (list, tuple) and len(messages) == 1 and (text := plain_text(messages[0], "user")) is not None:
        return ({"role": "user", "content": clean_text(text)},)  # as most environments do on most turns
    checked = check_conversation(messages, "Turn")
    for message in checked:
        if message["role"] not in ("user", "tool"):
            raise ValueError(f"Turn: an environment speaks as user or tool, not as {message['role']}")
    return clean_messages(checked)


def _checked_earlier(earlier: Mapping[int, Mapping[str, float]]) -> dict[int, dict[str, float]]:
    checked = {}
    for number, terms in earlier.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"Turn: earlier has terms by the number of a turn, from 0, not by {number!r}")
        checked[number] = {name: float(value) + 0.0 for name, value in terms.items()}
        check_numbers(f"Turn: terms of the earlier turn {number}", checked[number])
    return checked


def _checked_context(messages: Sequence[Message], terminated: bool) -> Messages:
    context = clean_messages(check_conversation(messages, "Turn: context"))
    if not context:
        raise ValueError("Turn: context has no message; it is the whole next observation")
    if terminated:
        raise ValueError("Turn: a turn that terminates has no next observation, so no context")
    return context


@dataclass
class EpisodeState:
    """All that changes during an episode. Subclass it for more; every field needs a default.

    The fields in ``shared`` are immutable and shared between snapshots; everything else is copied.
    """

    shared: ClassVar[tuple[str, ...]] = ("task", "messages", "contexts", "waiting", "user_side")

    task: Task | None = None
    task_index: int = -1
    #: The current observation.
    messages: Messages = ()
    #: The conversations that were left and do not continue in ``messages``, in the order in which they were left, each
    #: up to the reply that ended it and what answered that. The same object as long as no conversation is left.
    contexts: tuple[Messages, ...] = ()
    #: Whose each of ``contexts`` is, where several roles act; else empty.
    context_roles: tuple[str, ...] = ()
    #: Who acts next, of :attr:`TextEnv.roles <textenvs.env.TextEnv.roles>`, and the conversations of those that acted
    #: before. The mapping is replaced and never changed.
    role: str = "assistant"
    waiting: Mapping[str, Messages] = field(default_factory=dict)
    #: The conversation from the side of a model that plays the user; in ``info["user_messages"]`` of the last turn.
    user_side: Messages = ()
    assistant_turns: int = 0
    user_turns: int = 0
    terminated: bool = False
    truncated: bool = False
    stop: str | None = None
    return_so_far: float = 0.0  # the sum of the turn rewards
    rng: dict[str, Any] | None = None  # filled by snapshot(): the state of np_random

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def shared_values(self) -> list[Any]:
        """Return the values of the fields in ``shared``."""
        return [getattr(self, name) for name in self.shared]


StateT = TypeVar("StateT", bound=EpisodeState)


def copy_state(state: StateT) -> StateT:
    """``copy.deepcopy`` with the fields in ``shared`` shared."""
    return copy.deepcopy(state, {id(value): value for value in state.shared_values()})


def payment(turn: Turn, number: int) -> tuple[float, dict[str, float]]:
    """Return the reward and terms of a step, what it pays to turns before its own included; that is ``number``.

    Raises:
        ValueError: A turn that is paid is not an earlier one, or a sum is above :data:`LARGEST` in magnitude.
    """
    assert turn.reward is not None
    if not turn.earlier:
        return turn.reward, {**turn.terms}
    if (last := max(turn.earlier)) >= number:
        raise ValueError(f"Turn: earlier has terms of turn {last}, and this is turn {number}; its own are in terms")
    parts = [turn.terms, *turn.earlier.values()]
    terms = {name: fsum(part.get(name, 0.0) for part in parts) for name in dict.fromkeys(chain.from_iterable(parts))}
    check_numbers("Turn: terms with those of earlier turns", terms)
    return fsum(terms.values()), terms


def has_success(info: Mapping[str, Any]) -> bool:
    """Return whether episodes can succeed, given a ``reset``'s info (:attr:`TextEnv.has_success`)."""
    return info.get("has_success") is not False


def own_terms(info: Mapping[str, Any]) -> Mapping[str, float]:
    """Return what a step's own turn earned: its terms without those that it pays to earlier turns."""
    own: Mapping[str, float] = info["own_terms"] if "earlier" in info else info["terms"]
    return own


def check_own_terms(info: Mapping[str, Any], reward: float) -> None:
    """Raise ``ValueError`` unless a step's own terms and those of earlier turns, where it pays some, sum to its reward.

    A wrapper that changes one of these and no other breaks it.
    """
    if not info.get("earlier"):
        return
    parts = [info.get("own_terms"), *info["earlier"].values()]
    if not all(isinstance(terms, Mapping) for terms in parts):
        raise ValueError(f"info['own_terms'] comes with info['earlier'], both with terms by name, not {quoted(parts)}")
    values = [float(value) for terms in parts for value in terms.values()]
    if not isclose(total := fsum(values), reward, rel_tol=1e-9, abs_tol=1e-9 * (1.0 + fsum(map(abs, values)))):
        raise ValueError(
            f"info['own_terms'] and info['earlier'] sum to {total:g}, and the reward is {reward:g}: a wrapper that "
            "changes rewards changes all three"
        )


def enter_context(
    contexts: tuple[Messages, ...], current: Messages, context: Messages
) -> tuple[tuple[Messages, ...], int]:
    """Return the conversations that are left when ``context`` is observed, and at which message of it the news begin.

    The context continues the longest of the conversations that it begins with, ``current`` among them; of equal ones,
    the one that was left last. Where it begins with none, all its messages are new: 0.
    """
    conversations = (*contexts, current)
    place = max(
        (place for place, messages in enumerate(conversations) if context[: len(messages)] == messages),
        key=lambda place: (len(conversations[place]), place),
        default=None,
    )
    if place == len(contexts):
        return contexts, len(current)
    if place is None:
        return conversations, 0
    return (*conversations[:place], *conversations[place + 1 :]), len(conversations[place])


def conversations_of(
    state: EpisodeState, turn: Turn, roles: Sequence[str]
) -> tuple[Messages, Messages, Mapping[str, Messages]]:
    """Return the conversation that is left for another role, that of the role, and all that wait from now on."""
    role = str(turn.role)
    if role not in roles:
        raise ValueError(f"Turn: role={role!r} is not one of the environment's roles: {', '.join(roles)}")
    current, context = (*state.messages, *turn.messages), turn.context
    if context is None:
        current, context = state.messages, (*state.waiting.get(role, ()), *turn.messages)
    return current, context, {**state.waiting, state.role: current}


def enter_context_of_role(
    state: EpisodeState, current: Messages, context: Messages, role: str
) -> tuple[tuple[Messages, ...], tuple[str, ...], int]:
    """Return what :func:`enter_context` does where several roles act, and second, whose the conversations are.

    The context continues the longest of ``role``'s own.
    """
    conversations, owners = (*state.contexts, current), (*state.context_roles, state.role)
    own = [place for place, owner in enumerate(owners) if owner == role]
    beginnings = [place for place in own if context[: len(conversations[place])] == conversations[place]]
    if not beginnings:
        return conversations, owners, 0
    place = max(beginnings, key=lambda place: (len(conversations[place]), place))
    start = len(conversations[place])
    if place == len(state.contexts):
        return state.contexts, state.context_roles, start
    return (
        (*conversations[:place], *conversations[place + 1 :]),
        (*owners[:place], *owners[place + 1 :]),
        start,
    )


def messages_of_turn(
    state: EpisodeState, size: int, contexts: tuple[Messages, ...]
) -> tuple[Messages, Messages | None]:
    """Return what a turn added to its conversation (the reply first), and the observation where it is of another.

    Args:
        state: After the turn.
        size: The number of messages in the observation before it.
        contexts: ``state.contexts`` before it, the same object.
    """
    if state.contexts is contexts:
        return state.messages[size:], None
    return state.contexts[-1][size:], state.messages


@dataclass(frozen=True)
class EpisodeMessages:
    """The messages of an episode in the order of time, whatever contexts they are in.

    Args:
        messages: The opening, the replies and what answered each. Of an observation that does not extend the
            conversation, what no earlier one had (at least its last message), without replies that it shows again and
            all between these. In an episode of one conversation: that conversation.
        replies: The policy's among them, one for each turn.
        current: The last observation.
        earlier: The conversations that were left.
    """

    messages: Messages
    replies: Messages
    current: Messages
    earlier: tuple[Messages, ...] = ()

    @classmethod
    def begin(cls, opening: Messages) -> EpisodeMessages:
        return cls(opening, (), opening)

    def step(self, reply: Message, observation: Messages, closing: Messages | None = None) -> EpisodeMessages:
        """Return the messages after a reply.

        Args:
            reply: As it was written, for an environment that does not show it.
            observation: After it.
            closing: ``info["closing"]`` of the step: where the observation is of another conversation, what was added
                to the one that is left, the reply first.
        """
        size = len(self.current)
        has_reply = len(observation) > size and observation[size]["role"] == "assistant"
        if closing is None and has_reply and observation[:size] == self.current:
            added = observation[size:]
            return EpisodeMessages((*self.messages, *added), (*self.replies, added[0]), observation, self.earlier)
        added = closing or (reply,)
        conversations = (*self.earlier, (*self.current, *added))
        start = max(_in_common(conversation, observation) for conversation in conversations)
        news = observation[min(start, len(observation) - 1) :]
        if places := [place for place, message in enumerate(news) if message["role"] == "assistant"]:
            news = (*news[: places[0]], *news[places[-1] + 1 :])
        earlier = tuple(one for one in conversations if observation[: len(one)] != one)
        return EpisodeMessages((*self.messages, *added, *news), (*self.replies, added[0]), observation, earlier)


def _in_common(one: Messages, other: Messages) -> int:
    """Return how many messages both conversations begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def transcript_of(state: EpisodeState) -> str:
    """Return the transcript of an episode: the conversations that were left, and the current one."""
    if not state.contexts:
        return transcript(state.messages)
    contexts = [f"[context that was left]\n{transcript(context)}" for context in state.contexts]
    return "\n".join([*contexts, "[current context]", transcript(state.messages)])
