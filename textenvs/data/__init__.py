"""Task sets: generated problems, JSONL, Parquet and the Hub, behind one :class:`TaskSet`."""

from ..task import Rows, Task, TaskError, TaskSet
from .files import write_parquet
from .load import load_tasks
from .prepare import prepare
from .word_problems import GeneratedMath

__all__ = ["GeneratedMath", "Rows", "Task", "TaskError", "TaskSet", "load_tasks", "prepare", "write_parquet"]
