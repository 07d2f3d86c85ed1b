"""The program of a scoring process: loads a function from a file, and calls it for each question.

Run by its path, with the file, the function's name, and the file descriptor that it prints to. Each question is a line
of JSON: a pickle of keyword arguments in base 64, or null, which checks that the function can be loaded.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import inspect
import json
import math
import numbers
import os
import pickle
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any


def main(path: str, name: str, prints: int) -> None:
    """Answer questions until the input ends; an exception becomes the answer, as ``error``."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # questions and answers are not the function's to read and write
    os.dup2(prints, 1)
    os.dup2(prints, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # the function's process may be killed before it flushes
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))  # for modules beside it
    problem: dict[str, Any] = {}
    try:
        function = load_function(path, name, "custom_reward_function")
    except BaseException as error:
        problem = _failure(error)
    print("ready", file=answers, flush=True)
    for line in questions:
        question, answer = json.loads(line), problem
        if question is not None and not problem:
            try:
                answer = _call(function, pickle.loads(base64.b64decode(question)))
            except BaseException as error:
                answer = _failure(error)
        print(json.dumps(answer), file=answers, flush=True)
        if problem:  # another process may be able to load it
            return


def _failure(error: BaseException) -> dict[str, Any]:
    plain = isinstance(error, RefusedError)
    return {"error": str(error) if plain else "".join(traceback.format_exception(error)).rstrip()}


class RefusedError(Exception):
    """An expected error, shown without a traceback."""


def load_function(path: str, name: str, module_name: str) -> Callable[..., Any]:
    """Return the function of this name in a Python file; exceptions of the file itself are not caught."""
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise RefusedError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles of the file look there
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [attribute for attribute, value in vars(module).items() if inspect.isfunction(value)]
        raise RefusedError(f"it has no function {name}" + (f"; it has {', '.join(functions)}" if functions else ""))
    return function  # type: ignore[no-any-return]


def _call(function: Callable[..., Any], question: Mapping[str, Any]) -> dict[str, Any]:
    result = function(**question)
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    score = result
    if isinstance(result, Mapping):
        if "score" not in result:
            raise RefusedError(f"it returned a mapping without 'score': {result!r:.200}")
        score = result["score"]
    number = score
    if not isinstance(number, numbers.Real) and callable(item := getattr(number, "item", None)):
        with suppress(TypeError, ValueError, RuntimeError):  # more than one element
            number = item()  # of NumPy or torch
    if not isinstance(number, numbers.Real) or not math.isfinite(number):
        raise RefusedError(f"it returned {score!r:.200}, which is no finite number")
    return {"score": float(number)}


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
