"""Where metrics go: the console, a JSONL file, TensorBoard. One protocol, and a bundle that feeds several.

A logger is opened with the first step that it will be given. What earlier runs in the same folder logged from that step
on is dropped, so a resumed run continues its curves without a step that stands twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class Logger(Protocol):
    """Takes metrics. Steps never go back; a step may be given in several parts."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note the metrics of a step (iteration; 0 is before the first)."""
        ...

    def close(self) -> None:
        """Write out what is left. Safe to call twice."""
        ...


class JsonlLogger:
    """One JSON object a line: ``{"step": 3, "train/reward": 0.5, ...}``, written at once.

    Numbers that are not finite, which JSON does not have, are the strings ``NaN``, ``Infinity`` and ``-Infinity``.

    Args:
        path: The file; it and its folder are made if need be.
        first_step: Lines of this step and later ones are dropped, as is a last line that a crash cut short.

    Raises:
        ValueError: The file has a line that is no metrics, other than a cut last one.
    """

    def __init__(self, path: str | Path, first_step: int = 0) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            kept = [json.dumps(_plain(step, metrics)) for step, metrics in read_jsonl(self.path) if step < first_step]
            fresh = self.path.with_name(self.path.name + ".new")
            fresh.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
            os.replace(fresh, self.path)  # a crash in between leaves the old file
        self._file = self.path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line."""
        self._file.write(json.dumps(_plain(step, metrics)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps and metrics of a file that :class:`JsonlLogger` wrote, in the order of the file.

    Raises:
        ValueError: A line other than a cut last one is no metrics; the message names the file and the line.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            step = row.pop("step")
            metrics = {name: float(value) for name, value in row.items()}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                return  # the process was stopped while it wrote this line
            raise ValueError(f"{path}, line {number}: not a line of metrics ({error}); move the file away") from error
        yield step, metrics


def _plain(step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step}
    for name, value in metrics.items():
        number = float(value)
        row[name] = number if math.isfinite(number) else json.dumps(number)
    return row


class TensorBoardLogger:
    """Scalars for TensorBoard.

    Args:
        folder: Where the event files go.
        first_step: TensorBoard hides what earlier runs in the folder logged from this step on.

    Raises:
        ImportError: TensorBoard is not installed; the message names the extra.
    """

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "trainer.logger has tensorboard, which is not installed: pip install 'textenvs[train]'"
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=first_step)  # type: ignore[no-untyped-call]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()  # type: ignore[no-untyped-call]


class Loggers:
    """Several loggers as one; a context manager that closes them all.

    Args:
        loggers: In the order they are fed.
    """

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers = tuple(loggers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Give the metrics to every logger."""
        for logger in self.loggers:
            logger.log(step, metrics)

    def close(self) -> None:
        """Close every logger, the last opened first."""
        for logger in reversed(self.loggers):
            logger.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
