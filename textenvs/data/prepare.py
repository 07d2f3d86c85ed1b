"""Rows checked and written once, where environments find them by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..scoring.gsm8k import score
from ..task import SPLITS, Rows, Task
from .files import write_parquet
from .gsm8k import INSTRUCTION, problem_with
from .load import data_directory, read_source


@dataclass(frozen=True)
class Checked:
    """The rows of one split, read and checked.

    Args:
        tasks: Those that can be played.
        rejected: Why others cannot, a line each: the row, the column, the reason.
    """

    tasks: Rows
    rejected: tuple[str, ...]

    @property
    def data_sources(self) -> dict[str, int]:
        """How many of the tasks come from where."""
        return dict(Counter(self.tasks[index].data_source for index in range(self.tasks.size)))


def check_rows(
    sources: Mapping[str, str | Path], *, instruction: str | None = INSTRUCTION, skip_bad: bool = False
) -> dict[str, Checked]:
    """Read GSM8K rows and score every worked answer against its ground truth.

    Args:
        sources: For ``"train"``, ``"test"`` or both what to read (a file or ``hub:...``).
        instruction: Put after the question of JSONL and Hub rows; ``None`` for none.
        skip_bad: Leave rows that cannot be used out, and say which, as long as a good one is left.

    Raises:
        ValueError: No source, an unknown split, or a source that needs no preparing.
        TaskError: Rows that cannot be used, or a worked answer that its own ground truth refuses.
    """
    if not sources or set(sources) - set(SPLITS):
        raise ValueError(f"sources must map one or more of {', '.join(SPLITS)} to a source, not {dict(sources)!r}")
    checked: dict[str, Checked] = {}
    for split, source in sources.items():
        if str(source).startswith("generated:"):
            raise ValueError(f"{str(source)!r} is endless; generated problems need no preparing")
        rejected: list[str] | None = [] if skip_bad else None
        tasks = read_source(source, split=split, instruction=instruction, check=_problem_with, rejected=rejected)
        checked[split] = Checked(tasks, tuple(rejected or ()))
    return checked


def write_rows_of(checked: Mapping[str, Checked], directory: str | Path | None = None) -> dict[str, Path]:
    """Write checked rows; a file appears whole or not at all.

    Args:
        checked: The rows of each split.
        directory: The data directory; :func:`~textenvs.data.load.data_directory` by default. Files go to ``gsm8k/``
            in it.

    Returns:
        The file of each split.
    """
    folder = Path(directory).expanduser() if directory is not None else data_directory()
    return {split: write_parquet(each.tasks, folder / "gsm8k" / f"{split}.parquet") for split, each in checked.items()}


def prepare(
    sources: Mapping[str, str | Path] | None = None,
    *,
    directory: str | Path | None = None,
    instruction: str | None = INSTRUCTION,
) -> dict[str, Path]:
    """Write GSM8K rows where :func:`~textenvs.data.load.load_tasks` finds them by default, after checking every one.

    Every split is read and every worked answer is scored against its ground truth before the first file is written,
    and a file appears whole or not at all.

    Args:
        sources: As in :func:`check_rows`; both splits from ``hub:openai/gsm8k`` by default.
        directory: As in :func:`write_rows_of`.
        instruction: Put after the question of JSONL and Hub rows; ``None`` for none.

    Returns:
        The file of each split.

    Raises:
        ValueError: No source, or an unknown split.
        TaskError: Rows that cannot be used, or a worked answer that its own ground truth refuses.
    """
    sources = dict.fromkeys(SPLITS, "hub:openai/gsm8k") if sources is None else sources
    return write_rows_of(check_rows(sources, instruction=instruction), directory)


def _problem_with(task: Task) -> str | None:
    problem = problem_with(task)
    if problem is None and "answer" in task.extra and score(task.extra["answer"], task.ground_truth) != 1.0:
        return "column 'extra_info': the worked answer does not end in '#### N' with the ground truth"
    return problem
