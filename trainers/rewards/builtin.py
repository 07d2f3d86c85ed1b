"""The scorers that come with the library, as one ``compute_score``.

A row that names an episode (``textenvs rows``) is scored by its environment: the reply is the episode's first turn. Any
other row has the scorer of its data source (:data:`SCORERS`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from textenvs.env import TextEnv
from textenvs.integrations import EpisodeSpec
from textenvs.registry import make
from textenvs.scoring import gsm8k
from textenvs.scoring.math import judge_math
from textenvs.scoring.qa import exact_match, stated_answer


def _number(solution: str, truth: Any, problem: str | None) -> float:
    return gsm8k.score(solution, truth, "strict")


def _expression(solution: str, truth: Any, problem: str | None) -> float:
    # Without the problem, too, an answer must be evaluated: 2^{10} is not 1024.
    verdict = judge_math(solution, str(truth), problem=problem or "")
    if verdict.reason == "timeout":
        raise TimeoutError("comparing the two expressions took too long; whether they are equal is unknown")
    return float(verdict.correct)


def _answer(solution: str, truth: Any, problem: str | None) -> float:
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    answers = [target] if isinstance(target, str) else list(target or ())
    if not answers:
        raise ValueError(f"the ground truth {truth!r} has no answer")
    stated = stated_answer(solution)
    return 0.0 if stated is None else float(exact_match(stated, answers))


#: By the beginning of ``data_source``: GSM8K's strict ``#### N``, a boxed expression, a stated answer (exact match).
SCORERS: Mapping[str, Callable[[str, Any, str | None], float]] = {
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
    """Score a reply by the row's episode or data source.

    Raises ``ValueError``: it has neither; RuntimeError: the environment failed.
    """
    extra = extra_info if isinstance(extra_info, Mapping) else {}
    if (episode := extra.get("textenv")) is not None:
        return _first_turn(EpisodeSpec.from_row(episode, "extra_info"), solution_str)
    problem = extra.get("problem", extra.get("question"))  # beside the prompt, as verl's rows mostly have it
    for start, scorer in SCORERS.items():
        if str(data_source).startswith(start):
            return scorer(solution_str, ground_truth, problem if isinstance(problem, str) else None)
    raise ValueError(
        f"no scorer is known for data_source {data_source!r}, and extra_info names no episode of an environment; known "
        f"are {', '.join(SCORERS)}. Give one of your own: custom_reward_function.path=FILE.py"
    )


def _first_turn(spec: EpisodeSpec, reply: str) -> float:
    env = _environment(spec.env, json.dumps(dict(spec.env_kwargs), sort_keys=True))
    env.reset(seed=spec.seed, options=spec.options)
    _, reward, _, _, info = env.step(reply)
    if info["failed"]:
        raise RuntimeError(f"{spec.env}: {info['stop']}: {info['failure']}")
    return float(reward)


@functools.lru_cache(maxsize=8)  # rows of one file mostly share their environment
def _environment(env_id: str, kwargs: str) -> TextEnv[Any]:
    return make(env_id, **json.loads(kwargs))
