"""Whether a user's file has the function that is asked for, as far as reading it tells; nothing of it is run."""

from __future__ import annotations

import re
from pathlib import Path
from symtable import symtable

# Statements by which a file may define names that its table of symbols has not.
_DYNAMIC = re.compile(rb"\bimport\s*\*|\b(globals|vars|setattr|exec|eval)\s*\(|\bglobal\s")


def function_problem(path: Path, name: str) -> str | None:
    """What is wrong with ``name`` in the Python file ``path``; ``None`` where nothing can be said against it."""
    try:
        text = path.read_bytes()
        symbols = symtable(text, str(path), "exec").get_symbols()  # type: ignore[arg-type]  # bytes have an encoding
    except (OSError, SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else error
        return f"{path}{line} cannot be read as Python: {said}"
    bound = [each for each in symbols if each.is_assigned() or each.is_imported()]
    if any(each.get_name() == name for each in bound) or _DYNAMIC.search(text):
        return None
    there = [each.get_name() for each in bound if each.is_namespace()]
    return f"{path} has no function {name}" + (f"; it has {', '.join(there)}" if there else "")
