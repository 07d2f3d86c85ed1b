"""The console: one line an iteration, and on a terminal a progress bar with the current phase below the lines.

Piped into a file, the same lines come without colour, cursor movements or a bar.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

# What a line shows of the metrics, where they are there: name, label, format.
_TRAINING = (
    ("train/reward", "reward", "{:+.3f}"),
    ("train/solved", "solved", "{:.1%}"),
    ("train/first_reply", "first reply", "{:.1%}"),
    ("actor/approx_kl_k3", "KL", "{:.4f}"),
    ("actor/ref_kl", "KL to reference", "{:.4f}"),
    ("actor/entropy", "entropy", "{:.3f}"),
    ("train/turns", "turns", "{:.2f}"),
    ("train/turn_tokens", "tokens/turn", "{:.1f}"),
    ("train/groups_tied", "groups tied", "{:.1%}"),
    ("rollout/replies_cut", "replies cut", "{:.1%}"),
    ("actor/outside_clip_first", "outside the clip range at first", "{:.1%}"),
    ("perf/tokens_per_s", "tokens/s", "{:.0f}"),
)
_VALIDATION = (
    ("val/reward", "reward", "{:+.3f}"),
    ("val/solved", "solved", "{:.1%}"),
    ("val/first_reply", "first reply", "{:.1%}"),
    ("val/turns", "turns", "{:.2f}"),
    ("val/turn_tokens", "tokens/turn", "{:.1f}"),
    ("val/left_out", "not scored", "{:.1%}"),
)
# Shown only above these. docs/algorithms.md says what each of them means.
_TROUBLE = {
    "val/left_out": 0.0,
    "train/groups_tied": 0.5,
    "rollout/replies_cut": 0.05,
    "actor/outside_clip_first": 0.01,
}


class ConsoleLogger:
    """Prints metrics as lines, and shows progress on a terminal; ``total`` are the iterations of the whole run."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self._total = total
        self._progress: Progress | None = None
        if self.console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
            counts = (MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, *counts, console=self.console, transient=True)
            self._task = self._progress.add_task("starting", total=total)
            self._progress.start()

    def phase(self, name: str) -> None:
        """Show what is being done; fits :class:`trainers.report.metrics.Phases`."""
        if self._progress is not None:
            self._progress.update(self._task, description=name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print a line for the training's metrics, and one for the validation's, if there are such."""
        place = f"{step:>{len(str(self._total))}}/{self._total}"
        if any(name in metrics for name, _, _ in _TRAINING):
            self.print(_line(f"iteration  {place}", "bold", _TRAINING, metrics, _times(metrics)))
        if any(name in metrics for name, _, _ in _VALIDATION):
            self.print(_line(f"validation {place}", "bold cyan", _VALIDATION, metrics))
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def print(self, what: RenderableType) -> None:
        """Print above the progress bar; a line is never broken."""
        self.console.print(what, soft_wrap=True, highlight=False, markup=False)

    def close(self) -> None:
        """Take the progress bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _line(
    head: str, style: str, columns: tuple[tuple[str, str, str], ...], metrics: Mapping[str, float], tail: str = ""
) -> Text:
    line = Text().append(head, style=style)
    for name, label, form in columns:
        if name in metrics and (name not in _TROUBLE or metrics[name] > _TROUBLE[name]):
            line.append(f"  {label} ", style="dim")
            line.append(form.format(metrics[name]))
    if tail:
        line.append(f"  {tail}", style="dim")
    return line


def _times(metrics: Mapping[str, float]) -> str:
    """The iteration's seconds, and of which phases."""
    total = metrics.get("time/iteration_s")
    if total is None:
        return ""
    phases = [name for name in metrics if name.startswith("time/") and name not in ("time/iteration_s", "time/other_s")]
    longest = sorted((name for name in phases if metrics[name] >= 0.05), key=lambda name: -metrics[name])
    parts = ", ".join(f"{name.removeprefix('time/').removesuffix('_s')} {metrics[name]:.1f}" for name in longest)
    return f"{total:.1f} s" + (f" ({parts})" if parts else "")
