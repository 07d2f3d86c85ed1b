"""Task sets: generated problems, JSONL, Parquet and the Hub, behind one :class:`TaskSet`."""

from ..task import Rows, Task, TaskError, TaskSet
from .files import write_parquet
from .sources import Reader, open_source
from .word_problems import GeneratedMath

__all__ = ["GeneratedMath", "Reader", "Rows", "Task", "TaskError", "TaskSet", "open_source", "write_parquet"]
