"""All that a run shows, behind one object: console, metrics files, dumps, and the closing summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainers.trajectory import Trajectory, write_parquet

from .console import ConsoleLogger
from .conversations import pick, print_conversations
from .loggers import METRICS_FILE, open_loggers, read_jsonl
from .metrics import Phases
from .plots import plot

log = logging.getLogger("trainers")

CURVES = "curves.png"
CONVERSATIONS = "conversations"


class Reporter:
    """Reports one run.

    Args:
        folder: The run's folder; made if need be.
        loggers: Which of ``console``, ``jsonl``, ``tensorboard``, ``wandb``, ``mlflow``.
        total: Iterations of the whole run.
        project: What wandb and MLflow call the runs that belong together.
        name: What they call this run.
        config: What they show beside it.
        first_step: Go on after an interruption: what was logged from this step on is dropped, when the first row comes.
            ``None`` drops nothing, and writes no sample conversations.
        rollout_dir: Training episodes are written here, a Parquet file an iteration; ``None`` for nowhere.
        validation_dir: Likewise those of validations.
        on_phase: Called with each phase of an iteration, and the seconds (``time.monotonic``) it began and ended.

    Attributes:
        latest: The last value of each metric that this process reported.
    """

    def __init__(
        self,
        folder: Path,
        loggers: Sequence[str],
        *,
        total: int,
        project: str = "textenvs",
        name: str = "run",
        config: Mapping[str, Any] | None = None,
        first_step: int | None = 0,
        rollout_dir: str | None = None,
        validation_dir: str | None = None,
        on_phase: Callable[[str, float, float], None] | None = None,
    ) -> None:
        self._on_phase = on_phase
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._dirs = {"rollout": rollout_dir, "validation": validation_dir}
        self._console = ConsoleLogger(total) if "console" in loggers else None
        self._loggers = open_loggers(
            loggers,
            folder,
            project=project,
            name=name,
            config=config,
            first_step=first_step,
            before=[self._console] if self._console else [],
        )
        self._has_jsonl = "jsonl" in loggers
        self._keeps_conversations = first_step is not None
        self.latest: dict[str, float] = {}
        self._validated: Sequence[Trajectory] = ()
        self._validations: list[tuple[int, Mapping[str, float]]] = []
        if (
            self._has_jsonl and (folder / METRICS_FILE).is_file()
        ):  # the numbers before an interruption count in the summary
            rows = read_jsonl(folder / METRICS_FILE)
            self._remember(row for row in rows if first_step is None or row[0] < first_step)

    def phases(self) -> Phases:
        """A stopwatch whose phases the progress display shows."""
        shown = self._console.phase if self._console else None
        return Phases(on_enter=shown, clock=time.monotonic, on_exit=self._on_phase)

    def say(self, text: str) -> None:
        """A line on the console, if there is one."""
        if self._console is not None:
            self._console.print(text)

    def iteration(self, step: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        """Report an iteration."""
        self._loggers.log(step, metrics)
        self.latest.update(metrics)
        self._dump("rollout", step, trajectories)

    def validation(self, step: int, metrics: Mapping[str, float], trajectories: Sequence[Trajectory]) -> None:
        """Report a validation."""
        self._loggers.log(step, metrics)
        self.latest.update(metrics)
        self._dump("validation", step, trajectories)
        if self._keeps_conversations:
            self._keep_conversations(step, trajectories)
        self._validated = trajectories
        self._validations.append((step, metrics))

    def conclude(self, trained_s: float) -> None:
        """Draw the curves, and print sample conversations, before and after, and where everything is."""
        curves = None
        if self._has_jsonl and (rows := list(read_jsonl(self.folder / METRICS_FILE))):
            curves = plot(rows, self.folder / CURVES, title=self.folder.name)
        if self._console is None:
            return
        self._console.close()
        console: Console = self._console.console
        print_conversations(pick(self._validated), console, title="validation")
        if len(self._validations) > 1:
            (first, before), (last, after) = self._validations[0], self._validations[-1]
            self.say(f"validation, iteration {first} -> {last}, {trained_s:.0f} s of training:")
            for name, label in (("solved", "episodes solved"), ("first_reply", "first reply right")):
                key = f"val/{name}"
                if key in before and key in after:
                    self.say(f"  {label:18} {before[key]:6.1%} -> {after[key]:6.1%}")
            if "val/reward" in before and "val/reward" in after:
                self.say(f"  {'reward':18} {before['val/reward']:6.3f} -> {after['val/reward']:6.3f}")
        if curves is not None:
            self.say(f"curves:  {curves}")
        if self._keeps_conversations and self._validated:
            self.say(f"sample conversations of each validation: {self.folder / CONVERSATIONS}")
        self.say(f"run:     {self.folder}")

    def close(self) -> None:
        """Close the loggers; safe to call twice."""
        self._loggers.close()

    def _remember(self, rows: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        for step, metrics in rows:
            if any(name.startswith("val/") for name in metrics):
                self._validations.append((step, metrics))

    def _keep_conversations(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write some conversations of a validation into the run's folder, as text; a full disk is only a warning."""
        path = self.folder / CONVERSATIONS / f"{step:06d}.txt"
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                print_conversations(pick(trajectories), Console(file=file, width=100), f"validation, iteration {step},")
        except OSError as error:
            log.warning("the sample conversations of iteration %d are not written to %s: %s", step, path, error)

    def _dump(self, kind: str, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Write episodes for whoever wants to read them; the run can do without, so a full disk is only a warning."""
        if (folder := self._dirs[kind]) is None:
            return
        path = Path(folder).expanduser() / f"{step:06d}.parquet"
        try:
            write_parquet(path, trajectories)
        except OSError as error:
            log.warning("the %s episodes of iteration %d are not written to %s: %s", kind, step, path, error)
