r"""Rows of mathematical problems: MATH, AIME, and others of their shape.

MATH has ``problem``, ``level``, ``type`` (or ``subject``) and ``solution``, whose ``\boxed{...}`` is the answer
(`hendrycks/math <https://github.com/hendrycks/math>`_; its 500-problem subset has ``answer``, too). ``Maxwell-Jia/
AIME_2024`` has ``ID``, ``Problem``, ``Solution`` and ``Answer``. Upper and lower case of columns make no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...messages import clean_text, user
from ...scoring.final_answer import boxed
from ...task import Task, TaskError

#: What a row needs, for errors.
COLUMNS = "'problem', and 'answer' or a 'solution' with its answer in \\boxed{...}"


def from_problem(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """A task from a row; ``answer`` counts before the box of ``solution``, and ``where`` is named in errors."""
    columns = {str(name).lower(): value for name, value in row.items() if value is not None}
    problem, solution, answer = columns.get("problem"), columns.get("solution"), columns.get("answer")
    if problem is None or (solution is None and answer is None):
        raise TaskError(f"{where}: a row needs {COLUMNS}; this one has {sorted(map(str, row))}")
    for name, value in (("problem", problem), ("solution", solution)):
        if value is not None and not isinstance(value, str):
            raise TaskError(f"{where}: column {name!r} must be text, not {type(value).__name__}")
    if not problem.strip():
        raise TaskError(f"{where}: column 'problem' is empty")
    stated = boxed(solution) if solution is not None else None
    if answer is None:
        if stated is None:
            raise TaskError(f"{where}: column 'solution' has no \\boxed{{...}} with the answer")
        answer = stated
    elif not isinstance(answer, (str, int, float)) or isinstance(answer, bool):
        raise TaskError(f"{where}: column 'answer' must be text or a number, not {type(answer).__name__}")
    if not (truth := str(answer).strip()):
        raise TaskError(f"{where}: column 'answer' is empty")
    extra: dict[str, Any] = {name: columns[name] for name in ("level", "type", "subject", "id") if name in columns}
    if solution is not None and stated is not None:
        extra["solution"] = clean_text(solution).strip()
    own = columns.get("data_source")
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=(user(clean_text(problem).strip()),),
        ground_truth=clean_text(truth),
        ability="math",
        extra=extra,
    )
