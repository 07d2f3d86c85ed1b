"""Reads what runs write; see the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from ..evaluate.records import EPISODES, MANIFEST, SUMMARY, FolderError, Record, read_folder
from ..messages import Messages
from .schema import COLUMNS, EXPLAINED, FORMAT, FORMAT_KEY, ITERATION_KEY

Kind = Literal["train", "validation", "evaluation"]
Floats = NDArray[np.float64]

ROLLOUTS = "rollouts"  #: the folder of a run's episodes
CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
_DIRS: dict[str, str] = {"train": "rollout_data_dir", "validation": "validation_data_dir"}


class RecordsError(ValueError):
    """A path that cannot be read; the message says which, why, and what to do."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """An episode's tokens: arrays ``[T]``. The learner's are ``None`` where nothing was computed, NaN at other tokens.

    What each says is in :data:`~textenvs.records.schema.COLUMNS`. ``clipped`` is 1, 0 or NaN.
    """

    token_ids: NDArray[np.int32]
    action_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    weight_version: NDArray[np.int32]
    turn_id: NDArray[np.int32]
    segment_starts: NDArray[np.int32]
    text: tuple[str, ...] | None = None
    advantage: Floats | None = None
    returns: Floats | None = None
    baseline: Floats | None = None
    importance_weight: Floats | None = None
    loss_weight: Floats | None = None
    mismatch: Floats | None = None
    ratio: Floats | None = None
    clipped: Floats | None = None
    entropy: Floats | None = None
    loss: Floats | None = None

    @property
    def learner_logprobs(self) -> Floats | None:
        """The learner's log-probabilities when it first computed each token."""
        return None if self.mismatch is None else self.logprobs + self.mismatch


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode, with ``K`` turns; what each field says is in :data:`~textenvs.records.schema.COLUMNS`."""

    index: int  #: its row
    episode_id: str
    group_id: str
    task_key: str
    data_source: str
    status: str
    messages: Messages
    turn_rewards: Floats
    turn_terms: tuple[Mapping[str, float], ...]  #: of an evaluation: one mapping, the sums of the episode
    terminated: bool = False
    truncated: bool = False
    stop: str | None = None
    error: str | None = None
    forked_from: str = ""
    forked_turn: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    task_index: int | None = None
    env_seed: int | None = None
    sampling_seed: int | None = None
    credit_moved: Floats | None = None
    fork_value: Floats | None = None  #: NaN at turns that were not forked
    group_mean: float | None = None
    group_std: float | None = None
    greedy_reward: float | None = None
    signal: str | None = None
    checksums: Mapping[str, int] = field(default_factory=dict)
    tokens: Tokens | None = None  #: ``None`` in an evaluation
    record: Record | None = None  #: all that ``textenvs evaluate`` keeps, in an evaluation

    @property
    def total_reward(self) -> float:
        """The sum of its turns' rewards, as earned."""
        return float(np.sum(self.turn_rewards))

    @property
    def first_turn(self) -> int:
        """Turns of the whole conversation before its own: of a fork, or of an episode that began in the middle."""
        return self.forked_turn + int(self.metrics.get("start_turn", 0))


@dataclass(frozen=True)
class Summary:
    """What a list of episodes shows of one, without its tokens and messages."""

    index: int
    episode_id: str
    group_id: str
    task_key: str
    data_source: str
    status: str
    stop: str | None
    forked_from: str
    forked_turn: int
    total_reward: float
    turns: int
    tokens: int | None
    signal: str | None
    group_mean: float | None
    group_std: float | None


class Iteration:
    """The episodes of one iteration, of one validation, or of an evaluation. Nothing is read before it is asked for.

    Attributes:
        kind: ``train``, ``validation`` or ``evaluation``.
        number: The iteration; 0 for an evaluation.
        path: The file.
    """

    def __init__(self, kind: Kind, number: int, path: Path) -> None:
        self.kind, self.number, self.path = kind, number, path

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What holds for the whole iteration: ``version`` of the weights, ``steps`` of the optimizer, and so on."""
        if self.kind == "evaluation":
            return {}
        return dict(json.loads((self._file.schema_arrow.metadata or {}).get(ITERATION_KEY, b"{}")))

    def __len__(self) -> int:
        """Episodes."""
        return len(self._records) if self.kind == "evaluation" else int(self._file.metadata.num_rows)

    def summaries(self) -> list[Summary]:
        """A line for each episode; reads the columns that it takes alone."""
        if self.kind == "evaluation":
            return [_summary(_of_record(n, record)) for n, record in enumerate(self._records)]
        import pyarrow.compute as pc

        names = [name for name in Summary.__dataclass_fields__ if name in self._names]
        with _parquet(self.path):
            table = self._file.read(columns=[*names, "turn_rewards", "token_ids"])
            rows = {name: table.column(name).to_pylist() for name in names}
            rewards = table.column("turn_rewards").to_pylist()
        sizes = pc.list_value_length(table.column("token_ids")).to_pylist()
        absent = {"signal": None, "group_mean": None, "group_std": None, "forked_from": "", "forked_turn": 0}
        return [
            Summary(
                index=n,
                total_reward=float(np.sum(rewards[n])),
                turns=len(rewards[n]),
                tokens=sizes[n],
                **{**absent, **{name: rows[name][n] for name in names}},
            )
            for n in range(len(rewards))
        ]

    def episodes(self, indices: Sequence[int] | None = None) -> Iterator[Episode]:
        """Whole episodes, in order; of these rows, or all. A group of rows is in memory at a time.

        Raises:
            IndexError: There is no such row.
            RecordsError: The file is damaged.
        """
        wanted = None if indices is None else set(indices)
        if wanted and not (min(wanted) >= 0 and max(wanted) < len(self)):
            raise IndexError(f"{self.path} has {len(self)} episodes, not one at {max(wanted)}")
        if self.kind == "evaluation":
            yield from (_of_record(n, r) for n, r in enumerate(self._records) if wanted is None or n in wanted)
            return
        begin = 0
        for number in range(self._file.num_row_groups):
            size = self._file.metadata.row_group(number).num_rows
            some = [n for n in range(size) if wanted is None or begin + n in wanted]
            if some:
                names = [name for name in self._names if name in COLUMNS and name != "vocabulary"]
                with _parquet(self.path):
                    table = self._file.read_row_group(number, columns=names)
                for n in some:
                    with _parquet(self.path):
                        episode = _episode(begin + n, table.slice(n, 1), self._vocabulary)
                    yield episode
            begin += size

    def episode(self, index: int) -> Episode:
        """The whole episode of a row."""
        return next(self.episodes([index]))

    @cached_property
    def _file(self) -> Any:
        from pyarrow import parquet

        with _parquet(self.path):
            file = parquet.ParquetFile(self.path)
        version = (file.schema_arrow.metadata or {}).get(FORMAT_KEY)
        if version != FORMAT:
            raise RecordsError(
                f"{self.path} is not a file of episodes of this version ({FORMAT.decode()}; it has "
                f"{'none' if version is None else version.decode()}). Of `textenvs evaluate`, name the folder"
            )
        return file

    @cached_property
    def _names(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    @cached_property
    def _vocabulary(self) -> Mapping[int, str]:
        """The text of each token id, unless it depends on the tokens beside it."""
        if "vocabulary" not in self._names or not len(self):
            return {}
        return dict(self._file.read_row_group(0, columns=["vocabulary"]).column(0)[0].as_py() or ())

    @cached_property
    def _records(self) -> list[Record]:
        try:
            return read_folder(self.path.parent)[1]
        except FolderError as error:
            raise RecordsError(str(error)) from error


@contextmanager
def _parquet(path: Path) -> Iterator[None]:
    """What pyarrow raises over a damaged file, at its opening or at any page, is a RecordsError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"{path} is not a readable Parquet file ({str(error).strip()})") from error


@dataclass(frozen=True)
class RecordedRun:
    """What :func:`open_run` found.

    Args:
        path: As it was given.
        kind: ``run``, ``file`` or ``evaluation``.
        iterations: By number; a validation comes after the iteration that it follows.
        config: The run's resolved configuration, or the evaluation's manifest; empty for a file.
        results: The summary of an evaluation that is finished.
    """

    path: Path
    kind: Literal["run", "file", "evaluation"]
    iterations: tuple[Iteration, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] | None = None

    def metrics(self) -> Iterator[tuple[int, Mapping[str, float]]]:
        """What the run logged: ``(iteration, metrics)``, in order; a torn last line is left out."""
        path = self.path / METRICS
        if self.kind != "run" or not path.is_file():
            return
        with path.open(encoding="utf-8") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                yield int(row.pop("step")), {name: float(value) for name, value in row.items()}  # "NaN" is a text

    def iteration(self, number: int, kind: Kind = "train") -> Iteration:
        """One of them.

        Raises:
            RecordsError: Its episodes are not there.
        """
        found = [each for each in self.iterations if each.kind == kind]
        for each in found:
            if each.number == number:
                return each
        there = ", ".join(str(each.number) for each in found) or "none"
        raise RecordsError(f"{self.path} has no episodes of {kind} {number}; those that are there: {there}")


def open_run(path: str | Path) -> RecordedRun:
    """Open the folder of a run, one ``.parquet`` file of episodes, or the folder of ``textenvs evaluate``.

    Lists files; episodes are read where they are asked for. Needs pyarrow, except for an evaluation.

    Raises:
        RecordsError: It is none of these, or a file of it cannot be read.
    """
    path = Path(path).expanduser()
    if path.is_file():
        number = int(path.stem) if path.stem.isdigit() else 0
        kind: Kind = "validation" if path.parent.name == "validation" else "train"
        single = Iteration(kind, number, path)
        info = single.info
        single = Iteration(info.get("kind", kind), int(info.get("iteration", number)), path)
        return RecordedRun(path, "file", (single,))
    if (path / MANIFEST).is_file() and (path / EPISODES).is_file():
        results = _json(path / SUMMARY) if (path / SUMMARY).is_file() else None
        return RecordedRun(
            path, "evaluation", (Iteration("evaluation", 0, path / EPISODES),), _json(path / MANIFEST), results
        )
    if not path.is_dir():
        raise RecordsError(f"there is no file or folder {path}")
    config = _config(path / CONFIG)
    iterations = [
        Iteration(kind, int(file.stem), file)
        for kind in ("train", "validation")
        for file in folder_of(path, kind, config).glob("*.parquet")
        if file.stem.isdigit()
    ]
    if not iterations and not config:
        raise RecordsError(
            f"{path} is no folder of a run (no {CONFIG}, no {ROLLOUTS}/) nor of `textenvs evaluate` (no {MANIFEST})"
        )
    ordered = sorted(iterations, key=lambda each: (each.number, each.kind))
    return RecordedRun(path, "run", tuple(ordered), config)


def folder_of(run: Path, kind: str, config: Mapping[str, Any]) -> Path:
    """Where a run with this configuration has its episodes of this kind."""
    elsewhere = (config.get("trainer") or {}).get(_DIRS[kind])
    return run / ROLLOUTS / kind if elsewhere is None else Path(elsewhere).expanduser()


def _config(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise RecordsError(f"{path} is no configuration ({error})") from error


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RecordsError(f"{path} is not readable ({error})") from error


# ------------------------------------------------------------------------------------------------ rows to episodes

_LEARNED = [name for name, column in EXPLAINED.items() if column.per == "token" and column.type != "string"]
_PLAIN = ("episode_id", "group_id", "task_key", "data_source", "status", "stop", "error", "terminated", "truncated",
          "forked_from", "forked_turn", "task_index", "env_seed", "sampling_seed", "group_mean", "group_std",
          "greedy_reward", "signal")  # fmt: skip


def _episode(index: int, row: Any, vocabulary: Mapping[int, str]) -> Episode:
    """From a table of one row, and the texts of token ids."""
    names = set(row.column_names)

    def value(name: str) -> Any:
        return row.column(name)[0].as_py() if name in names else None

    def array(name: str) -> Any:
        """NaN for what is null; ``None`` where the whole is null or the file has no such column."""
        if name not in names or not (cell := row.column(name)[0]).is_valid:
            return None
        values = cell.values
        if values.null_count or COLUMNS[name].bits or name in ("clipped", "fork_value"):
            return values.cast("float64").to_numpy(zero_copy_only=False)
        return values.to_numpy(zero_copy_only=False)

    text = value("token_text")
    if text is None and vocabulary:
        text = [vocabulary[each] for each in array("token_ids").tolist()]
    learned = {("returns" if name == "return" else name): array(name) for name in _LEARNED}
    played = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id", "segment_starts")
    tokens = Tokens(**{name: array(name) for name in played}, text=None if text is None else tuple(text), **learned)
    plain = {name: found for name in _PLAIN if (found := value(name)) is not None}
    return Episode(
        index=index,
        messages=tuple(_message(each) for each in value("messages")),
        turn_rewards=array("turn_rewards"),
        turn_terms=tuple(dict(terms) for terms in value("turn_terms")),
        metrics=dict(value("metrics")),
        credit_moved=array("credit_moved"),
        fork_value=array("fork_value"),
        checksums=dict(value("checksums") or ()),
        tokens=tokens,
        **plain,
    )


def _message(row: Mapping[str, Any]) -> Any:
    return {key: value for key, value in row.items() if value is not None}


def _of_record(index: int, record: Record) -> Episode:
    error = record.failure if record.failed else None
    return Episode(
        index=index,
        episode_id=f"t{record.task}-s{record.sample}",
        group_id=f"t{record.task}",
        task_key=record.task_key,
        data_source=record.data_source,
        status="error_env" if record.failed else "completed" if record.terminated else "truncated_turns",
        messages=record.messages,
        turn_rewards=np.array(record.turn_rewards, np.float64),
        turn_terms=(dict(record.terms),),
        terminated=record.terminated,
        truncated=record.truncated,
        stop=record.stop,
        error=error,
        metrics=record.metrics,
        task_index=record.task_index,
        env_seed=record.seed,
        record=record,
    )


def _summary(episode: Episode) -> Summary:
    own: dict[str, Any] = {"turns": len(episode.turn_rewards), "tokens": None}
    names = Summary.__dataclass_fields__
    return Summary(**{name: own[name] if name in own else getattr(episode, name) for name in names})
