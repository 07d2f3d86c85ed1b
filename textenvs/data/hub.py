"""Tasks from the Hugging Face Hub, through ``datasets``, imported only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..task import Rows, Task, TaskError
from .files import Check, collect

# GSM8K has two configurations, and `datasets` wants one named; "socratic" asks the same questions.
_DEFAULT_CONFIG = {"openai/gsm8k": "main"}


def hub_rows(
    repository: str,
    config: str | None,
    make: Callable[[int, dict[str, Any]], Task],
    check: Check | None = None,
    *,
    split: str = "train",
    rejected: list[str] | None = None,
) -> Rows:
    """Load a data set of any shape.

    Args:
        repository: A name on the Hub, or a local folder that ``datasets`` can load.
        config: The data set's configuration; ``None`` for its default.
        make: Returns the task of a number and a row, or raises :class:`TaskError`.
        check: Also applied to every task.
        split: The split to load.
        rejected: As in :func:`~textenvs.data.files.collect`.

    Raises:
        ImportError: ``datasets`` is not installed.
        TaskError: The data set cannot be loaded, is empty, or rows of it cannot be used.
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
    if len(rows) == 0:
        raise TaskError(f"{name}: the data set has no rows")
    return collect(name, enumerate(rows, start=1), make, check, rejected)
