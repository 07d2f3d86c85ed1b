"""Tasks of programs: rows of any kind, or the expressions of the example program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...data.sources import Reader
from ...messages import check_conversation, clean_text, copy_messages, user
from ...task import Task, TaskError
from ..math_expression.tasks import LEVELS, GeneratedExpressions

_QUESTIONS, _ANSWERS = ("question", "prompt", "problem", "task"), ("ground_truth", "answer")


def from_row(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Return a task from a row with a question (a text, or messages); its other columns go to the program, too."""
    column = next((name for name in _QUESTIONS if row.get(name) is not None), None)
    if column is None:
        raise TaskError(f"{where}: it has none of the columns {', '.join(_QUESTIONS)}; it has {sorted(map(str, row))}")
    content = row[column]
    try:
        messages = [user(clean_text(content))] if isinstance(content, str) else content
        prompt = copy_messages(check_conversation(messages, f"column {column!r}"))
    except (TypeError, ValueError) as error:
        raise TaskError(f"{where}: {error}") from error
    if not prompt:
        raise TaskError(f"{where}: column {column!r} is empty")
    answer = next((row[name] for name in _ANSWERS if row.get(name) is not None), None)
    extra = {name: value for name, value in row.items() if name not in (column, *_ANSWERS)}
    return Task(key, data_source, prompt, answer, extra=extra)


#: How this family reads its tasks.
READER = Reader(GeneratedExpressions, LEVELS, from_row, "'question'", "my/tasks")
