"""A judge played by a language model: what it looks at is data, and only its own structured reply is a verdict.

Three walls stand between a conversation and its verdict:

1. What was said is quoted as data (:mod:`textenvs.judges.datablock`); nothing of it stands outside of the block.
2. A verdict is the *whole* reply: one JSON object of the verdict's schema, strictly read, its numbers within bounds. No
   object is ever searched for inside of a text.
3. The reply must repeat the block's code, which no conversation can know. So a verdict that was quoted from a
   conversation is not one, even if the judge repeats it letter by letter.

What fails is asked for again; after ``tries`` the episode ends as ``judge_failed``. It never counts as 0.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, create_model

from ..chat.clients import client_for
from ..chat.errors import ChatFailure
from ..chat.spec import ChatSpec, SpecLike
from ..chat.structured import ask, parse_reply
from ..env import EnvironmentFailure
from ..messages import Message, system, user
from ..options import PositiveInt, checked
from .datablock import DataBlock, data_block

VerdictT = TypeVar("VerdictT", bound=BaseModel)

PROMPTS: Mapping[str, str] = yaml.safe_load(files(__package__).joinpath("prompts.yaml").read_text("utf-8"))


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
        """A verdict on ``data``: named things as JSON, conversations as :func:`conversation_data` gives them.

        ``sample`` says which of several verdicts on the same data.

        Raises:
            EnvironmentFailure: ``"judge_failed"``: no verdict after all tries.
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
        asked: dict[str, Any] = {"schema": schema, "tries": self.tries, "temperature": temperature, "sample": sample}
        try:
            verdict, _ = await ask(await client_for(self.spec), self.request(block), read, **asked)
        except ChatFailure as failure:
            raise EnvironmentFailure("judge_failed", str(failure)) from failure
        return verdict

    def request(self, block: DataBlock) -> list[Message]:
        """What the model is asked; the shape of the verdict is added when it is sent."""
        rules = PROMPTS["judge"].format(instructions=self.instructions.strip())
        return [system(rules), user(f"{block.text}\n\n{PROMPTS['after'].format(code=block.code)}")]


class _WithCode(BaseModel):
    model_config = ConfigDict(extra="forbid")

    data_code: str = Field(description="the code in the marks around the data")


@functools.lru_cache(maxsize=64)
def _with_code(verdict: type[BaseModel]) -> type[_WithCode]:
    """The verdict's fields and the block's code."""
    bases: Any = (verdict, _WithCode)
    return create_model(verdict.__name__, __base__=bases)  # type: ignore[no-any-return]
