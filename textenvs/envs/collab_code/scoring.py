"""How many tests a program passes, each run in a sandbox.

Three kinds of tests, from the hardest to deceive to the easiest:

* :class:`InputOutput`: the whole program reads standard input; what it prints is compared here, outside the box;
* :class:`Call`: an expression over the program's names; its value comes out of the box, and is compared here;
* :class:`Assertion`: statements that run with the program, in its process. What they expect is in that process's
  memory, and an object whose ``==`` always says yes passes them: for data sets that have no other tests.

A program that ends early, prints what looks like a report, or kills processes passes nothing by it.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...event_loop import wait_for
from ...sandbox import Sandbox, SandboxResult
from ...text import excerpt

_HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")
_REPORT_BYTES = 20_000


@dataclass(frozen=True)
class InputOutput:
    """The program, given ``stdin``, prints ``stdout``; spaces at ends of lines and empty lines at the end do not count.

    Args:
        stdin: What it reads.
        stdout: What it should print.
    """

    stdin: str
    stdout: str


@dataclass(frozen=True)
class Call:
    """``expression``, with the program's names, is ``expected``.

    Args:
        expression: For example ``"area(3, 4)"``.
        expected: Made of numbers, strings, bytes, ``None``, booleans, lists, tuples, sets and mappings. Floats are
            compared to nine digits.
    """

    expression: str
    expected: Any


@dataclass(frozen=True)
class Assertion:
    """``code`` runs after the program without an exception.

    Args:
        code: For example ``"assert area(3, 4) == 12"``.
    """

    code: str


Test: TypeAlias = InputOutput | Call | Assertion


@dataclass(frozen=True)
class Outcome:
    """What came of one test.

    Args:
        passed: Whether it passed.
        message: What happened where it did not: an error, a limit, the wrong value; never what was expected.
    """

    passed: bool
    message: str = ""


@dataclass(frozen=True)
class CodeScore:
    """The tests of one program.

    Args:
        outcomes: One for each test, in order.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> int:
        """How many tests passed."""
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        """The part of the tests that passed, from 0 to 1."""
        return self.passed / len(self.outcomes)


async def pass_rate(program: str, tests: Sequence[Test], sandbox: Sandbox, *, timeout_s: float = 5.0) -> CodeScore:
    """Run ``program`` against ``tests``.

    Every test has a process of its own, so that none sees what another did.

    Args:
        program: Its source text.
        tests: At least one.
        sandbox: Where it runs; its limits hold for every test, but for the wall time.
        timeout_s: Seconds of wall time for one test.

    Raises:
        ValueError: No tests, an expected value or an expression that cannot be one, or a time that is not above 0.
        SandboxFailure: The sandbox failed; that says nothing about the program.
    """
    if not tests:
        raise ValueError("pass_rate needs at least one test")
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}")
    for test in tests:
        _check(test)
    outcomes: dict[int, Outcome] = {}
    inside = [i for i, test in enumerate(tests) if not isinstance(test, InputOutput)]
    if inside:
        found = await _inside(program, [tests[i] for i in inside], sandbox, timeout_s)
        outcomes.update(zip(inside, found, strict=True))
    limits = replace(sandbox.limits, wall_s=max(timeout_s, 0.1))
    for i, test in enumerate(tests):
        if isinstance(test, InputOutput):
            result = await sandbox.run(program, stdin=test.stdin, limits=limits)
            outcomes[i] = _compare_output(result, test)
    return CodeScore(tuple(outcomes[i] for i in range(len(tests))))


def pass_rate_now(program: str, tests: Sequence[Test], sandbox: Sandbox, *, timeout_s: float = 5.0) -> CodeScore:
    """:func:`pass_rate`, waited for in this thread."""
    waiting: Any = pass_rate(program, tests, sandbox, timeout_s=timeout_s)
    score: CodeScore = wait_for(waiting)
    return score


def unit_tests(source: str) -> tuple[Assertion, ...]:
    """The test methods of ``unittest.TestCase`` classes, each as a test of its own.

    Args:
        source: A test module, as data sets have them. Its classes are those that name ``TestCase`` as a base.

    Raises:
        ValueError: It cannot be parsed, or has no test methods.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the test module cannot be parsed: {error}") from error
    tests = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases):
            for part in node.body:
                if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and part.name.startswith("test"):
                    tests.append(Assertion(f"{source}\n{_RUN_METHOD.format(name=node.name, method=part.name)}"))
    if not tests:
        raise ValueError("the test module has no method test... in a class that names TestCase as its base")
    return tuple(tests)


_RUN_METHOD = """
import unittest as _unittest
_result = _unittest.TestResult()
_unittest.TestSuite([{name}({method!r})]).run(_result)
for _test, _text in _result.errors + _result.failures:
    raise AssertionError(_text.strip().splitlines()[-1])
assert _result.testsRun == 1 and not _result.skipped, "the test did not run"
"""


# ------------------------------------------------------------------ inside


async def _inside(program: str, tests: Sequence[Test], sandbox: Sandbox, timeout_s: float) -> list[Outcome]:
    """Calls and assertions: one run of the harness, which gives each a process."""
    if len(json.dumps(program)) > sandbox.limits.disk_mb << 19:  # half of the room: the rest is for the tests
        return [Outcome(False, f"The program is too long: {len(program)} characters.")] * len(tests)
    asked = [
        {"expression": test.expression} if isinstance(test, Call) else {"code": getattr(test, "code", "")}
        for test in tests
    ]
    order = {"program": program, "tests": asked, "timeout_s": timeout_s, "most": _REPORT_BYTES}
    limits = replace(
        sandbox.limits,
        wall_s=len(tests) * (timeout_s + 0.1) + sandbox.limits.wall_s,
        output_bytes=len(tests) * (_REPORT_BYTES * 6 + 1000),  # JSON may write one byte as six
    )
    result = await sandbox.run(_HARNESS, stdin=json.dumps(order), limits=limits)
    reports = [json.loads(line) for line in result.stdout.splitlines()] if result.ok else []
    outcomes = [_read(test, report) for test, report in zip(tests, reports, strict=False)]
    # The program killed the harness: what it did not report did not pass.
    left = result.reason or "The program ended the test run."
    return outcomes + [Outcome(False, left)] * (len(tests) - len(outcomes))


def _read(test: Test, report: dict[str, Any]) -> Outcome:
    """What one test came to. The text of a value is the program's own, and may say anything."""
    if report["error"] is not None:
        return Outcome(False, report["error"])
    if isinstance(test, Assertion):
        return Outcome(True)
    assert isinstance(test, Call)
    text = report["value"]
    if text is None:
        return Outcome(False, "The program ended before the test did.")
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # a TypeError for "{[]: 1}"
        return Outcome(False, f"{excerpt(test.expression)} is not plain data: {excerpt(text)}")
    # The text and not repr(value): Python refuses to write an integer of very many digits.
    return Outcome(True) if _equal(value, test.expected) else Outcome(False, f"{test.expression} gives {excerpt(text)}")


def _compare_output(result: SandboxResult, test: InputOutput) -> Outcome:
    if not result.ok:
        last = result.stderr.strip().rpartition("\n")[2]
        return Outcome(False, result.reason or last or f"It ended with exit code {result.exit_code}.")
    if _lines(result.stdout) == _lines(test.stdout):
        return Outcome(True)
    return Outcome(False, f"It prints {excerpt(result.stdout)}")


def _lines(text: str) -> list[str]:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n").split("\n")


def _equal(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, float) or isinstance(expected, float):
        numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
        try:
            return numbers and math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12)
        except OverflowError:  # an integer that no float is near to
            return False
    if type(value) is not type(expected):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(expected) and all(map(_equal, value, expected))
    if isinstance(value, dict):
        return value.keys() == expected.keys() and all(_equal(value[key], expected[key]) for key in expected)
    return bool(value == expected)


def _check(test: Test) -> None:
    if isinstance(test, Call):
        try:
            same = _equal(ast.literal_eval(repr(test.expected)), test.expected)
        except (ValueError, SyntaxError):
            same = False
        if not same:
            raise ValueError(f"Call({test.expression!r}): expected must be plain data, not {test.expected!r}")
        try:
            ast.parse(test.expression.strip(), mode="eval")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"Call: {test.expression!r} is not an expression: {error}") from error
    elif not isinstance(test, (InputOutput, Assertion)):
        raise ValueError(f"a test is an InputOutput, a Call or an Assertion, not {test!r}")
