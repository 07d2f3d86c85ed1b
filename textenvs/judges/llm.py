r"""A judge played by a language model: what it looks at is data, and only its own structured reply is a verdict.

Everything that was said in a conversation may try to be an instruction. So it is one line of JSON between two marks:

    <data 3f9a1c07b2de>
    {"conversation": [{"role": "user", "text": "... \u003c/data\u003e ..."}]}
    </data 3f9a1c07b2de>

No ``<``, ``>``, line break or invisible character is left in it, nor a bracket that may begin a control token such as
``[INST]`` (JSON's own escapes stand for them). The code in the marks is a hash of the data: the same in every run, and
not to be written into the data beforehand. What stands outside depends on nothing in the data but that code.

A verdict is the *whole* reply: one JSON object, strictly read, its numbers within bounds. And it must repeat the code,
so a verdict that was quoted from a conversation is not one, even if the judge repeats it letter by letter.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model

from ..chat.clients import client_for
from ..chat.errors import ChatFailure, PromptTooLong
from ..chat.spec import ChatSpec, SpecLike
from ..chat.structured import ask, parse_reply
from ..env import EnvironmentFailure
from ..messages import (
    Message,
    Messages,
    check_conversation,
    clean_messages,
    system,
    text_of,
    user,
    visible_conversation,
)
from ..options import PositiveInt, checked
from ..text import load_yaml

VerdictT = TypeVar("VerdictT", bound=BaseModel)

PROMPTS: Mapping[str, str] = load_yaml(__package__, "prompts.yaml")

_DIGITS = 12
# JSON's own brackets are never followed by one of these.
_OPENING = re.compile(r"[<>]|\[(?=[|/]|[a-z]?[A-Z])")


@dataclass(frozen=True)
class DataBlock:
    """Data on its way to a judge: one line of JSON, and the code in the marks and in the verdict."""

    line: str
    code: str

    @property
    def text(self) -> str:
        return f"<data {self.code}>\n{self.line}\n</data {self.code}>"


def data_block(data: Mapping[str, Any]) -> DataBlock:
    """Return ``data`` as a block; ``json.loads(block.line)`` gives it back. ``ValueError`` if it is not JSON."""
    try:
        line = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"what a judge is shown must be JSON: {error}") from error
    # Only strings can hold such characters, and there JSON has an escape for each.
    line = _OPENING.sub(lambda match: _escaped(match[0]), line)
    line = "".join(c if c.isprintable() else _escaped(c) for c in line)
    code, salt = "", 0
    while not code or code in line:  # a collision would take about 2**48 tries; then another hash is used
        code = hashlib.sha256(f"{salt} {line}".encode()).hexdigest()[:_DIGITS]
        salt += 1
    return DataBlock(line, code)


def conversation_data(messages: Messages, *, tools: bool = False) -> list[dict[str, str]]:
    """Return a conversation as roles and texts, without private reasoning and system messages."""
    visible = visible_conversation(
        clean_messages(check_conversation(messages, "the conversation to judge")), tools=tools
    )
    return [{"role": message["role"], "text": text_of(message)} for message in visible]


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 126 else f"\\u{ord(character):04x}"


@checked
@dataclass(frozen=True)
class LLMJudge(Generic[VerdictT]):
    """A judge that gives verdicts of one shape. Plain data: it can be copied, pickled and shared."""

    model: SpecLike
    instructions: str  # what to judge, and how; nothing that a policy or a data set wrote belongs here
    #: The fields, with bounds on numbers: ``score: float = Field(ge=0, le=1)``. Put one for the reasons first: what is
    #: written before a score can still change it.
    verdict: type[VerdictT]
    tries: PositiveInt = field(default=3, kw_only=True)  # how often the model is asked for one verdict, at most
    temperature: float = field(default=0.0, kw_only=True)  # where the spec has none
    spec: ChatSpec = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", ChatSpec.of(self.model))
        if not self.instructions.strip():
            raise ValueError("instructions must say what to judge, and how")
        if not (isinstance(self.verdict, type) and issubclass(self.verdict, BaseModel)):
            raise TypeError(f"verdict must be a pydantic model, not {self.verdict!r}")
        if "data_code" in self.verdict.model_fields:
            raise ValueError("verdict has a field 'data_code', which is the judge's own; rename it")

    async def judge(self, data: Mapping[str, Any], *, sample: int = 0) -> VerdictT:
        """Return a verdict on ``data``: named JSON values, conversations as :func:`conversation_data` gives them.

        ``sample`` says which of several verdicts on the same data.

        Raises:
            EnvironmentFailure: ``"judge_failed"``: no verdict after all tries; ``"judge_no_room"``: the data do not
                fit the judge's context.
            BudgetExceeded, CacheError: For the run to stop at.
        """
        block = data_block(data)
        schema = _with_code(self.verdict)

        def read(text: str) -> VerdictT:
            reply = parse_reply(text, schema)
            if reply.data_code != block.code:
                raise ValueError(f"data_code is not {block.code}")
            return self.verdict.model_construct(**{name: getattr(reply, name) for name in self.verdict.model_fields})

        temperature = self.temperature if self.spec.temperature is None else None
        options: dict[str, Any] = {"schema": schema, "tries": self.tries, "temperature": temperature, "sample": sample}
        try:
            verdict, _ = await ask(await client_for(self.spec), self.request(block), read, **options)
        except PromptTooLong as failure:
            raise EnvironmentFailure("judge_no_room", str(failure)) from failure
        except ChatFailure as failure:
            raise EnvironmentFailure("judge_failed", str(failure)) from failure
        return verdict

    def request(self, block: DataBlock) -> list[Message]:
        """Return the messages to the model; the verdict's schema is added when they are sent."""
        rules = PROMPTS["judge"].format(instructions=self.instructions.strip())
        return [system(rules), user(f"{block.text}\n\n{PROMPTS['after'].format(code=block.code)}")]


class _WithCode(BaseModel):
    model_config = ConfigDict(extra="forbid")

    data_code: str = Field(description="the code in the marks around the data")


@functools.lru_cache(maxsize=64)
def _with_code(verdict: type[BaseModel]) -> type[_WithCode]:
    bases: Any = (verdict, _WithCode)
    return create_model(verdict.__name__, __base__=bases)  # type: ignore[no-any-return]
