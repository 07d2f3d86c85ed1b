"""Rows from the Hugging Face Hub, through ``datasets``, imported only here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..task import TaskError

# GSM8K has two configurations, and `datasets` wants one named; "socratic" asks the same questions.
_DEFAULT_CONFIG = {"openai/gsm8k": "main"}


def hub_rows(repository: str, config: str | None, split: str) -> tuple[str, Iterator[tuple[int, Any]]]:
    """The name and the rows, numbered from 1, of a data set.

    Args:
        repository: A name on the Hub, or a local folder that ``datasets`` can load.
        config: The data set's configuration; ``None`` for its default.
        split: The split to load.

    Raises:
        ImportError: ``datasets`` is not installed.
        TaskError: The data set cannot be loaded, or is empty.
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
    return name, enumerate(rows, start=1)
