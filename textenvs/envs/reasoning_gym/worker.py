"""Runs in the sandbox, as a program that stays: calls reasoning-gym's scorers on text that they evaluate.

A question is what :class:`~.sandbox.SandboxedScorer` asks; the answer is ``{"score": x}`` or ``{"error": text}``. Each
is scored in a process of its own: nothing that an answer does is there for the next.
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


def main() -> None:
    import numpy.random  # noqa: F401
    import reasoning_gym  # noqa: F401
    import sympy  # type: ignore[import-untyped]  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what a package prints is no answer
    print("ready", file=answers, flush=True)
    os.dup2(nothing, 2)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            said = _in_a_process(_open(*question["opening"]), question, answers.fileno())
        except Exception as error:
            said = {"error": _told(error)}
        print(json.dumps(said), file=answers, flush=True)


@functools.lru_cache(maxsize=8)
def _open(name: str, config: str, seed: int, size: int) -> Any:
    import reasoning_gym

    options = json.loads(config)
    if name == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {"datasets": [DatasetSpec(**part) for part in options.get("datasets", ())]}
    return reasoning_gym.create_dataset(name, seed=seed, size=size, **options)


def _in_a_process(dataset: Any, question: dict[str, Any], answers: int) -> dict[str, Any]:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        for fd in (0, answers, reads):
            os.close(fd)
        _score(dataset, question, writes)
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
        said = json.loads(text)
        if "score" in said and math.isfinite(said["score"]):
            return {"score": float(said["score"])}
        return {"error": str(said.get("error", "the scorer gave no number"))}
    except (ValueError, TypeError, AttributeError, OverflowError):  # cut off, or written by the code of an answer
        return {"error": "the scorer ended its process"}


def _score(dataset: Any, question: dict[str, Any], writes: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # it starts no process and no thread that would outlive it
        seconds = math.ceil(question["timeout_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        random.seed(0)
        sys.modules["numpy.random"].seed(0)
        said: dict[str, Any] = {"score": float(dataset.score_answer(question["answer"], question["entry"]))}
    except BaseException as error:
        said = {"error": _told(error)}
    with contextlib.suppress(OSError):
        os.write(writes, json.dumps(said).encode()[:_MOST])
    os._exit(0)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    main()
