"""A program that stays and plays tasks of the leaderboard with the API classes of a clone.

Started as ``python worker.py FOLDER``; the folder has the clone's package ``bfcl_eval``. Questions and answers are
JSON, one line each. Every question is answered in a process of its own, which begins with fresh objects and plays all
calls so far. So nothing that a call does is there for the next question, no state is kept here, and a call that hangs
or crashes ends that process alone.
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
import os
import random
import resource
import select
import signal
import sys
import time
from typing import Any

_MEMORY = 1 << 30  # of address space, beyond what the imports take
_CHUNK = 65_536
_LONGEST = 1 << 20  # characters of a result that are sent; the whole of it is judged
_CHECKER = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker"
_CONFIG = "bfcl_eval.constants.executable_backend_config"


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # what the classes print is no answer
    importlib.import_module(_CHECKER)
    config = importlib.import_module(_CONFIG)
    gc.freeze()  # a process that is forked copies no page only because the collector looks at it
    print("ready", file=answers, flush=True)
    os.dup2(nothing, 2)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "describe" in question:
                answer = _describe(config, question["describe"])
            else:
                for name in question["task"]["classes"]:  # before the fork: a module is imported once
                    _class_of(name)
                answer = _in_a_process(question, answers.fileno())
        except Exception as error:
            answer = {"error": _message(error)}
        print(json.dumps(answer), file=answers, flush=True)


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


def _in_a_process(question: dict[str, Any], answers: int) -> dict[str, Any]:
    """Return the answer; ``{"stopped": reason}`` where the process did not end in time, or ended without an answer."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        for fd in (0, answers, reads):
            os.close(fd)
        _answer_and_exit(question, writes)
    os.close(writes)
    deadline, text, late = time.monotonic() + question["timeout_s"], b"", False
    while not late:
        late = not select.select([reads], [], [], max(0.0, deadline - time.monotonic()))[0]
        chunk = b"" if late else os.read(reads, _CHUNK)
        text += chunk
        if not chunk:
            break
    os.close(reads)
    if late:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"stopped": f"it took longer than {question['timeout_s']:g} s"}
    try:
        answer: dict[str, Any] = json.loads(text)
        return answer
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        return {"stopped": f"its process ended with {'signal ' if code < 0 else 'exit code '}{abs(code)}"}


def _answer_and_exit(question: dict[str, Any], writes: int) -> None:
    with contextlib.suppress(BaseException):
        # Where the program that waits for it is killed, this process ends, too.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(question["timeout_s"]) + 1)
        with contextlib.suppress(ValueError, OSError):  # where there is no such limit, there is none
            resource.setrlimit(resource.RLIMIT_AS, (_used() + _MEMORY, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            answer = _answer(question)
        except Exception as error:
            answer = {"error": _message(error)}
        text = memoryview(json.dumps(answer).encode())
        while text:
            text = text[os.write(writes, text) :]
    os._exit(0)


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


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


if __name__ == "__main__":
    main()
