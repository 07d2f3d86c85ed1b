"""A program that stays and calls reasoning-gym's scorers; in the sandbox, those that evaluate text.

A question is what :class:`~.sandbox.ProcessScorer` asks; the answer is ``{"score": x}`` or ``{"error": text}``. With
``fork``, each is scored in a process of its own: nothing that an answer does is there for the next.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import random
import resource
import sys
from typing import Any

from textenvs.sandbox.answering import Answers

_MEMORY = 4 << 30
# Their scorers compare grids as tuples, and JSON has lists.
_OF_TUPLES = frozenset({"arc_agi", "rearc"})


def main() -> None:
    import numpy.random  # noqa: F401
    import reasoning_gym  # noqa: F401
    import sympy  # type: ignore[import-untyped]  # noqa: F401

    with contextlib.suppress(ValueError, OSError):  # where there is no such limit, there is none
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    answers = Answers()
    answers.serve(functools.partial(_answered, answers))


def _answered(answers: Answers, question: dict[str, Any]) -> dict[str, Any]:
    dataset = _open(*question["opening"])
    if not question["fork"]:
        return _score(dataset, question)
    result = answers.in_a_process(functools.partial(_limited, dataset, question), question["timeout_s"])
    if "stopped" in result:
        return {"error": f"the scorer was stopped: {result['stopped']}"}
    score = result.get("score")  # the code of an answer may have written it
    if isinstance(score, (int, float)) and math.isfinite(score):
        return {"score": float(score)}
    return {"error": str(result.get("error", "the scorer gave no number"))[:500]}


@functools.lru_cache(maxsize=8)
def _open(name: str, config: str, seed: int) -> Any:
    """Open the dataset with a single item: scorers read none, and some datasets make all at once."""
    import reasoning_gym

    options = json.loads(config)
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {"datasets": [DatasetSpec(**part) for part in options.get("datasets", ())]}
    return reasoning_gym.create_dataset(name, seed=seed, size=1, **options)


def _limited(dataset: Any, question: dict[str, Any]) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # it starts no process and no thread that would outlive it
    seconds = math.ceil(question["timeout_s"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    return _score(dataset, question)


def _score(dataset: Any, question: dict[str, Any]) -> dict[str, Any]:
    random.seed(0)
    sys.modules["numpy.random"].seed(0)
    entry = question["entry"]
    if entry["metadata"]["source_dataset"] in _OF_TUPLES:
        entry["metadata"]["output"] = tuple(map(tuple, entry["metadata"]["output"]))
    score = float(dataset.score_answer(question["answer"], entry))
    return {"score": score} if math.isfinite(score) else {"error": "the scorer gave no number"}


if __name__ == "__main__":
    main()
