"""The unit tests of a row that asks for code."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...python_text import parse_literal, parse_python
from ...task import Task, TaskError
from .scoring import Assertion, Call, InputOutput, Test, unit_tests

_SHAPES = "{'expression', 'expected'}, {'code'} or {'stdin', 'stdout'}"


def unit_tests_of(task: Task) -> tuple[Test, ...]:
    """Return the tests of a row.

    They are in ``extra_info.tests``, a list whose items are ``{"expression": "f(2)", "expected": "4"}`` (the value as
    Python writes it), ``{"code": "assert f(2) == 4"}`` or ``{"stdin": ..., "stdout": ...}``; or, as CollabLLM has those
    of BigCodeBench, in ``extra_info.single_turn_metadata.test``, the source of a ``unittest`` module.
    """
    where = f"task {task.key}: extra_info"
    listed = task.extra.get("tests")
    if listed is not None:
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
            raise TaskError(f"{where}.tests must be a list of at least one test")
        return tuple(_test(value, f"{where}.tests[{i}]") for i, value in enumerate(listed))
    source = test_module(task.extra.get("single_turn_metadata"), task.ground_truth)
    if source is None:
        raise TaskError(f"{where} has neither 'tests' nor 'single_turn_metadata.test', so no program can be checked")
    try:
        return unit_tests(f"{_imports(reference_program(task.ground_truth))}\n{source}")
    except ValueError as error:
        raise TaskError(f"{where}.single_turn_metadata.test: {error}") from error


def reference_program(reference: Any) -> str:
    """Return the program of a reference, which in CollabLLM's rows is JSON text with ``answer``, ``test`` and more."""
    answer = _json_object(reference).get("answer")
    return answer if isinstance(answer, str) else str(reference)


def test_module(metadata: Any, reference: Any) -> str | None:
    """Return the test module as CollabLLM's rows have it: in the metadata, or else in the reference."""
    for value in (metadata, _json_object(reference)):
        if isinstance(value, Mapping) and isinstance(value.get("test"), str) and value["test"].strip():
            return str(value["test"])
    return None


def _json_object(value: Any) -> Mapping[str, Any]:
    with suppress(TypeError, ValueError, RecursionError):
        read = json.loads(value)
        return read if isinstance(read, dict) else {}
    return {}


def _imports(program: str) -> str:
    """Return the import statements at the top of the reference: the tests of such rows use their names."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        statements = parse_python(program).body
        return "\n".join(
            ast.unparse(statement) for statement in statements if isinstance(statement, (ast.Import, ast.ImportFrom))
        )
    return ""


def _test(value: Any, where: str) -> Test:
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for part in value.values()):
        raise TaskError(f"{where} must be a mapping of texts: {_SHAPES}")
    try:
        if set(value) == {"expression", "expected"}:
            return Call(value["expression"], parse_literal(value["expected"]))
        if set(value) == {"code"}:
            return Assertion(value["code"])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise TaskError(f"{where}: {value}: {error}") from error
    if set(value) == {"stdin", "stdout"}:
        return InputOutput(value["stdin"], value["stdout"])
    raise TaskError(f"{where} has the fields {sorted(value)}; a test is one of {_SHAPES}")
