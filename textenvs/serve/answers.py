"""What a server answers, checked before any of it becomes part of an episode here.

A server may be wrong, or hostile. It cannot put words into the policy's mouth (what the assistant said is known here),
and no number of it overflows a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum, isclose
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..env import FAILURE_STOPS, LARGEST
from ..messages import Message, Messages, check_conversation, clean_messages
from ..options import PositiveInt
from ..text import excerpt
from .client import RemoteError
from .protocol import PROTOCOL

AnswerT = TypeVar("AnswerT", bound="Answer")


def _clean(messages: list[Any]) -> Messages:
    return clean_messages(check_conversation(messages, "messages"))


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Said = Annotated[list[Any], AfterValidator(_clean)]


class Answer(BaseModel):
    """An answer; what a newer server adds to it is left alone."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class TaskFacts(Answer):
    """What a server calls a task set, and how many tasks are in it."""

    name: str
    size: PositiveInt | None


class Facts(Answer):
    """What an environment is."""

    tasks: TaskFacts
    max_assistant_turns: PositiveInt | None
    max_user_turns: PositiveInt | None
    tool_schemas: list[dict[str, Any]]
    tools_not_in_prompt: list[dict[str, Any]]


class Described(Answer):
    """What a server offers."""

    environments: dict[str, Facts]


class Key(Answer):
    """A task that is not played."""

    key: str
    data_source: str


class Scripted(Answer):
    """A scripted reply, and the generator's state after it."""

    action: str | dict[str, Any]
    rng: dict[str, Any]


class Scored(Answer):
    """The scores of a conversation."""

    scores: dict[str, Number]


class OpenedInfo(Answer):
    """The info of a reset."""

    task_key: str
    data_source: str
    task_index: int


class Opened(Answer):
    """A session that was opened."""

    turn: Count
    messages: Said
    info: OpenedInfo


class SteppedInfo(OpenedInfo):
    """The info of a step."""

    terms: dict[str, Number]
    metrics: dict[str, Number]
    assistant_turns: Count
    user_turns: Count
    stop: str | None
    failed: bool


class Stepped(Answer):
    """A step, as the contract of environments has it."""

    turn: Count
    messages: Said
    reward: Number
    terminated: bool
    truncated: bool
    info: SteppedInfo

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        info = self.info
        if not isclose(self.reward, fsum(info.terms.values()), rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"the terms do not sum to the reward of {self.reward:g}")
        if self.terminated and self.truncated:
            raise ValueError("both terminated and truncated")
        if (info.stop is not None) != (self.terminated or self.truncated):
            raise ValueError("'stop' says why the episode is over, and only then")
        if info.failed != (info.stop in FAILURE_STOPS) or (info.failed and not self.truncated):
            raise ValueError("'failed' and 'stop' differ about whether the episode failed")
        if any(message["role"] not in ("user", "tool") for message in self.messages[1:]):
            raise ValueError("an environment speaks as user or tool")
        return self


def checked(kind: type[AnswerT], answer: Mapping[str, Any], url: str) -> AnswerT:
    """An answer of this kind.

    Raises:
        RemoteError: It is none; the message says why.
    """
    try:
        return kind.model_validate(answer)
    except (ValidationError, OverflowError) as error:
        first = error.errors(include_input=False)[0] if isinstance(error, ValidationError) else {"msg": error}
        raise nonsense(f"{'.'.join(map(str, first.get('loc', ())))}: {first['msg']}", url) from None


def check_reply(stepped: Stepped, reply: Message, url: str) -> None:
    """Raise :class:`RemoteError` unless the answer to ``reply`` begins with it, as it was sent."""
    if not stepped.messages or stepped.messages[0] != reply:
        raise nonsense("messages: the first one is not the reply as it was sent", url)


def check_protocol(answer: Mapping[str, Any], url: str) -> None:
    """Raise :class:`RemoteError` if a server's description is of another version of the protocol."""
    told = answer.get("ok", answer)  # version 1 wrapped its answers
    version = told.get("protocol") if isinstance(told, dict) else None
    if version != PROTOCOL:
        raise RemoteError(
            f"{url} speaks version {excerpt(repr(version), 20)} of the protocol, and this textenvs version {PROTOCOL}; "
            "install the same version of textenvs at both ends",
            "bad_request",
        )


def nonsense(what: str, url: str) -> RemoteError:
    """The error for an answer that is none."""
    return RemoteError(
        f"{url} did not answer as the protocol has it ({excerpt(what)}); is that a server of `textenvs serve`?",
        "bad_request",
    )
