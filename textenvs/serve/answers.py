"""What a server answers, checked before any of it becomes part of an episode here.

A server may be wrong, or hostile. It cannot put words into the policy's mouth (what the assistant said is known here),
and no number of it overflows a mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum, isclose
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, model_validator

from ..env import FAILURE_STOPS, LARGEST
from ..messages import Message, check_conversation, clean_messages
from ..options import PositiveInt
from ..task import Task
from ..text import excerpt
from .client import RemoteError
from .protocol import PROTOCOL

AnswerT = TypeVar("AnswerT", bound="Answer")

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Said = Annotated[tuple[Any, ...], PlainValidator(lambda said: clean_messages(check_conversation(said, "messages")))]


class Answer(BaseModel):
    """An answer; what a newer server adds to it is left alone."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class RemoteTasks(Answer):
    """The tasks of an environment elsewhere. Their rows stay there; keys say which they are, as evaluations note."""

    name: str
    size: PositiveInt | None
    digest: str

    def __getitem__(self, index: int) -> Task:
        if index < 0 or (self.size is not None and index >= self.size):
            raise IndexError(f"{self.name}: index {index} is outside its {self.size or 'endless'} tasks")
        return Task(f"{self.digest}/{index}", "", (), None)


class Facts(Answer):
    """What an environment is."""

    tasks: RemoteTasks
    max_assistant_turns: PositiveInt | None
    max_user_turns: PositiveInt | None
    tool_schemas: list[dict[str, Any]]
    tools_not_in_prompt: list[dict[str, Any]]


class Described(Answer):
    """Of ``describe``."""

    environments: dict[str, Facts]


class Scripted(Answer):
    """Of ``demonstration`` and ``careless_reply``."""

    action: str | dict[str, Any]
    rng: dict[str, Any]


class Scored(Answer):
    """Of ``score``."""

    scores: dict[str, Number]


class _OpenedInfo(Answer):
    task_key: str
    data_source: str
    task_index: int


class Opened(Answer):
    """Of ``open``."""

    turn: Count
    messages: Said
    info: _OpenedInfo


class _SteppedInfo(_OpenedInfo):
    terms: dict[str, Number]
    metrics: dict[str, Number]
    assistant_turns: Count
    user_turns: Count
    stop: str | None
    failed: bool


class Stepped(Opened):
    """Of ``step``, as the contract of environments has it."""

    reward: Number
    terminated: bool
    truncated: bool
    info: _SteppedInfo

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        info = self.info
        if not isclose(self.reward, fsum(info.terms.values()), rel_tol=1e-6, abs_tol=1e-6):
            raise ValueError(f"the terms do not sum to the reward of {self.reward:g}")
        if (self.terminated and self.truncated) or (info.stop is not None) != (self.terminated or self.truncated):
            raise ValueError("an episode is either terminated or truncated, and 'stop' says why")
        if info.failed != (info.stop in FAILURE_STOPS) or (info.failed and not self.truncated):
            raise ValueError("'failed' and 'stop' differ about whether the episode failed")
        if any(message["role"] not in ("user", "tool") for message in self.messages[1:]):
            raise ValueError("an environment speaks as user or tool")
        return self


def checked(kind: type[AnswerT], answer: Mapping[str, Any], url: str, reply: Message | None = None) -> AnswerT:
    """An answer of this kind, or a :class:`RemoteError`; that of a ``step`` begins with the reply."""
    try:
        found = kind.model_validate(answer)
    except (ValidationError, OverflowError) as error:
        first: Any = error.errors()[0] if isinstance(error, ValidationError) else {"loc": ("a number",), "msg": error}
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    else:
        if not isinstance(found, Stepped) or found.messages[:1] == (reply,):
            return found
        what = "messages: the first one is not the reply as it was sent"
    raise RemoteError(
        f"{url} did not answer as the protocol has it ({excerpt(what)}); is that a server of `textenvs serve`?",
        "bad_request",
    )


def check_protocol(answer: Mapping[str, Any], url: str) -> None:
    """Raise :class:`RemoteError` if a server's description is of another version of the protocol."""
    if (version := answer.get("protocol")) != PROTOCOL:
        raise RemoteError(
            f"{url} speaks version {excerpt(repr(version), 20)} of the protocol, and this textenvs version {PROTOCOL}; "
            "install the same version of textenvs at both ends",
            "bad_request",
        )
