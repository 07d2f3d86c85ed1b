"""A program that stays and calls reasoning-gym's scorers; in the sandbox, those that evaluate text.

A question is what :class:`~.sandbox.ProcessScorer` asks; the answer is ``{"score": x}`` or ``{"error": text}``. With
``fork``, each is scored in a process of its own: nothing that an answer does is there for the next.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import resource
import select
import signal
import sys
from typing import Any

#: Bytes that a score or an error may have; so many a pipe takes at once.
_MOST = select.PIPE_BUF
_MEMORY = 4 << 30
# Their scorers compare grids as tuples, and JSON has lists.
_OF_TUPLES = frozenset({"arc_agi", "rearc"})


def main() -> None:
    import numpy.random  # noqa: F401
    import reasoning_gym  # noqa: F401
    import sympy  # type: ignore[import-untyped]  # noqa: F401

    with contextlib.suppress(ValueError, OSError):  # where there is no such limit, there is none
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, resource.RLIM_INFINITY))
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what a package prints is no answer
    print("ready", file=answers, flush=True)
    os.dup2(nothing, 2)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            dataset = _open(*question["opening"])
            if question["fork"]:
                result = _in_a_process(dataset, question, answers.fileno())
            else:
                result = _score(dataset, question)
        except Exception as error:
            result = {"error": _message(error)}
        print(json.dumps(result), file=answers, flush=True)


@functools.lru_cache(maxsize=8)
def _open(name: str, config: str, seed: int) -> Any:
    """Open the dataset with a single item: scorers read none, and some datasets make all at once."""
    import reasoning_gym

    options = json.loads(config)
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {"datasets": [DatasetSpec(**part) for part in options.get("datasets", ())]}
    return reasoning_gym.create_dataset(name, seed=seed, size=1, **options)


def _in_a_process(dataset: Any, question: dict[str, Any], answers: int) -> dict[str, Any]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        for fd in (0, answers, reads):
            os.close(fd)
        _score_and_exit(dataset, question, writes)
    os.close(writes)
    late = not select.select([reads], [], [], question["timeout_s"])[0]
    text = b"" if late else os.read(reads, _MOST)  # written at once
    os.close(reads)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if late:
        return {"error": "it took too long"}
    try:
        result = json.loads(text)
        if "score" in result and math.isfinite(result["score"]):
            return {"score": float(result["score"])}
        return {"error": str(result.get("error", "the scorer gave no number"))}
    except (ValueError, TypeError, AttributeError, OverflowError):  # cut off, or written by the code of an answer
        return {"error": "the scorer ended its process"}


def _score_and_exit(dataset: Any, question: dict[str, Any], writes: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # it starts no process and no thread that would outlive it
        seconds = math.ceil(question["timeout_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        result = _score(dataset, question)
    except BaseException as error:
        result = {"error": _message(error)}
    with contextlib.suppress(OSError):
        os.write(writes, json.dumps(result).encode()[:_MOST])
    os._exit(0)


def _score(dataset: Any, question: dict[str, Any]) -> dict[str, Any]:
    random.seed(0)
    sys.modules["numpy.random"].seed(0)
    entry = question["entry"]
    if entry["metadata"]["source_dataset"] in _OF_TUPLES:
        entry["metadata"]["output"] = tuple(map(tuple, entry["metadata"]["output"]))
    score = float(dataset.score_answer(question["answer"], entry))
    return {"score": score} if math.isfinite(score) else {"error": "the scorer gave no number"}


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    main()
