"""Task sets: generated problems, JSONL, Parquet and the Hub, behind one :class:`TaskSet`."""

from .base import Rows, Task, TaskError, TaskSet
from .files import write_parquet
from .generated import GeneratedMath
from .load import load_tasks
from .prepare import prepare

__all__ = ["GeneratedMath", "Rows", "Task", "TaskError", "TaskSet", "load_tasks", "prepare", "write_parquet"]
