"""A program that stays and plays tasks of the leaderboard with the API classes of a clone.

Its argument is the folder that has the clone's package ``bfcl_eval``. Every question is answered in a process of its
own, which begins with fresh objects and plays all calls so far. So nothing that a call does is there for the next
question, no state is kept here, and a call that hangs or crashes ends that process alone.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import gc
import importlib
import inspect
import json
import random
import resource
import sys
from typing import Any

from textenvs.sandbox.answering import Answers

_MEMORY = 1 << 30  # of address space, beyond what the imports take
_LONGEST = 1 << 20  # characters of a result that are sent; the whole of it is judged
_CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
_CONFIG = "bfcl_eval.constants.executable_backend_config"


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    answers = Answers()
    importlib.import_module(_CHECKER)
    importlib.import_module(_CONFIG)
    gc.freeze()  # a process that is forked copies no page only because the collector looks at it
    answers.serve(functools.partial(_answered, answers))


def _answered(answers: Answers, question: dict[str, Any]) -> dict[str, Any]:
    if "describe" in question:
        return _describe(sys.modules[_CONFIG], question["describe"])
    for name in question["task"]["classes"]:  # before the fork: a module is imported once
        _class_of(name)
    return answers.in_a_process(functools.partial(_limited, question), question["timeout_s"])


@functools.cache
def _class_of(name: str) -> Any:
    module = importlib.import_module(sys.modules[_CONFIG].CLASS_FILE_PATH_MAPPING[name])
    return getattr(module, name)


def _describe(config: Any, names: list[str]) -> dict[str, Any]:
    """Return the file of each class's function documentation; it is an error where one cannot be imported."""
    for name in names:
        _class_of(name)
    return {"files": {name: config.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name] for name in names}}


# ------------------------------------------------------------------ a question in a process


def _limited(question: dict[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(ValueError, OSError):  # where there is no such limit, there is none
        resource.setrlimit(resource.RLIMIT_AS, (_used() + _MEMORY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return _answer(question)


def _used() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    random.seed(0)
    task, turns = question["task"], question["turns"]
    if "named" in question:
        methods = _methods(_begin(task))
        return {"calls": [_named(methods, text) for text in question["named"]]}
    instances = _begin(task)
    methods = _methods(instances)
    results = [[_called(methods, name, arguments) for name, arguments in turn] for turn in turns]
    if "gold" not in question:
        return {"result": results[-1][-1][:_LONGEST]}
    return {"problem": _problem(task, instances, results, question["gold"])}


def _begin(task: dict[str, Any]) -> dict[str, Any]:
    """Return an instance of each class, in the state of the task's beginning."""
    instances = {}
    for name in task["classes"]:
        instance = instances[name] = _class_of(name)()
        if name not in sys.modules[_CONFIG].STATELESS_CLASSES:
            instance._load_scenario(copy.deepcopy(task["config"].get(name, {})), long_context=task["long_context"])
    return instances


def _methods(instances: dict[str, Any]) -> dict[str, Any]:
    return {
        name: method
        for instance in instances.values()
        for name, method in inspect.getmembers(instance, inspect.ismethod)
        if not name.startswith("_")
    }


def _called(methods: dict[str, Any], name: str, arguments: str) -> str:
    """Return a call's result; arguments in JSON that is too deep for this process are an error of the call."""
    try:
        kwargs = json.loads(arguments)
    except Exception as error:
        return f"Error during execution: {error}"
    return _call(methods, name, (), kwargs)


def _call(methods: dict[str, Any], name: str, args: Any, kwargs: Any) -> str:
    """Return the result as the leaderboard writes it: text, JSON of a mapping, else ``str``; an error is a result."""
    try:
        if name not in methods:
            raise NameError(f"name {name!r} is not defined")
        value = methods[name](*args, **kwargs)
        if isinstance(value, dict):
            try:
                return json.dumps(value)
            except (TypeError, ValueError):
                return str(value)
        return str(value)
    except Exception as error:
        return f"Error during execution: {error}"


def _gold_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return function, positional and named arguments of a call with literal arguments. Nothing is evaluated."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return call.func.id, [ast.literal_eval(argument) for argument in call.args], named


def _named(methods: dict[str, Any], text: str) -> tuple[str, dict[str, Any]]:
    name, args, kwargs = _gold_call(text)
    return name, dict(inspect.signature(methods[name]).bind(*args, **kwargs).arguments)


def _problem(task: dict[str, Any], instances: Any, results: list[list[str]], gold: list[list[str]]) -> str | None:
    """Return why the last turn is wrong by the leaderboard's rule (``"no_call"``, ``"state"`` or ``"response"``)."""
    checker = sys.modules[_CHECKER]
    expected = _begin(task)
    methods = _methods(expected)
    expected_results = [[_call(methods, *_gold_call(text)) for text in turn] for turn in gold][-1]
    if not results[-1]:
        return "no_call"
    if not checker.state_checker(instances, expected)["valid"]:
        return "state"
    everything = [result for turn in results for result in turn]
    return None if checker.response_checker(everything, expected_results, len(gold) - 1)["valid"] else "response"


if __name__ == "__main__":
    main()
