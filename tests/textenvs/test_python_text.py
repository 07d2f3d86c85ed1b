"""`textenvs.python_text`: parses also where a garbage collection parses in between, as another thread may."""

import ast
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from textenvs.python_text import parse_literal, parse_python

ROOT = Path(__file__).resolve().parents[2]
# Programs of processes without threads; they import nothing of this project.
WORKERS = {"textenvs/envs/bfcl/worker.py", "textenvs/envs/awm/worker.py"}


@contextmanager
def interrupted() -> Iterator[None]:
    """Parse in every garbage collection, of which there are many, as a thread does that has its turn then."""
    busy = False

    def parse(phase: str, _: object) -> None:
        nonlocal busy
        if phase == "start" and not busy:
            busy = True
            ast.parse("1")
            busy = False

    threshold = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(parse)


@pytest.mark.parametrize("lines", [1, 5, 20, 50])
def test_collections_may_parse_in_between(lines):
    data = [{"a": (1, 2.5), "b": [None, {True}]}] * lines
    with interrupted():
        program = parse_python("((1+2)*(3-4))/(5+(6*(7+8)))\n" * lines)
        literal = parse_literal(f"  {data!r}")
    assert len(program.body) == lines
    assert literal == data
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_interrupted_parse_leaves_collector_alone(enabled, monkeypatch):
    """Interrupt one parse in every version of Python, also in those that count each thread's depth apart."""
    parse, calls = ast.parse, list[bool]()

    def interrupted_once(text: str, mode: str) -> ast.AST:
        calls.append(gc.isenabled())
        if len(calls) == 1:
            raise SystemError("AST constructor recursion depth mismatch (before=42, after=39)")
        return parse(text, mode=mode)

    monkeypatch.setattr(ast, "parse", interrupted_once)
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        assert len(parse_python("f(x, [y])\n" * 50).body) == 50
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert calls == [enabled, False]


@pytest.mark.parametrize("text", ["1 +", "a\0b", "f()", "x"])
def test_errors_are_those_of_ast(text):
    with pytest.raises((SyntaxError, ValueError)) as expected:
        ast.literal_eval(text)
    with pytest.raises(expected.type):
        parse_literal(text)


def test_packages_parse_nowhere_else():
    files = [path for package in ("textenvs", "trainers") for path in (ROOT / package).rglob("*.py")]
    calls = re.compile(r"\bast\.parse\(|\bast\.literal_eval\((?:text|repr|str|value)\b|PyCF_ONLY_AST")
    parsing = {path for path in files if calls.search(path.read_text("utf-8"))}
    assert {path.relative_to(ROOT).as_posix() for path in parsing} - WORKERS == {"textenvs/python_text.py"}
