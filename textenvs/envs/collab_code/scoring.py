"""Score a program by the share of tests that it passes, each run in a sandbox.

Expected values and verdicts are never in a process of the program, nor in one that it descends from. The output of
a program (:class:`InputOutput`) and the value of an expression (:class:`Call`) are compared here, outside the
box; an :class:`Assertion` runs in a process of the box beside the program's. docs/sandbox.md says which results of
an assertion depend on the program's honesty.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import math
import symtable
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from ...python_text import parse_literal, parse_python
from ...sandbox import Limits, Pool, Sandbox, SandboxResult, WorkerDied
from ...sandbox.backends import Backend
from ...sandbox.box import CONCURRENCY
from ...text import excerpt

# The call is added here: the program empties its folder, and ends every process that it sees.
_HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8") + "\n\nmain()\n"
_REPORT_BYTES = 20_000
_MARGIN_S = 10.0  # for the sandbox's own work on a program
#: Tests of a submitted program that may take too long before the later ones of their kind are not run.
MOST_SLOW = 2
_NOT_RUN = "It was not run, because tests before it took too long."


@dataclass(frozen=True)
class InputOutput:
    """The program, given ``stdin``, prints ``stdout``, but for spaces at ends of lines and empty lines at the end."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class Call:
    """``expression``, with the program's names, is ``expected``: ``Call("area(3, 4)", 12)``.

    ``expected`` is made of numbers, strings, bytes, ``None``, booleans, lists, tuples, sets and mappings. Floats are
    compared to nine digits.
    """

    expression: str
    expected: Any

    def __post_init__(self) -> None:
        with suppress(ValueError, SyntaxError):
            if _equal(parse_literal(repr(self.expected)), self.expected):
                parse_python(self.expression.strip(), "eval")
                return
        raise ValueError(f"{self!r}: it must be an expression, and what is expected of it plain data")


@dataclass(frozen=True)
class Assertion:
    """``code`` runs without an exception; names that it uses and does not bind are the program's.

    A ``method`` is a ``unittest.TestCase`` class of ``code`` and its method, which is the test then. What needs the
    program in its own process (patching its modules, giving it functions, catching its prints) fails.
    """

    code: str
    method: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        try:
            free_names(self.code)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"the test cannot be parsed: {error}") from error


Test: TypeAlias = InputOutput | Call | Assertion


@dataclass(frozen=True)
class Outcome:
    """The result of a test. The message never says what was expected."""

    passed: bool
    message: str = ""
    late: bool = False  # it did not come to its end, so that it may pass when run again
    slow: bool = False  # it took too long


@dataclass(frozen=True)
class CodeScore:
    """The outcomes of a program's tests, in order."""

    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> int:
        return sum(outcome.passed for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        return self.passed / len(self.outcomes)


async def pass_rate(
    program: str, tests: Sequence[Test], sandbox: Sandbox, *, timeout_s: float = 5.0, most_slow: int | None = MOST_SLOW
) -> CodeScore:
    """Run ``program`` against ``tests``, of which there is at least one.

    Every test has a process of its own. The limits of ``sandbox`` hold for every test; ``timeout_s`` is the wall time
    of one. After ``most_slow`` that took too long, the later ones of the same kind fail without being run, because a
    program without an end would keep a core for as long as all its tests may take; ``None``: all are run. A
    SandboxFailure says nothing about the program.
    """
    outcomes: dict[int, Outcome] = {}
    for kind in (Call, Assertion):  # apart: what evaluates calls holds nothing of a test's code
        inside = [i for i, test in enumerate(tests) if isinstance(test, kind)]
        if inside:
            results = await _inside(program, [tests[i] for i in inside], sandbox, timeout_s, most_slow)
            outcomes.update(zip(inside, results, strict=True))
    limits = replace(sandbox.limits, wall_s=max(timeout_s, 0.1))
    for i, test in enumerate(tests):
        if isinstance(test, InputOutput):
            slow = sum(outcomes[j].slow for j in range(i) if isinstance(tests[j], InputOutput))
            if most_slow is not None and slow >= most_slow:
                outcomes[i] = Outcome(False, _NOT_RUN, late=True, slow=True)
                continue
            result = await sandbox.run(program, stdin=test.stdin, limits=limits)
            outcomes[i] = _compare_output(result, test)
    return CodeScore(tuple(outcomes[i] for i in range(len(tests))))


def unit_tests(source: str) -> tuple[Assertion, ...]:
    """Return the test methods of a module's classes that have ``TestCase`` as a base, each as a test of its own."""
    Assertion(source)  # raises a ValueError where it cannot be parsed
    tests = tuple(
        Assertion(source, (node.name, part.name))
        for node in parse_python(source).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases)
        for part in node.body
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) and part.name.startswith("test")
    )
    if not tests:
        raise ValueError("the test module has no method test... in a class that names TestCase as its base")
    return tests


async def _inside(
    program: str, tests: Sequence[Test], sandbox: Sandbox, timeout_s: float, most_slow: int | None
) -> list[Outcome]:
    if len(json.dumps(program)) > sandbox.limits.disk_mb << 19:
        return [Outcome(False, f"The program is too long: {len(program)} characters.")] * len(tests)
    requests = [
        {"expression": test.expression}
        if isinstance(test, Call)
        else {"code": {"source": test.code, "method": test.method, "names": free_names(test.code)}}
        for test in tests
        if not isinstance(test, InputOutput)
    ]
    stays = sandbox.backend != "unsafe"
    order = {"program": program, "tests": requests, "timeout_s": timeout_s, "most": _REPORT_BYTES}
    order |= {"most_slow": most_slow, "not_run": _NOT_RUN}
    order |= {"cpu_s": sandbox.limits.cpu_s, "stays": stays}
    within = len(tests) * (timeout_s + 0.5) + _MARGIN_S
    reports: list[dict[str, Any]] = []
    if stays:
        pool = _pool(sandbox.limits, sandbox.packages, sandbox.seed, sandbox.backend)
        with suppress(TimeoutError, WorkerDied):
            reports = await pool.in_thread(lambda: pool.ask(order, within))
    else:
        limits = replace(sandbox.limits, wall_s=within, output_bytes=1 << 24)
        result = await sandbox.run(_HARNESS, stdin=json.dumps(order) + "\n", limits=limits)
        lines = result.stdout.splitlines()
        reports = json.loads(lines[1]) if result.ok and len(lines) == 2 else []
    outcomes = [_read(test, report) for test, report in zip(tests, reports, strict=False)]
    missing = Outcome(False, "The program ended the test run.", late=True)  # it killed the harness
    return outcomes + [missing] * (len(tests) - len(outcomes))


@functools.lru_cache(maxsize=4)
def _pool(limits: Limits, packages: str | Path | None, seed: int | None, backend: Backend) -> Pool:
    """Return boxes that stay. The harness limits the CPU time of each test; its own processes count as well."""
    wide = replace(limits, cpu_s=1 << 20, processes=limits.processes + 4, output_bytes=1 << 24)
    sandbox = Sandbox(limits=wide, packages=packages, seed=seed, backend=backend)
    return Pool(lambda: sandbox.start(_HARNESS), CONCURRENCY, "textenvs-code")


@functools.lru_cache(maxsize=256)
def free_names(source: str) -> tuple[str, ...]:
    """Return the names that a module uses and does not bind at its top level, without builtins."""
    tables = [symtable.symtable(source, "test.py", "exec")]
    for table in tables:  # it grows
        tables.extend(table.get_children())
    bound = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_local()}
    used = {symbol.get_name() for table in tables for symbol in table.get_symbols() if symbol.is_global()}
    return tuple(sorted(used - bound - set(dir(builtins))))


def _read(test: Test, report: dict[str, Any]) -> Outcome:
    """Read a test's report. The text of a value is the program's own, and may say anything."""
    if report["error"] is not None:
        stopped = report["stopped"]
        return Outcome(False, report["error"], late=stopped is not None, slow=stopped == "slow")
    if isinstance(test, Assertion):
        return Outcome(True)
    assert isinstance(test, Call)
    text = report["value"] or ""
    try:
        value = parse_literal(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # a TypeError for "{[]: 1}"
        return Outcome(False, f"{excerpt(test.expression)} is not plain data: {excerpt(text)}")
    # The text and not repr(value): Python refuses to write an integer of very many digits.
    return Outcome(True) if _equal(value, test.expected) else Outcome(False, f"{test.expression} gives {excerpt(text)}")


def _compare_output(result: SandboxResult, test: InputOutput) -> Outcome:
    if not result.ok:
        last = result.stderr.strip().rpartition("\n")[2]
        message = result.reason or last or f"It ended with exit code {result.exit_code}."
        return Outcome(False, message, late=result.status in ("timeout", "memory"), slow=result.status == "timeout")
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
