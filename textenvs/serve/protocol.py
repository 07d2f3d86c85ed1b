"""The messages between a server of environments and its clients: one vocabulary for HTTP and WebSocket.

A request is a JSON object with an ``id``, which the client chooses, and an ``op``. It is answered by ``{"id", "ok"}``
or ``{"id", "error"}``. A request that is sent again under its id, over whatever connection, is answered as before and
carried out once; so a client that has lost a connection sends what it is owed again.

What crosses: observations (messages) and ``info``; and, only where the operator allows it, what a demonstrator says
and scores. Never a task's row or its ground truth.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import gymnasium
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

#: Raised when a client of before would misunderstand a server of now, or the other way round.
PROTOCOL = 1
#: Where a server speaks it, over HTTP (``PREFIX/<op>``) and as WebSocket (``PREFIX/ws``).
PREFIX = "/v1"

#: How many events the ``replay`` of an ``open`` may have.
MAX_REPLAY = 10_000

#: What an operator may allow beyond playing; see ``docs/serving.md``.
ALLOWANCES: tuple[str, ...] = ("tasks", "kwargs", "expert", "scores")

#: The kinds of errors, and the HTTP status of each.
STATUS: Mapping[str, int] = {
    "bad_request": 400,  # not a message of this protocol
    "unauthorized": 401,  # no token, or a wrong one
    "forbidden": 403,  # the operator does not allow it
    "unknown_environment": 404,
    "unknown_session": 404,  # expired, closed, or of a server that is no more
    "wrong_turn": 409,  # the session is at another turn
    "busy": 409,  # the session is at work for another request
    "reset_needed": 409,  # the episode is over
    "replay_failed": 409,  # the episode that was to be continued ends earlier here
    "too_large": 413,
    "invalid_action": 422,  # gymnasium.error.InvalidAction
    "refused_reset": 422,  # reset raised ValueError, TypeError or an error of Gymnasium
    "full": 429,  # no room for another session
    "environment_error": 500,  # the environment raised something else
    "environment_failure": 502,  # EnvironmentFailure in reset
    "overloaded": 503,  # too many requests at work
    "draining": 503,  # the server is shutting down
    "timeout": 504,  # the environment took too long
}
#: Those that may pass when the same request is sent again a little later.
PASSING: frozenset[str] = frozenset({"busy", "full", "overloaded", "draining"})

#: Classes of exceptions that arrive as what they were.
ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ValueError, TypeError, KeyError, IndexError, RuntimeError, NotImplementedError, gymnasium.error.Error)
}

Json: TypeAlias = dict[str, Any]


class Refusal(Exception):
    """A request that is answered by an error.

    Args:
        kind: One of :data:`STATUS`.
        message: What was wrong, and what to do.
        retry_after_s: When to try again, for those of :data:`PASSING`.
        **details: More fields of the error: ``exception``, ``stop``, ``turn``.
    """

    def __init__(self, kind: str, message: str, *, retry_after_s: float | None = None, **details: Any) -> None:
        assert kind in STATUS, kind
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.details = details

    @property
    def status(self) -> int:
        """As an HTTP status."""
        return STATUS[self.kind]

    def to_json(self) -> Json:
        """The field ``error`` of an answer."""
        told = {"kind": self.kind, "message": str(self), **self.details}
        return told if self.retry_after_s is None else {**told, "retry_after_s": self.retry_after_s}


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Request(_Message):
    id: Annotated[str, Field(min_length=1, max_length=128)]


class Replayed(_Message):
    """Something that happened in an episode: a reply, or a fork with a seed of its own.

    Args:
        action: What ``step`` was given.
        reseed: What ``fork`` was given.
    """

    action: str | dict[str, Any] | None = None
    reseed: Annotated[int, Field(ge=0)] | None = None


class Describe(_Request):
    """Which environments there are, what may be asked, and how large a request may be.

    Args:
        env: Tell of this one alone.
        kwargs: What it would be with these arguments; only where that is allowed.
    """

    op: Literal["describe"]
    env: str | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Open(_Request):
    """Begin an episode, in a session of its own.

    Args:
        env: Which of the server's environments.
        seed: For ``reset``; without one the server draws it, and says which.
        options: For ``reset``.
        kwargs: For the constructor, beside the operator's; only where that is allowed.
        replay: What happened in the episode so far: it is played again, and the session goes on from there. At most
            :data:`MAX_REPLAY` events; of reseeds in a row, only the last is carried out.
        replaces: A session that this one takes the place of; it is closed.
    """

    op: Literal["open"]
    env: str
    seed: Annotated[int, Field(ge=0)] | None = None
    options: dict[str, Any] | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    replay: Annotated[list[Replayed], Field(max_length=MAX_REPLAY)] = Field(default_factory=list)
    replaces: str | None = None


class _OfSession(_Request):
    session: str
    turn: Annotated[int, Field(ge=0)]


class Step(_OfSession):
    """Play a reply.

    Args:
        session: What ``open`` answered.
        turn: Which turn this is: how many replies the episode has had.
        action: The assistant's text, or an assistant message.
    """

    op: Literal["step"]
    action: str | dict[str, Any]


class Script(_OfSession):
    """What the scripted expert (``demonstration``) or somebody careless (``careless_reply``) would reply.

    Args:
        session: What ``open`` answered.
        turn: The turn that the episode is at.
        rng: The state of the bit generator that draws, as NumPy gives it.
    """

    op: Literal["demonstration", "careless_reply"]
    rng: dict[str, Any]


class Score(_OfSession):
    """``conversation_score`` of the episode as it stands.

    Args:
        session: What ``open`` answered.
        turn: The turn that the episode is at.
    """

    op: Literal["score"]


class Close(_Request):
    """Forget a session; that of one which is not there is no error.

    Args:
        session: What ``open`` answered.
    """

    op: Literal["close"]
    session: str


class TaskKey(_Request):
    """The key of a task: all that is told of one that is not played.

    Args:
        env: Which of the server's environments.
        index: Which of its tasks.
        kwargs: As in ``open``.
    """

    op: Literal["task"]
    env: str
    index: Annotated[int, Field(ge=0)]
    kwargs: dict[str, Any] = Field(default_factory=dict)


Request: TypeAlias = Describe | Open | Step | Script | Score | Close | TaskKey
#: What a request may ask for.
OPS: tuple[str, ...] = ("describe", "open", "step", "demonstration", "careless_reply", "score", "close", "task")

#: How much is repeated of the name of a field: one that is unknown is the client's text.
_SHOWN = 64

_ADAPTER: TypeAdapter[Any] = TypeAdapter(Annotated[Request, Field(discriminator="op")])


def parse_request(message: Any) -> Request:
    """A decoded message as a request.

    Raises:
        Refusal: It is none; the message says where and why, without repeating what was sent.
    """
    if not isinstance(message, dict):
        raise Refusal("bad_request", f"a message is a JSON object, not {_kind(message)}")
    if message.get("op") not in OPS:
        raise Refusal("bad_request", f"'op' must be one of {', '.join(OPS)}")
    try:
        return _ADAPTER.validate_python(message)  # type: ignore[no-any-return]
    except ValidationError as problems:
        found = [
            f"{'.'.join(str(part)[:_SHOWN] for part in problem['loc'][1:]) or 'the message'}: {problem['msg'][:256]}"
            for problem in problems.errors(include_input=False, include_url=False, include_context=False)[:5]
        ]
        raise Refusal("bad_request", f"op {message['op']!r}: {'; '.join(found)}") from None


def fingerprint(message: Mapping[str, Any]) -> str:
    """What a request asks for, whatever its id, as a short text: two that share an id must share this, too."""
    asked = json.dumps({name: value for name, value in message.items() if name != "id"}, sort_keys=True)
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()


def encode(message: Mapping[str, Any]) -> str:
    """A message as JSON text: pure ASCII, so that lone surrogates pass; NumPy's numbers become plain ones.

    Raises:
        TypeError: Something in it is not JSON.
        ValueError: A number is not finite.
    """
    return json.dumps(message, allow_nan=False, separators=(",", ":"), default=_plain)


def decode(text: str | bytes) -> Any:
    """A received text as JSON.

    Raises:
        Refusal: It is not.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as problem:
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise Refusal("bad_request", f"a message is JSON: {why}") from None


def generator_state(rng: np.random.Generator) -> Json:
    """The state of a generator as JSON; :func:`generator_from` is the way back.

    Raises:
        ValueError: Its bit generator is not NumPy's default, PCG64, whose state is plain numbers.
    """
    state = dict(rng.bit_generator.state)
    if state["bit_generator"] not in _GENERATORS:
        raise ValueError(
            f"a remote demonstrator takes a generator of {' or '.join(_GENERATORS)} (numpy.random.default_rng), "
            f"not {state['bit_generator']}"
        )
    return state


def generator_from(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator in the given state.

    Raises:
        Refusal: It is no such state.
    """
    try:
        bits = _GENERATORS[state["bit_generator"]]()
        bits.state = dict(state)
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise Refusal("bad_request", f"'rng' is not the state of a generator: {type(problem).__name__}") from None
    return np.random.Generator(bits)


_GENERATORS: dict[str, Any] = {"PCG64": np.random.PCG64, "PCG64DXSM": np.random.PCG64DXSM}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number is too large")
    return number


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
