"""Loggers of metrics: console, JSONL, TensorBoard, wandb, MLflow, trackio. One protocol, and a bundle of several.

Rows that earlier runs in the folder logged from a logger's first step on are dropped when the first row comes, and not
before.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console

from textenvs.records.metrics import read_metrics

from ..registry import flattened
from ..trajectory import Trajectory
from .console import ConsoleLogger, pick, print_conversations
from .episodes import EpisodeFiles, Explained
from .metrics import Phases
from .progress import Phase, Progress

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


class MetricsError(ValueError):
    """Metrics cannot be logged, or logged ones cannot be read; the message says where and what to do."""


@dataclass(frozen=True)
class LoggedRun:
    """A run, as loggers need it.

    ``first_step`` is the first that will be logged: 0 starts a new run, any other resumes the one of this folder; rows
    logged from it on are dropped when the first row comes. ``None`` drops nothing.
    """

    folder: Path
    project: str = "textenvs"
    name: str = "run"
    config: Mapping[str, Any] = field(default_factory=dict)
    first_step: int | None = 0

    def resumed_id(self, note: Path) -> str | None:
        """Return the service's id of the run that this one resumes, from a file in the run's folder."""
        return note.read_text(encoding="utf-8").strip() if self.first_step != 0 and note.is_file() else None


class Logger(Protocol):
    """Takes metrics. Steps (iterations; 0 is before the first) never go back; one may come in several parts."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None:
        """Write out buffered metrics."""


def _missing(logger: str, extra: str) -> ImportError:
    return ImportError(f"trainer.logger has {logger}, which is not installed: pip install 'textenvs[{extra}]'")


class JsonlLogger:
    """One JSON object a line: ``{"step": 3, "train/reward": 0.5, ...}``, written at once.

    Numbers that are not finite are the strings ``NaN``, ``Infinity`` and ``-Infinity``. A last line that a crash cut
    short is dropped; any other line that is no metrics is a ``MetricsError``.
    """

    def __init__(self, path: str | Path, first_step: int | None = 0) -> None:
        self.path, self._first_step = Path(path), first_step
        self._file: TextIO | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        list(read_jsonl(self.path))  # a damaged file is reported now

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._file is None:
            first = math.inf if self._first_step is None else self._first_step
            fresh = self.path.with_name(self.path.name + ".new")
            earlier = "".join(_line(step, metrics) for step, metrics in read_jsonl(self.path) if step < first)
            fresh.write_text(earlier, encoding="utf-8")
            os.replace(fresh, self.path)  # a crash in between leaves the old file
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(_line(step, metrics))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the steps and metrics of a file that :class:`JsonlLogger` wrote; ``MetricsError`` names a damaged line."""
    try:
        yield from read_metrics(path)
    except ValueError as error:
        raise MetricsError(str(error)) from error


def _line(step: int, metrics: Mapping[str, float]) -> str:
    numbers = ((name, float(value)) for name, value in metrics.items())
    row = {name: number if math.isfinite(number) else json.dumps(number) for name, number in numbers}
    return json.dumps({"step": step} | row) + "\n"


class TensorBoardLogger:
    """Event files in ``folder``; TensorBoard hides what earlier runs logged from ``first_step`` on."""

    def __init__(self, folder: str | Path, first_step: int | None = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard", "train") from error
        self._open = partial(SummaryWriter, str(folder), purge_step=first_step)
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open()
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbLogger:
    """Weights & Biases, as ``WANDB_MODE``, ``WANDB_API_KEY``, ... say; a run that resumes is the same run there.

    wandb takes no step twice: what was logged before an interruption stays, and a step that is played again is left
    out.
    """

    def __init__(self, run: LoggedRun) -> None:
        try:
            import wandb
        except ImportError as error:
            raise _missing("wandb", "wandb") from error
        run.folder.mkdir(parents=True, exist_ok=True)
        note = run.folder / "wandb_run.txt"
        old = run.resumed_id(note)
        options: dict[str, Any] = {"project": run.project, "name": run.name, "config": dict(run.config)}
        try:
            self._run = wandb.init(**options, dir=str(run.folder), id=old, resume="allow" if old else None)
        except wandb.Error as error:
            raise MetricsError(
                f"trainer.logger has wandb, which says: {error} (WANDB_API_KEY gives it a key; WANDB_MODE=offline does "
                "without)"
            ) from error
        note.write_text(self._run.id + "\n", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflowLogger:
    """MLflow: the server that ``MLFLOW_TRACKING_URI`` names, else a folder ``mlruns`` in the run's own.

    The project is MLflow's experiment, the flattened configuration its parameters; the run's folder keeps the id there.
    """

    def __init__(self, run: LoggedRun) -> None:
        folder = run.folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # newer versions open a store of files only on request
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (folder / "mlruns").as_uri()
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as error:
            raise _missing("mlflow", "mlflow") from error
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        note = folder / "mlflow_run.txt"
        if (old := run.resumed_id(note)) is not None:
            self._id = old
            self._client.update_run(old, status="RUNNING")
            return
        existing = self._client.get_experiment_by_name(run.project)
        experiment = existing.experiment_id if existing is not None else self._client.create_experiment(run.project)
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        note.write_text(self._id + "\n", encoding="utf-8")
        parameters = [Param(key, str(value)[:6000]) for key, value in flattened(run.config)]  # it takes no longer ones
        self._client.log_batch(self._id, params=parameters)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        points = [self._metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, metrics=points)

    def close(self) -> None:
        self._client.set_terminated(self._id)


class TrackioLogger:
    """trackio, as ``TRACKIO_DIR``, ``TRACKIO_SPACE_ID``, ... say; a resumed run is the same run there.

    trackio deletes no points, so steps that are trained again have two.
    """

    def __init__(self, run: LoggedRun) -> None:
        try:
            import trackio
        except ImportError as error:
            raise _missing("trackio", "trackio") from error
        run.folder.mkdir(parents=True, exist_ok=True)
        note = run.folder / "trackio_run.txt"
        old = run.resumed_id(note)
        # trackio would name a second run after the first, and resume the latest one of a name: a new run's is unique.
        name = old or f"{run.name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
        config = dict(flattened(run.config))  # it refuses keys that begin with an underscore, at the top alone
        try:
            self._run = trackio.init(
                run.project, name, config=config, resume="allow", embed=False, auto_log_cpu=False, auto_log_gpu=False
            )
        except Exception as error:  # it has no error class of its own
            raise MetricsError(f"trainer.logger has trackio, which says: {error}") from error
        note.write_text(name + "\n", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Loggers(contextlib.AbstractContextManager["Loggers"]):
    """Several loggers as one, fed in their order; a context manager that closes each once, the last opened first."""

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._loggers: list[Logger] = []
        with ExitStack() as stack:  # where one cannot be opened, those before it are closed
            for logger in loggers:
                self._loggers.append(logger)
                stack.callback(logger.close)
            self._open = stack.pop_all()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for logger in self._loggers:
            logger.log(step, metrics)

    def close(self) -> None:
        self._open.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_loggers(names: Sequence[str], run: LoggedRun, before: Sequence[Logger] = ()) -> Loggers:
    """Open the loggers that ``trainer.logger`` names but for ``console``, as one, after ``before``; or ImportError."""
    makers: dict[str, Callable[[], Logger]] = {
        "jsonl": lambda: JsonlLogger(run.folder / METRICS_FILE, run.first_step),
        "tensorboard": lambda: TensorBoardLogger(run.folder / TENSORBOARD_FOLDER, run.first_step),
        "wandb": lambda: WandbLogger(run),
        "mlflow": lambda: MLflowLogger(run),
        "trackio": lambda: TrackioLogger(run),
    }
    return Loggers(chain(before, (makers[name]() for name in names if name in makers)))


log = logging.getLogger("trainers")

CURVES = "curves.png"
CONVERSATIONS = "conversations"
PROFILE = "profile"
_SUMMARY = (
    ("val/solved", "episodes solved", "6.1%"),
    ("val/first_reply", "first reply right", "6.1%"),
    ("val/reward", "reward", "6.3f"),
)


#: Phases of an iteration, as people read them.
_PHASES = {"rollout": "collecting", "learn": "learning", "publish": "new weights to the engine"}


class Reporter:
    """Reports one run; ``latest`` is the last value of each metric.

    Without a ``first_step`` of the ``run`` no sample conversations are written. ``on_phase`` is called with each phase
    of an iteration, and the seconds (``time.monotonic``) it began and ended.
    """

    def __init__(
        self,
        run: LoggedRun,
        loggers: Sequence[str],
        *,
        episodes: EpisodeFiles | None = None,
        on_phase: Callable[[str, float, float], None] | None = None,
        console: ConsoleLogger | None = None,
    ) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._on_phase = run.folder, on_phase
        self._episodes = episodes
        self._console = console
        self.progress = console.progress if console else Progress.silent()
        self._loggers = open_loggers(loggers, run, before=[console] if console else [])
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
        under_way: dict[str, Phase] = {}

        def enter(name: str) -> None:
            under_way[name] = self.progress.enter(_PHASES.get(name, name))

        def leave(name: str, began: float, ended: float) -> None:
            self.progress.leave(under_way.pop(name))
            if self._on_phase is not None:
                self._on_phase(name, began, ended)

        return Phases(on_enter=enter, clock=time.monotonic, on_exit=leave)

    def say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text)

    def explains(self) -> bool:
        """Return whether the learner's numbers for a batch are written with it."""
        return self._episodes is not None and self._episodes.writes("train")

    def iteration(
        self,
        step: int,
        metrics: Mapping[str, float],
        trajectories: Sequence[Trajectory],
        explained: Explained | None = None,
        version: int | None = None,
        components: Mapping[str, str] | None = None,
    ) -> None:
        """Report an iteration, trained on weights of this version; of a mixture, each group's component."""
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
        if self._episodes is not None and self._episodes.writes(kind):
            with _optional(f"{kind} episodes of iteration {step}", self._episodes.path(kind, step)):
                self._episodes.write(kind, step, *rows, **info)

    def conclude(self, trained_s: float, *, conversations: bool = True) -> None:
        """Draw the curves; print sample conversations if requested, scores before and after, and all places."""
        curves = None
        if self._has_jsonl and (rows := list(read_jsonl(self.folder / METRICS_FILE))):
            from .plots import plot  # here, for it imports matplotlib, which most processes do not need

            curves = plot(rows, self.folder / CURVES, title=self.folder.name)
        if self._console is None:
            return
        self._console.close()
        console: Console = self._console.console
        if conversations:
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
        self._loggers.close()


@contextlib.contextmanager
def _optional(what: str, path: Path) -> Iterator[None]:
    """Write an optional file: a full disk is only a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        log.warning("the %s are not written to %s: %s", what, path, error)


@contextlib.contextmanager
def profiled(folder: Path, step: int) -> Iterator[None]:
    """Run torch's profiler in all threads; write the Chrome trace ``folder/profile/iteration_NNNNNN.json.gz``."""
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
