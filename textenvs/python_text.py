"""Parse text as Python without running it, in any thread.

Python before 3.11.8 and 3.12.2 counts how deep the trees of all threads are in one place (CPython's issue 106905): a
garbage collection during a parse may let another thread parse, and then the first one ends in a ``SystemError``.
Environments' hooks run in threads, so every parse in a process with threads is made here.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload


@overload
def parse_python(text: str, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parse_python(text: str, mode: Literal["eval"]) -> ast.Expression: ...
def parse_python(text: str, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Return the tree of a program, or of an expression.

    Raises:
        SyntaxError: The text is not Python.
        ValueError: It has null characters (or a SyntaxError, by the version of Python).
        RecursionError, MemoryError: It is nested too deeply.
    """
    try:
        tree: Any = ast.parse(text, mode=mode)
    except SystemError:
        with _no_collection():
            tree = ast.parse(text, mode=mode)
    return tree  # type: ignore[no-any-return]


def parse_literal(text: str) -> Any:
    """Return the plain data that a text writes, as ``ast.literal_eval`` does.

    Raises:
        ValueError, TypeError: The text is Python and no plain data.
        SyntaxError, RecursionError, MemoryError: As of :func:`parse_python`.
    """
    return ast.literal_eval(parse_python(text.lstrip(" \t"), "eval"))


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()  # what another thread sets meanwhile is undone, which is seldom and harmless
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
