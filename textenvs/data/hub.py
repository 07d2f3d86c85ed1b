"""Tasks from the Hugging Face Hub, through ``datasets``, imported only here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..task import Rows, Task, TaskError
from .files import Check, collect
from .gsm8k import INSTRUCTION, from_pair

# GSM8K has two configurations, and `datasets` wants one named; "socratic" asks the same questions.
_DEFAULT_CONFIG = {"openai/gsm8k": "main"}


def read_hub(
    repository: str,
    config: str | None = None,
    *,
    split: str = "train",
    instruction: str | None = INSTRUCTION,
    check: Check | None = None,
    rejected: list[str] | None = None,
) -> Rows:
    """Load a data set with columns ``question`` and ``answer`` (GSM8K's shape).

    Args:
        repository: A name on the Hub, as ``openai/gsm8k``, or a local folder that ``datasets`` can load.
        config: The data set's configuration; ``None`` for its default (``main`` for ``openai/gsm8k``).
        split: The split to load.
        instruction: Put after every question; ``None`` for none.
        check: Also applied to every task.
        rejected: As in :func:`~textenvs.data.files.collect`.

    Raises:
        ImportError: ``datasets`` is not installed.
        TaskError: The data set cannot be loaded, lacks a column, is empty, or rows of it cannot be used.
    """

    def make(number: int, row: dict[str, Any]) -> Task:
        return from_pair(
            row,
            key=f"{split}/{number}",
            where=f"row {number}",
            data_source=repository,
            instruction=instruction,
        )

    columns = ("question", "answer")
    return hub_rows(repository, config, make, check, split=split, columns=columns, rejected=rejected)


def hub_rows(
    repository: str,
    config: str | None,
    make: Callable[[int, dict[str, Any]], Task],
    check: Check | None = None,
    *,
    split: str = "train",
    columns: Sequence[str] = (),
    rejected: list[str] | None = None,
) -> Rows:
    """Load a data set of any shape.

    Args:
        repository: A name on the Hub, or a local folder that ``datasets`` can load.
        config: The data set's configuration; ``None`` for its default.
        make: Returns the task of a number and a row, or raises :class:`TaskError`.
        check: Also applied to every task.
        split: The split to load.
        columns: What the data set must have.
        rejected: As in :func:`~textenvs.data.files.collect`.

    Raises:
        ImportError: ``datasets`` is not installed.
        TaskError: The data set cannot be loaded, lacks a column, is empty, or rows of it cannot be used.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("the Hub needs datasets: pip install 'textenvs[hub]'") from error
    config = config or _DEFAULT_CONFIG.get(repository)
    name = f"hub:{repository}{f':{config}' if config else ''} ({split})"
    try:
        rows = load_dataset(repository, config, split=split)
    except Exception as error:  # datasets and huggingface_hub raise errors of many kinds: network, name, config, split
        raise TaskError(
            f"{name}: could not be loaded ({type(error).__name__}: {error}); check the name, the split and the "
            "network, or name a .jsonl or .parquet file instead"
        ) from error
    for column in columns:
        if column not in rows.column_names:
            raise TaskError(f"{name}: column {column!r} is missing; the data set has {rows.column_names}")
    if len(rows) == 0:
        raise TaskError(f"{name}: the data set has no rows")
    return collect(name, enumerate(rows, start=1), make, check, rejected)
