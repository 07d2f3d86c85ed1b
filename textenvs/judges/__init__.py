"""Judges played by language models (extra ``chat``)."""

from .datablock import conversation_data
from .equivalence import Equivalence, EquivalenceJudge
from .interactivity import Interactivity, InteractivityJudge
from .llm import LLMJudge
from .rubric import Criterion, RubricJudge, RubricScore

__all__ = [
    "Criterion",
    "Equivalence",
    "EquivalenceJudge",
    "Interactivity",
    "InteractivityJudge",
    "LLMJudge",
    "RubricJudge",
    "RubricScore",
    "conversation_data",
]
