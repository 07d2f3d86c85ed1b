"""Scores by a rubric: several named criteria, each with a weight."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from ..chat.spec import SpecLike
from .llm import LLMJudge

_INSTRUCTIONS = """\
{task}

Score each of these criteria by itself, as an integer from 0 (not met at all) to {top} (fully met):
{criteria}"""


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric.

    Args:
        name: A short name, as of a Python variable; it becomes a field of the verdict.
        description: When it is met.
        weight: Its part in the total; above 0.

    Raises:
        ValueError: A name that is none, an empty description, or a weight that is not above 0 and finite.
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

    Raises:
        ValueError: No criterion, two of one name, or ``top`` below 1.
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

        Raises:
            EnvironmentFailure: ``"judge_failed"``: no verdict after all tries.
            BudgetExceeded, CacheError: For the run to stop at.
            ValueError: ``data`` is not JSON.
        """
        verdict = await self._judge().judge(data, sample=sample)
        parts = {criterion.name: getattr(verdict, criterion.name) / self.top for criterion in self.criteria}
        weighted = math.fsum(criterion.weight * parts[criterion.name] for criterion in self.criteria)
        total = weighted / math.fsum(criterion.weight for criterion in self.criteria)
        return RubricScore(total, parts, verdict.reasons)

    def _judge(self) -> LLMJudge[_Grades]:
        lines = "\n".join(f"- {each.name}: {each.description.strip()}" for each in self.criteria)
        instructions = _INSTRUCTIONS.format(task=self.task.strip(), top=self.top, criteria=lines)
        return LLMJudge(self.model, instructions, _grades(tuple(self.criteria), self.top), tries=self.tries)


class _Grades(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reasons: str = Field(description="one sentence on each criterion")


_TAKEN = frozenset(dir(BaseModel)) | {"reasons", "data_code"}


@functools.lru_cache(maxsize=64)
def _grades(criteria: tuple[Criterion, ...], top: int) -> type[_Grades]:
    fields: dict[str, Any] = {each.name: (int, Field(ge=0, le=top)) for each in criteria}
    return create_model("Grades", __base__=_Grades, **fields)
