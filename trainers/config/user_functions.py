"""Whether a user's file has the function that is asked for, as far as reading it tells; nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Calls by which a file may define names that cannot be read in it.
_DYNAMIC = frozenset({"globals", "vars", "setattr", "exec", "eval"})


def function_problem(path: Path, name: str) -> str | None:
    """What is wrong with ``name`` in the Python file ``path``; ``None`` where nothing can be said against it."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        return f"{path}{line} cannot be read as Python: {said}"
    known = set(_names(tree))
    if name in known or "*" in known or _defines_by_calls(tree):
        return None
    there = [each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return f"{path} has no function {name}" + (f"; it has {', '.join(there)}" if there else "")


def _names(node: ast.AST) -> Iterator[str]:
    """What the statements of a module bind; ``*`` where it imports all of another."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child.name
            continue  # what is inside is its own
        if isinstance(child, ast.Lambda):
            continue
        if isinstance(child, ast.alias):
            yield (child.asname or child.name).partition(".")[0]
        elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        yield from _names(child)


def _defines_by_calls(tree: ast.Module) -> bool:
    return any(
        isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _DYNAMIC
        for each in ast.walk(tree)
    ) or any(isinstance(each, ast.Global) for each in ast.walk(tree))
