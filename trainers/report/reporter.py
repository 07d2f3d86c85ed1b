"""All that a run shows, behind one object: console, metrics files, dumps, and the closing summary."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..trajectory import Trajectory
from .console import ConsoleLogger, pick, print_conversations
from .episodes import EpisodeFiles, Explained
from .loggers import METRICS_FILE, LoggedRun, open_loggers, read_jsonl
from .metrics import Phases
from .plots import plot

log = logging.getLogger("trainers")

CURVES = "curves.png"
CONVERSATIONS = "conversations"
PROFILE = "profile"
_SUMMARY = (
    ("val/solved", "episodes solved", "6.1%"),
    ("val/first_reply", "first reply right", "6.1%"),
    ("val/reward", "reward", "6.3f"),
)


class Reporter:
    """Reports one run.

    Args:
        run: The run. With a ``first_step`` of ``None`` no sample conversations are written.
        loggers: Which of ``console``, ``jsonl``, ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``.
        total: Iterations of the whole run.
        episodes: Where episodes are written; ``None`` for nowhere.
        on_phase: Called with each phase of an iteration, and the seconds (``time.monotonic``) it began and ended.

    Attributes:
        latest: The last value of each metric that this process reported.
    """

    def __init__(
        self,
        run: LoggedRun,
        loggers: Sequence[str],
        *,
        total: int,
        episodes: EpisodeFiles | None = None,
        on_phase: Callable[[str, float, float], None] | None = None,
    ) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._on_phase = run.folder, on_phase
        self._episodes = episodes
        self._console = ConsoleLogger(total) if "console" in loggers else None
        self._loggers = open_loggers(loggers, run, before=[self._console] if self._console else [])
        self._has_jsonl = "jsonl" in loggers
        self._keeps_conversations = run.first_step is not None
        self.latest: dict[str, float] = {}
        self._validated: Sequence[Trajectory] = ()
        before = read_jsonl(self.folder / METRICS_FILE) if self._has_jsonl else ()  # those before an interruption
        self._validations: list[tuple[int, Mapping[str, float]]] = [
            (step, metrics)
            for step, metrics in before
            if (run.first_step is None or step < run.first_step) and any(name.startswith("val/") for name in metrics)
        ]

    def phases(self) -> Phases:
        """A stopwatch whose phases the progress display shows."""
        shown = self._console.phase if self._console else None
        return Phases(on_enter=shown, clock=time.monotonic, on_exit=self._on_phase)

    def say(self, text: str) -> None:
        """A line on the console, if there is one."""
        if self._console is not None:
            self._console.print(text)

    def explains(self) -> bool:
        """Whether what the learner makes of a batch is written with it."""
        return self._episodes is not None and self._episodes.wanted("train")

    def iteration(
        self,
        step: int,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        explained: Explained | None = None,
        version: int | None = None,
        components: Mapping[str, str] | None = None,
    ) -> None:
        """Report an iteration, trained on weights of this version, with a mixture's component of each group."""
        self._loggers.log(step, metrics)
        self.latest.update(metrics)
        self._write("train", step, trajectories, explained, version=version, components=components)

    def validation(
        self,
        step: int,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        components: Mapping[str, str] | None = None,
    ) -> None:
        """Report a validation, with a mixture's component of each group."""
        self._loggers.log(step, metrics)
        self.latest.update(metrics)
        self._write("validation", step, trajectories, components=components)
        self._validated = trajectories
        self._validations.append((step, metrics))
        if self._keeps_conversations:
            path = self.folder / CONVERSATIONS / f"{step:06d}.txt"
            with _optional(f"sample conversations of iteration {step}", path), path.open("w", encoding="utf-8") as file:
                print_conversations(pick(trajectories), Console(file=file, width=100), f"validation, iteration {step},")

    def _write(self, kind: str, step: int, *rows: Any, **info: Any) -> None:
        if self._episodes is not None and self._episodes.wanted(kind):
            with _optional(f"{kind} episodes of iteration {step}", self._episodes.path(kind, step)):
                self._episodes.write(kind, step, *rows, **info)

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
            for key, label, form in _SUMMARY:
                if key in before and key in after:
                    self.say(f"  {label:18} {before[key]:{form}} -> {after[key]:{form}}")
        if (peak := self.latest.get("actor/peak_gib")) is not None:
            self.say(f"most memory of the process that learns: {peak:.1f} GiB")
        if curves is not None:
            self.say(f"curves:  {curves}")
        if self._keeps_conversations and self._validated:
            self.say(f"sample conversations of each validation: {self.folder / CONVERSATIONS}")
        self.say(f"run:     {self.folder}")

    def close(self) -> None:
        """Close the loggers; safe to call twice."""
        self._loggers.close()


@contextlib.contextmanager
def _optional(what: str, path: Path) -> Iterator[None]:
    """Write something that the run can do without: a full disk is only a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        log.warning("the %s are not written to %s: %s", what, path, error)


@contextlib.contextmanager
def profiled(folder: Path, step: int) -> Iterator[None]:
    """Torch's profiler in all threads of this process, those of the engine and the learner among them.

    Writes a Chrome trace, ``profile/iteration_NNNNNN.json.gz`` in the run's folder, for ui.perfetto.dev.
    """
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    everywhere = _ExperimentalConfig(profile_all_threads=True)  # type: ignore[call-arg]
    with profile(activities=activities, experimental_config=everywhere) as profiler:
        yield
    path = folder / PROFILE / f"iteration_{step:06d}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
