"""Judges played by language models (extra ``chat``)."""

from .llm import LLMJudge, conversation_data
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
