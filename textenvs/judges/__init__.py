"""Judges played by language models (extra ``chat``)."""

from .datablock import conversation_data
from .llm import LLMJudge
from .ready import Criterion, Equivalence, EquivalenceJudge, Interactivity, InteractivityJudge, RubricJudge, RubricScore

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
