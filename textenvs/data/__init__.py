"""Task sets: generated problems, JSONL, Parquet and the Hub, behind one :class:`TaskSet`."""

from typing import Any

from ..task import Rows, Task, TaskError, TaskSet
from .files import write_parquet
from .sources import Reader, open_source
from .word_problems import GeneratedMath

__all__ = ["GeneratedMath", "Reader", "Rows", "Task", "TaskError", "TaskSet", "open_source", "write_parquet"]


def __getattr__(name: str) -> Any:
    """Names that are no more say what is there instead."""
    if name in ("load_tasks", "prepare"):
        raise ImportError(
            f"textenvs.data.{name} is gone: prepared rows are no longer looked for in a folder. Name the source where "
            "it is used, tasks='data/train.parquet' (the command `textenvs prepare` writes such files); open_source "
            "makes a task set of a name"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
