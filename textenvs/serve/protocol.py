"""The messages between a server of environments and its clients: JSON over HTTP; see docs/serving.md.

``POST /v1/OP`` has the fields of a request as a JSON object, and is answered by a JSON object: the answer, or
``{"error": {"kind", "message", ...}}`` with an HTTP status. A client names its sessions and their turns, so a request
that is sent again, with the same bytes, is carried out once. A task's row or its ground truth never crosses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import fsum, isclose
from typing import Annotated, Any, Self, TypeAlias

import gymnasium
import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from ..bounded_files import parse_json
from ..env import FAILURE_STOPS, LARGEST
from ..messages import Messages, check_conversation, clean_messages
from ..options import PositiveInt
from ..task import Task
from ..turn import check_own_terms

#: Bump on incompatible changes.
PROTOCOL = 5
#: The same for every version of the protocol, so that ``describe`` always works and names the server's version.
PREFIX = "/v1"
#: How many events the ``replay`` of an ``open`` may have, and all that are under way for one owner of a token.
MAX_REPLAY = 10_000
#: Values of a request's JSON, and its nesting: a parsed value takes up to 60 times the bytes of its text.
MAX_VALUES, MAX_DEPTH = 250_000, 100
#: Operations that an operator may allow in addition to playing; see ``docs/serving.md``.
ALLOWANCES: tuple[str, ...] = ("tasks", "expert", "scores")

#: The kinds of errors, and the HTTP status of each.
STATUS: Mapping[str, int] = {
    "bad_request": 400,  # not a message of this protocol
    "unauthorized": 401,  # no token, or a wrong one
    "forbidden": 403,  # the operator does not allow it
    "unknown_environment": 404,
    "unknown_session": 404,  # expired, closed, or of a server that was restarted
    "wrong_turn": 409,  # the session is at another turn
    "busy": 409,  # the session carries out another request
    "reset_needed": 409,  # the episode is over
    "replay_failed": 409,  # the episode that was to be continued ends earlier here
    "too_large": 413,
    "invalid_action": 422,  # gymnasium.error.InvalidAction
    "refused_reset": 422,  # reset raised ValueError, TypeError or an error of Gymnasium
    "full": 429,  # no room for another session, or no memory
    "environment_error": 500,  # the environment raised something else
    "environment_failure": 502,  # EnvironmentFailure in reset
    "overloaded": 503,  # every thread is stuck
    "draining": 503,  # the server is shutting down
    "timeout": 504,  # the environment took too long
}
#: Those that may pass when the same request is sent again a little later.
PASSING: frozenset[str] = frozenset({"busy", "full", "overloaded", "draining"})

#: Exceptions that are raised again as their own class at the client.
ERRORS: Mapping[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (ValueError, TypeError, KeyError, IndexError, RuntimeError, NotImplementedError, gymnasium.error.Error)
}

Json: TypeAlias = dict[str, Any]


class Refusal(Exception):
    """A request that is answered by an error: its kind (:data:`STATUS`), the problem, the remedy, further fields."""

    def __init__(self, kind: str, message: str, *, retry_after_s: float | None = None, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = STATUS[kind]
        self.retry_after_s = retry_after_s
        self.details = details if retry_after_s is None else {**details, "retry_after_s": retry_after_s}

    def to_json(self) -> Json:
        return {"error": {"kind": self.kind, "message": str(self), **self.details}}


Natural = Annotated[int, Field(ge=0)]
#: The client's name of a session. Clients that share a token share its names: they must be long and random.
SessionName = Annotated[str, Field(min_length=16, max_length=128)]
#: The action of a step: the assistant's text, or an assistant message.
Reply: TypeAlias = str | Json


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Said(_Message):
    """A reply of an episode that is replayed."""

    action: Reply


class Reseeded(_Message):
    """A fork with a seed of its own, in an episode that is replayed."""

    reseed: Natural


class Describe(_Message):
    """List the environments and the allowed requests."""


class Open(_Message):
    """Begin an episode, or continue one."""

    session: SessionName
    env: str
    seed: Natural | None = None  # without one the server draws it
    options: Json = Field(default_factory=dict)
    replay: Annotated[list[Said | Reseeded], Field(max_length=MAX_REPLAY)] = Field(default_factory=list)


class OfSession(_Message):
    """A request to a session at a turn: how many replies its episode has had. ``score`` has no other field."""

    session: str
    turn: Natural


class Step(OfSession):
    """Play a reply."""

    action: Reply


class Script(OfSession):
    """Draw a reply of a script from a generator in this state."""

    rng: Json


class Close(_Message):
    """End sessions; those that are not there are no error."""

    sessions: list[str]


#: The operations, and the fields of their requests.
OPS: Mapping[str, type[_Message]] = {
    "describe": Describe,
    "open": Open,
    "step": Step,
    "demonstration": Script,
    "careless_reply": Script,
    "score": OfSession,
    "close": Close,
}


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


def _conversation(messages: Any) -> Messages:
    return clean_messages(check_conversation(messages, "messages"))


def _conversations(values: Any) -> tuple[Messages, ...]:
    if not isinstance(values, list):
        raise ValueError(f"expected a list of conversations, not {type(values).__name__}")
    return tuple(map(_conversation, values))


def _by_number(values: Any) -> Any:
    """Return the values of an object of JSON by integers."""
    return {int(key): value for key, value in values.items()} if isinstance(values, dict) else values


Conversation = Annotated[tuple[Any, ...], PlainValidator(_conversation)]
Conversations = Annotated[tuple[Any, ...], PlainValidator(_conversations)]


class Answer(BaseModel):
    """A server's answer, validated; unknown fields of a newer server are ignored.

    A server may be wrong, or hostile: no number of it overflows a mean, and it says nothing as the assistant.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class RemoteTasks(Answer):
    """Tasks of a remote environment. Their rows stay at the server; keys name them in evaluations."""

    name: str
    size: PositiveInt | None
    digest: str

    def __getitem__(self, index: int) -> Task:
        if index < 0 or (self.size is not None and index >= self.size):
            raise IndexError(f"{self.name}: index {index} is outside its {self.size or 'endless'} tasks")
        return Task(f"{self.digest}/{index}", "", (), None)


class Facts(Answer):
    """Description of an environment."""

    tasks: RemoteTasks
    roles: Annotated[list[str], Field(min_length=1)] = ["assistant"]
    max_assistant_turns: PositiveInt | None
    max_user_turns: PositiveInt | None
    tool_schemas: list[dict[str, Any]]
    tools_not_in_prompt: list[dict[str, Any]]


class Described(Answer):
    """Answer to ``describe``."""

    environments: dict[str, Facts]


class Scripted(Answer):
    """Answer to ``demonstration`` and ``careless_reply``."""

    action: str | dict[str, Any]
    rng: dict[str, Any]


class Scored(Answer):
    """Answer to ``score``."""

    scores: dict[str, Number]


class OpenedInfo(Answer):
    """The task of an observation, and with several roles, the one that it is for (``role``)."""

    task_key: str
    data_source: str
    task_index: int


class Opened(Answer):
    """Answer to ``open``: the current observation, and the conversations that were left before it."""

    turn: Count
    messages: Conversation
    contexts: Conversations = ()
    info: OpenedInfo


class _SteppedInfo(OpenedInfo):
    terms: dict[str, Number]
    earlier: Annotated[dict[int, dict[str, Number]], BeforeValidator(_by_number)] = Field(default_factory=dict)
    own_terms: dict[str, Number] = Field(default_factory=dict)
    metrics: dict[str, Number]
    assistant_turns: Count
    user_turns: Count
    stop: str | None
    failed: bool


class Stepped(Answer):
    """Answer to ``step``, with the fields of the contract of environments.

    ``context`` is the next observation as a whole where it does not extend the conversation, which ``messages`` end.
    """

    turn: Count
    messages: Conversation
    context: Conversation | None = None
    reward: Number
    terminated: bool
    truncated: bool
    info: _SteppedInfo

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        info = self.info
        if not isclose(self.reward, fsum(info.terms.values()), rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"the terms do not sum to the reward of {self.reward:g}")
        check_own_terms(info.model_dump(include={"earlier", "own_terms"}), self.reward)
        if (self.terminated and self.truncated) or (info.stop is not None) != (self.terminated or self.truncated):
            raise ValueError("an episode is either terminated or truncated, and 'stop' says why")
        if info.failed != (info.stop in FAILURE_STOPS) or (info.failed and not self.truncated):
            raise ValueError("'failed' and 'stop' differ about whether the episode failed")
        if any(message["role"] not in ("user", "tool") for message in self.messages[1:]):
            raise ValueError("an environment speaks as user or tool")
        if self.context is not None and (self.terminated or not self.context):
            raise ValueError("a context is an observation of at least one message, and none follows a terminated turn")
        return self


def parse_request(op: str, body: bytes) -> Any:
    """Parse a request's body; a refusal says where and why it is invalid, without repeating its content."""
    if op not in OPS:
        raise Refusal("bad_request", f"there is POST {PREFIX}/{{{','.join(OPS)}}}")
    try:
        return OPS[op].model_validate(decode(body))
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)[:5]
        details = (
            f"{'.'.join(str(part)[:64] for part in problem['loc'])}: {problem['msg'][:256]}" for problem in problems
        )
        raise Refusal("bad_request", f"{op}: {'; '.join(details)}") from None
    except ValueError as error:
        raise Refusal("bad_request", f"the body of a request is JSON: {error}") from None


def encode(message: Any) -> bytes:
    """Encode a message as JSON: pure ASCII, so that lone surrogates pass; NumPy's numbers become plain ones."""
    try:
        return json.dumps(message, allow_nan=False, separators=(",", ":"), default=_plain).encode("ascii")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode(body: bytes | str) -> Any:
    """Parse a message; ``ValueError`` where it is not JSON, or not within :data:`MAX_VALUES` and :data:`MAX_DEPTH`."""
    return parse_json(body, values=MAX_VALUES, depth=MAX_DEPTH)


def weigh(body: bytes) -> int:
    """Estimate the bytes of memory that a JSON text takes at most when decoded, without decoding it.

    A text with more values than a request may have is refused before they are made.
    """
    width = 1 if body.isascii() and b"\\u" not in body else 4
    values = sum(body.count(mark) for mark in (b"[", b"{", b",", b":"))
    return width * len(body) + 64 * min(values, MAX_VALUES)


def set_state(rng: np.random.Generator, state: Json) -> None:
    try:
        rng.bit_generator.state = state
    except (KeyError, TypeError, ValueError, OverflowError) as problem:
        raise Refusal("bad_request", f"'rng' is not the state of a PCG64: {type(problem).__name__}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")
