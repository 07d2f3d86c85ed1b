"""The scorers that come with the library, by data source, as one ``compute_score``: see :data:`SCORERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textenvs.scoring import gsm8k
from textenvs.scoring.math import judge_math
from textenvs.scoring.qa import exact_match, stated_answer


def _number(solution: str, truth: Any) -> float:
    return gsm8k.score(solution, truth, "strict")


def _expression(solution: str, truth: Any) -> float:
    verdict = judge_math(solution, str(truth))
    if verdict.reason == "timeout":
        raise TimeoutError("comparing the two expressions took too long; nobody knows whether they are equal")
    return float(verdict.correct)


def _answer(solution: str, truth: Any) -> float:
    given = truth.get("target") if isinstance(truth, Mapping) else truth
    answers = [given] if isinstance(given, str) else list(given or ())
    if not answers:
        raise ValueError(f"the ground truth {truth!r} has no answer")
    said = stated_answer(solution)
    return 0.0 if said is None else float(exact_match(said, answers))


#: By the beginning of ``data_source``: GSM8K's strict ``#### N``, a boxed expression, a stated answer (exact match).
SCORERS: Mapping[str, Callable[[str, Any], float]] = {
    "openai/gsm8k": _number,
    "textenvs/generated": _number,
    "textenvs/computing": _expression,
    "lighteval/MATH": _expression,
    "DigitalLearningGmbH/MATH-lighteval": _expression,
    "HuggingFaceH4/MATH-500": _expression,
    "EleutherAI/hendrycks_math": _expression,
    "Maxwell-Jia/AIME_2024": _expression,
    "aime": _expression,
    "math_dapo": _expression,
    "textenvs/questions": _answer,
    "searchR1_": _answer,
    "hotpotqa/hotpot_qa": _answer,
}


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """The score of a reply by the scorer of its data source.

    Raises:
        ValueError: No scorer is known for the data source.
    """
    for start, scorer in SCORERS.items():
        if str(data_source).startswith(start):
            return scorer(solution_str, ground_truth)
    raise ValueError(
        f"no scorer is known for data_source {data_source!r}; known are {', '.join(SCORERS)}. Give one of your own: "
        "custom_reward_function.path=FILE.py"
    )
