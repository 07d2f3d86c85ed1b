"""Judges with instructions of their own: of interactivity, of equal answers, and by a rubric."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ..chat.spec import SpecLike
from ..messages import Messages, clean_text
from .datablock import conversation_data
from .llm import PROMPTS, LLMJudge


class Interactivity(BaseModel):
    """The verdict."""

    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="why, in one to three sentences")
    score: float = Field(ge=0, le=1, description="interactivity, from 0 to 1")


@dataclass(frozen=True)
class InteractivityJudge:
    """Scores how well an assistant works with its user: CollabLLM's interactivity (arXiv 2502.00640, section 3).

    Called with a conversation, it is a judge for looking ahead.

    Args:
        model: A :class:`~textenvs.chat.spec.ChatSpec`, a mapping of its options, or a model's name.
        tries: How often the model is asked for one verdict, at most.
        tools: Whether the judge sees tool calls and their results.
    """

    model: SpecLike
    tries: int = 3
    tools: bool = False

    def __post_init__(self) -> None:
        self._judge()  # a bad option is found now

    async def score(self, conversation: Messages, *, sample: int = 0) -> float:
        """The interactivity in 0..1; private reasoning and system messages are not shown. Errors: as ``LLMJudge``."""
        shown = conversation_data(conversation, tools=self.tools)
        return (await self._judge().judge({"conversation": shown}, sample=sample)).score

    async def __call__(self, conversation: Messages) -> float:
        return await self.score(conversation)

    def _judge(self) -> LLMJudge[Interactivity]:
        return LLMJudge(self.model, PROMPTS["interactivity"], Interactivity, tries=self.tries)


class Equivalence(BaseModel):
    """The verdict."""

    model_config = ConfigDict(extra="forbid")

    final_answer: str = Field(description='the final result that "answer" gives, or "none"')
    reasons: str = Field(description="how it compares with the reference, in one sentence")
    same: bool = Field(description="whether it is the reference's result")


@dataclass(frozen=True)
class EquivalenceJudge:
    """Compares answers with a reference.

    Where a rule can compare (numbers, mathematical expressions, choices), use the rule: it is free and cannot be talked
    to.

    Args:
        model: A :class:`~textenvs.chat.spec.ChatSpec`, a mapping of its options, or a model's name.
        tries: How often the model is asked for one verdict, at most.
    """

    model: SpecLike
    tries: int = 3

    def __post_init__(self) -> None:
        self._judge()  # a bad option is found now

    async def same(self, question: str, reference: str, answer: str, *, sample: int = 0) -> bool:
        """Whether ``answer``, without private reasoning, gives the result of ``reference``. Errors: as ``LLMJudge``.

        An empty answer does not, and no model is asked.
        """
        if not answer.strip():
            return False
        data = {"question": question, "reference": reference, "answer": clean_text(answer)}
        return (await self._judge().judge(data, sample=sample)).same

    def _judge(self) -> LLMJudge[Equivalence]:
        return LLMJudge(self.model, PROMPTS["equivalence"], Equivalence, tries=self.tries)


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric.

    Args:
        name: A short name, as of a Python variable; it becomes a field of the verdict.
        description: When it is met.
        weight: Its part in the total; above 0.
    """

    name: str
    description: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name.startswith("_") or self.name in _TAKEN:
            raise ValueError(f"a criterion's name is like that of a variable, and not {self.name!r}")
        if not self.description.strip():
            raise ValueError(f"criterion {self.name!r}: the description must say when it is met")
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"criterion {self.name!r}: weight must be above 0 and finite, not {self.weight!r}")


@dataclass(frozen=True)
class RubricScore:
    """What a rubric gave.

    Args:
        total: The weighted mean of the parts, in 0..1.
        parts: By criterion, in 0..1.
        reasons: What the judge says about it.
    """

    total: float
    parts: Mapping[str, float]
    reasons: str


@dataclass(frozen=True)
class RubricJudge:
    """Scores data by criteria.

    Args:
        model: A :class:`~textenvs.chat.spec.ChatSpec`, a mapping of its options, or a model's name.
        criteria: The rubric; names must differ.
        task: What the judge is shown, and what about it is judged.
        top: The best grade of a criterion; grades are integers from 0, and reported as ``grade / top``.
        tries: How often the model is asked for one verdict, at most.
    """

    model: SpecLike
    criteria: Sequence[Criterion]
    task: str = 'Judge the assistant\'s side of "conversation".'
    top: int = 4
    tries: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "criteria", tuple(self.criteria))
        names = [criterion.name for criterion in self.criteria]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"criteria must be one or more with different names, not {names}")
        if isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 1:
            raise ValueError(f"top must be an integer of at least 1, not {self.top!r}")
        self._judge()  # a bad option is found now

    async def score(self, data: Mapping[str, Any], *, sample: int = 0) -> RubricScore:
        """Score ``data``; conversations in it as :func:`~textenvs.judges.datablock.conversation_data` gives them.

        Errors: as ``LLMJudge``.
        """
        verdict = await self._judge().judge(data, sample=sample)
        parts = {criterion.name: getattr(verdict, criterion.name) / self.top for criterion in self.criteria}
        weighted = math.fsum(criterion.weight * parts[criterion.name] for criterion in self.criteria)
        total = weighted / math.fsum(criterion.weight for criterion in self.criteria)
        return RubricScore(total, parts, verdict.reasons)

    def _judge(self) -> LLMJudge[_Grades]:
        lines = "\n".join(f"- {each.name}: {each.description.strip()}" for each in self.criteria)
        instructions = PROMPTS["rubric"].format(task=self.task.strip(), top=self.top, criteria=lines)
        return LLMJudge(self.model, instructions, _grades(tuple(self.criteria), self.top), tries=self.tries)


class _Grades(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="one sentence on each criterion")


_TAKEN = frozenset(dir(BaseModel)) | {"reasons", "data_code"}


@functools.lru_cache(maxsize=64)
def _grades(criteria: tuple[Criterion, ...], top: int) -> type[_Grades]:
    fields: dict[str, Any] = {each.name: (int, Field(ge=0, le=top)) for each in criteria}
    return create_model("Grades", __base__=_Grades, **fields)
