"""Judges with instructions of their own: of interactivity, of equal answers, and by a rubric."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ..messages import Messages, clean_text
from ..options import Gain, PositiveInt, checked
from .llm import PROMPTS, LLMJudge, conversation_data


class Interactivity(BaseModel):
    """The verdict."""

    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="why, in one to three sentences")
    score: float = Field(ge=0, le=1, description="interactivity, from 0 to 1")


@checked
@dataclass(frozen=True)
class InteractivityJudge(LLMJudge[Interactivity]):
    """Scores how well an assistant works with its user: CollabLLM's interactivity (arXiv 2502.00640, section 3).

    Called with a conversation, it is a judge for looking ahead. ``tools``: whether it sees tool calls and their
    results. For the other options see :class:`LLMJudge`.
    """

    instructions: str = field(default=PROMPTS["interactivity"], init=False)
    verdict: type[Interactivity] = field(default=Interactivity, init=False)
    tools: bool = False

    async def score(self, conversation: Messages, *, sample: int = 0) -> float:
        """Return the interactivity in 0..1, without private reasoning and system messages; errors as ``LLMJudge``."""
        visible = conversation_data(conversation, tools=self.tools)
        return (await self.judge({"conversation": visible}, sample=sample)).score

    async def __call__(self, conversation: Messages) -> float:
        return await self.score(conversation)


class Equivalence(BaseModel):
    """The verdict."""

    model_config = ConfigDict(extra="forbid")

    final_answer: str = Field(description='the final result that "answer" gives, or "none"')
    reasons: str = Field(description="how it compares with the reference, in one sentence")
    same: bool = Field(description="whether it is the reference's result")


@checked
@dataclass(frozen=True)
class EquivalenceJudge(LLMJudge[Equivalence]):
    """Compares answers with a reference; for the options see :class:`LLMJudge`.

    Where a rule can compare (numbers, mathematical expressions, choices), use the rule: it is free and cannot be talked
    to.
    """

    instructions: str = field(default=PROMPTS["equivalence"], init=False)
    verdict: type[Equivalence] = field(default=Equivalence, init=False)

    async def same(self, question: str, reference: str, answer: str, *, sample: int = 0) -> bool:
        """Return whether ``answer``, without private reasoning, has ``reference``'s result; errors as ``LLMJudge``.

        An empty answer does not, and no model is asked.
        """
        if not answer.strip():
            return False
        data = {"question": question, "reference": reference, "answer": clean_text(answer)}
        return (await self.judge(data, sample=sample)).same


@checked
@dataclass(frozen=True)
class Criterion:
    """One line of a rubric."""

    name: str  # short, as of a Python variable; it becomes a field of the verdict
    description: str  # when it is met
    weight: Gain = 1.0  # its part in the total

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_") or self.name in _TAKEN:
            raise ValueError(f"a criterion's name is like that of a variable, and not {self.name!r}")
        if not self.description.strip():
            raise ValueError(f"criterion {self.name!r}: the description must say when it is met")


@dataclass(frozen=True)
class RubricScore:
    """A rubric's verdict: the weighted mean of the parts, these by criterion (all in 0..1), and the judge's reasons."""

    total: float
    parts: Mapping[str, float]
    reasons: str


class _Grades(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="one sentence on each criterion")


@checked
@dataclass(frozen=True)
class RubricJudge(LLMJudge[_Grades]):
    """Scores data by criteria, whose names must differ; for the other options see :class:`LLMJudge`."""

    instructions: str = field(init=False)
    verdict: type[_Grades] = field(init=False)
    criteria: Sequence[Criterion]
    task: str = 'Judge the assistant\'s side of "conversation".'  # what is shown, and what about it is judged
    top: PositiveInt = 4  # the best grade of a criterion; grades are integers from 0, and reported as ``grade / top``

    def __post_init__(self) -> None:
        criteria = tuple(self.criteria)
        names = [criterion.name for criterion in criteria]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"criteria must be one or more with different names, not {names}")
        lines = "\n".join(f"- {part.name}: {part.description.strip()}" for part in criteria)
        instructions = PROMPTS["rubric"].format(task=self.task.strip(), top=self.top, criteria=lines)
        object.__setattr__(self, "criteria", criteria)
        object.__setattr__(self, "instructions", instructions)
        object.__setattr__(self, "verdict", _grades(criteria, self.top))
        super().__post_init__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without the verdict's class, which is made here."""
        options: dict[str, Any] = {"tries": self.tries, "temperature": self.temperature}
        return functools.partial(RubricJudge, **options), (self.model, self.criteria, self.task, self.top)

    async def score(self, data: Mapping[str, Any], *, sample: int = 0) -> RubricScore:
        """Score ``data``; conversations in it as :func:`~textenvs.judges.llm.conversation_data` gives them.

        Errors: as ``LLMJudge``.
        """
        verdict = await self.judge(data, sample=sample)
        parts = {criterion.name: getattr(verdict, criterion.name) / self.top for criterion in self.criteria}
        weighted = math.fsum(criterion.weight * parts[criterion.name] for criterion in self.criteria)
        total = weighted / math.fsum(criterion.weight for criterion in self.criteria)
        return RubricScore(total, parts, verdict.reasons)


_TAKEN = frozenset(dir(BaseModel)) | {"reasons", "data_code"}


@functools.lru_cache(maxsize=64)
def _grades(criteria: tuple[Criterion, ...], top: int) -> type[_Grades]:
    fields: dict[str, Any] = {criterion.name: (int, Field(ge=0, le=top)) for criterion in criteria}
    return create_model("Grades", __base__=_Grades, **fields)
