"""The metrics of a run: ``metrics.jsonl`` has a line ``{"step": 3, "train/reward": 0.5, ...}``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..bounded_files import parse_json, read_lines

_LINE = 16 << 20  # bytes
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # JSON has no numbers for them


def read_metrics(path: str | Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield ``(iteration, metrics)`` in the order of the lines; a torn last line is left out.

    Raises:
        ValueError: The file cannot be read, or a line is no row of metrics; the message names it.
    """
    for number, line in read_lines(path, _LINE):
        try:
            row = _row(parse_json(line))
        except (ValueError, OverflowError) as error:
            if not line.endswith(b"\n"):
                return  # the process was stopped while it wrote this line
            raise ValueError(f"{path}, line {number}: not a line of metrics ({error}); move the file away") from error
        yield row


def _row(row: Any) -> tuple[int, dict[str, float]]:
    if not isinstance(row, dict) or type(step := row.pop("step", None)) is not int or not 0 <= step < 2**31:
        raise ValueError("it has no iteration as 'step'")
    for name, value in row.items():
        if not isinstance(value, int | float) and value not in _NOT_FINITE:
            raise ValueError(f"{name!r} is not a number")
    return step, {name: float(value) for name, value in row.items()}
