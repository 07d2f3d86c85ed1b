"""Reads what runs write; see the package."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..bounded_files import UnreadableFile, parse_json, read_json_object, read_yaml_mapping
from ..data.parquet_files import checked_parquet, parquet_errors
from ..data.parquet_footer import read_footer
from ..evaluate.records import EPISODES, MANIFEST, SUMMARY, FolderError, Record, read_folder
from ..messages import Messages, check_conversation
from ..turn import SOLVED
from .metrics import read_metrics
from .schema import COLUMNS, EXPLAINED, FORMAT, FORMAT_KEY, ITERATION_KEY, PLAYED, arrow_schema

Kind = Literal["train", "validation", "evaluation"]
Floats = NDArray[np.float64]

ROLLOUTS = "rollouts"  #: the folder of a run's episodes
CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
_DIRS: dict[str, str] = {"train": "rollout_data_dir", "validation": "validation_data_dir"}
_SECTIONS = ("trainer", "env")
_MAY_BE_ABSENT = {"stop", "error", "forked_from", "forked_turn", "terminated", "truncated", "has_success",
                  "task_index", "env_seed", "sampling_seed", "kept_ids", "kept_counts", "observation_mask",
                  "turn_moves", "teacher_shared", "teacher_counts", "teacher_ids", "user_messages"}  # fmt: skip
_REQUIRED = frozenset(PLAYED) - _MAY_BE_ABSENT


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
    teacher_advantage: Floats | None = None
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
    has_success: bool = True
    stop: str | None = None
    error: str | None = None
    forked_from: str = ""
    forked_turn: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    task_index: int | None = None
    env_seed: int | None = None
    sampling_seed: int | None = None
    credit_moved: Floats | None = None
    turn_moves: tuple[str, ...] = ()  #: of the user, by turn; empty where none is named
    reaction_credit: Floats | None = None  #: NaN at turns without a move
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
    def success(self) -> bool | None:
        """Return whether the environment ended it as solved; ``None`` where none can be (``has_success``)."""
        return (self.terminated and self.stop == SOLVED) if self.has_success else None

    @property
    def first_turn(self) -> int:
        """Turns of the whole conversation before its own: of a fork, or of an episode that began in the middle."""
        return self.forked_turn + int(self.metrics.get("start_turn", 0))


@dataclass(frozen=True)
class Summary:
    """An episode's line in a list, without its tokens and messages."""

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
        """Facts of the whole iteration: ``version`` of the weights, ``steps`` of the optimizer, and so on."""
        if self.kind == "evaluation":
            return {}
        try:
            info = parse_json((self._file.schema_arrow.metadata or {}).get(ITERATION_KEY, b"{}"))
        except ValueError as error:
            raise RecordsError(f"{self.path}: the metadata of its iteration is not JSON ({error})") from error
        if not isinstance(info, dict) or not _is_info(info):
            raise RecordsError(f"{self.path}: the metadata of its iteration is not that of one")
        return info

    def __len__(self) -> int:
        """Episodes."""
        return len(self._records) if self.kind == "evaluation" else int(self._file.metadata.num_rows)

    def summaries(self) -> list[Summary]:
        """Return a line for each episode; only the columns of these are read."""
        if self.kind == "evaluation":
            return [_summary(_of_record(n, record)) for n, record in enumerate(self._records)]
        import pyarrow.compute as pc

        names = [name for name in Summary.__dataclass_fields__ if name in self._names]
        with _parquet(self.path):
            table = self._file.read(columns=[*names, "turn_rewards", "token_ids"])
            rows = {name: table.column(name).to_pylist() for name in names}
            rewards = table.column("turn_rewards").to_pylist()
            sizes = pc.list_value_length(table.column("token_ids")).to_pylist()
        for n, earned in enumerate(rewards):
            if earned is None or None in earned or sizes[n] is None:
                raise RecordsError(f"{self.path}: row {n + 1} is damaged: it has no rewards or no tokens")
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
        selected = None if indices is None else set(indices)
        if selected and not (min(selected) >= 0 and max(selected) < len(self)):
            raise IndexError(f"{self.path} has {len(self)} episodes, not one at {max(selected)}")
        if self.kind == "evaluation":
            yield from (_of_record(n, r) for n, r in enumerate(self._records) if selected is None or n in selected)
            return
        begin = 0
        for number, size in enumerate(self._group_sizes):
            some = [n for n in range(size) if selected is None or begin + n in selected]
            if some:
                names = [name for name in self._names if name in COLUMNS and name != "vocabulary"]
                with _parquet(self.path):
                    table = self._file.read_row_group(number, columns=names)
                for n in some:
                    with _parquet(self.path):
                        try:
                            episode = _episode(begin + n, table.slice(n, 1), self._vocabulary)
                        except _Damaged as error:
                            raise RecordsError(f"{self.path}: row {begin + n + 1} is damaged: {error}") from error
                    yield episode
            begin += size

    def episode(self, index: int) -> Episode:
        """Return the whole episode of a row."""
        return next(self.episodes([index]))

    @cached_property
    def _file(self) -> Any:
        with _parquet(self.path):
            file = checked_parquet(self.path)
        version = (file.schema_arrow.metadata or {}).get(FORMAT_KEY)
        if version != FORMAT:
            actual_version = "none" if version is None else version.decode(errors="replace")
            raise RecordsError(
                f"{self.path} is not a file of episodes of this version ({FORMAT.decode()}; it has {actual_version}). "
                "Of `textenvs evaluate`, name the folder"
            )
        for name, kind in _types().items():
            if name not in file.schema_arrow.names:
                if name in _REQUIRED:
                    raise RecordsError(f"{self.path} has no column {name!r}, which every file of episodes has")
            elif (column_type := file.schema_arrow.field(name).type) != kind:
                raise RecordsError(f"{self.path}: column {name!r} is of the type {column_type}, not {kind}")
        return file

    @cached_property
    def _group_sizes(self) -> list[int]:
        """Rows of each of the file's groups of rows."""
        try:
            return [group.rows for group in read_footer(self.path)]
        except ValueError as error:
            raise RecordsError(f"{self.path}: not a readable Parquet file ({error})") from error

    @cached_property
    def _names(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    @cached_property
    def _vocabulary(self) -> Mapping[int, str]:
        """The text of each token id, unless it depends on the tokens beside it."""
        if "vocabulary" not in self._names or not len(self):
            return {}
        with _parquet(self.path):
            return dict(self._file.read_row_group(0, columns=["vocabulary"]).column(0)[0].as_py() or ())

    @cached_property
    def _records(self) -> list[Record]:
        try:
            return read_folder(self.path.parent)[1]
        except FolderError as error:
            raise RecordsError(str(error)) from error


@contextmanager
def _parquet(path: Path) -> Iterator[None]:
    """Raise RecordsError for pyarrow's errors over a damaged file, at its opening or at any page."""
    try:
        with parquet_errors(path):
            yield
    except UnreadableFile as error:
        raise RecordsError(str(error)) from error


@dataclass(frozen=True)
class RecordedRun:
    """A run or an evaluation, as :func:`open_run` found it.

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
        """Return the logged metrics: ``(iteration, metrics)``, in order; a torn last line is left out.

        Raises:
            RecordsError: A line is no row of metrics.
        """
        path = self.path / METRICS
        if self.kind != "run" or not path.exists():
            return
        try:
            yield from read_metrics(path)
        except ValueError as error:
            raise RecordsError(str(error)) from error

    def iteration(self, number: int, kind: Kind = "train") -> Iteration:
        """One of them.

        Raises:
            RecordsError: Its episodes are not there.
        """
        candidates = [iteration for iteration in self.iterations if iteration.kind == kind]
        for iteration in candidates:
            if iteration.number == number:
                return iteration
        numbers = ", ".join(str(iteration.number) for iteration in candidates) or "none"
        raise RecordsError(f"{self.path} has no episodes of {kind} {number}; those that are there: {numbers}")


def open_run(path: str | Path) -> RecordedRun:
    """Open the folder of a run, one ``.parquet`` file of episodes, or the folder of ``textenvs evaluate``.

    Lists files; episodes are read where they are asked for. Needs pyarrow, except for an evaluation.

    Raises:
        RecordsError: It is none of these, or a file of it cannot be read.
    """
    path = Path(path).expanduser()
    if path.exists() and not path.is_dir():
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
    ordered = sorted(iterations, key=lambda iteration: (iteration.number, iteration.kind))
    return RecordedRun(path, "run", tuple(ordered), config)


def folder_of(run: Path, kind: str, config: Mapping[str, Any]) -> Path:
    """Return the folder of the episodes of this kind in a run with this configuration."""
    elsewhere = (config.get("trainer") or {}).get(_DIRS[kind])
    return run / ROLLOUTS / kind if elsewhere is None else Path(elsewhere).expanduser()


def _config(path: Path) -> Mapping[str, Any]:
    """Return the configuration of a run's folder, with mappings as sections and texts as folders; may be empty."""
    if not path.exists():
        return {}
    try:
        config = read_yaml_mapping(path)
    except UnreadableFile as error:
        raise RecordsError(str(error)) from error
    for section in _SECTIONS:
        if not isinstance(config.get(section), Mapping | None):
            kind = type(config[section]).__name__
            raise RecordsError(f"{path}: {section!r} is a {kind}, not a mapping of keys to values")
    for name in (*_DIRS.values(), "default_local_dir"):
        if not isinstance((config.get("trainer") or {}).get(name), str | None):
            raise RecordsError(f"{path}: trainer.{name} is not the name of a folder")
    return config


def _json(path: Path) -> Mapping[str, Any]:
    try:
        return read_json_object(path)
    except UnreadableFile as error:
        raise RecordsError(str(error)) from error


def _is_info(info: Mapping[str, Any]) -> bool:
    kinds, number = ("train", "validation", "evaluation"), info.get("iteration", 0)
    return type(number) is int and number >= 0 and info.get("kind", "train") in kinds


# ------------------------------------------------------------------------------------------------ rows to episodes

_LEARNED = [name for name, column in EXPLAINED.items() if column.per == "token" and column.type != "string"]
_PLAIN = ("episode_id", "group_id", "task_key", "data_source", "status", "stop", "error", "terminated", "truncated",
          "has_success", "forked_from", "forked_turn", "task_index", "env_seed", "sampling_seed", "group_mean",
          "group_std", "greedy_reward", "signal")  # fmt: skip


_PLAYED = ("token_ids", "action_mask", "logprobs", "weight_version", "turn_id", "segment_starts")


class _Damaged(ValueError):
    """A row that is no episode; the message says why."""


@functools.cache
def _types() -> dict[str, Any]:
    """Arrow's type of each column."""
    schema = arrow_schema(COLUMNS)
    return {name: schema.field(name).type for name in schema.names}


def _episode(index: int, row: Any, vocabulary: Mapping[int, str]) -> Episode:
    """From a table of one row, and the texts of token ids; ``_Damaged`` where its columns do not belong together."""
    names = set(row.column_names)
    for name in names & _REQUIRED:
        if not row.column(name)[0].is_valid:
            raise _Damaged(f"{name!r} is null")

    def value(name: str) -> Any:
        return row.column(name)[0].as_py() if name in names else None

    def array(name: str) -> Any:
        """NaN for what is null; ``None`` where the whole is null or the file has no such column."""
        if name not in names or not (cell := row.column(name)[0]).is_valid:
            return None
        values = cell.values
        if values.null_count or COLUMNS[name].bits or name in ("clipped", "fork_value", "reaction_credit"):
            return values.cast("float64").to_numpy(zero_copy_only=False)
        return values.to_numpy(zero_copy_only=False)

    text = value("token_text")
    if text is None and vocabulary:
        text = [vocabulary.get(token_id) for token_id in array("token_ids").tolist()]
    learned = {("returns" if name == "return" else name): array(name) for name in _LEARNED}
    played = {name: array(name) for name in _PLAYED}
    turn_rewards = array("turn_rewards")
    per_turn = {name: array(name) for name in ("credit_moved", "reaction_credit", "fork_value")}
    _check_tokens(played, learned, text, len(turn_rewards))
    if any(column is not None and len(column) != len(turn_rewards) for column in per_turn.values()):
        raise _Damaged("its columns of turns have different lengths")
    tokens = Tokens(**played, text=None if text is None else tuple(text), **learned)
    plain = {name: item for name in _PLAIN if (item := value(name)) is not None}
    turn_terms, metrics = tuple(map(_numbers, value("turn_terms"))), _numbers(value("metrics"))
    if len(turn_terms) != len(turn_rewards):
        raise _Damaged(f"it has {len(turn_rewards)} turns' rewards and {len(turn_terms)} turns' terms")
    if not np.isfinite(metrics.get("start_turn", 0.0)):
        raise _Damaged("'start_turn' among its metrics is not finite")
    try:
        messages = check_conversation([_message(entry) for entry in value("messages")], "messages")
    except (ValueError, AttributeError) as error:  # a message that is null has no items
        raise _Damaged(str(error)) from error
    return Episode(
        index=index,
        messages=messages,
        turn_rewards=turn_rewards,
        turn_terms=turn_terms,
        turn_moves=tuple(value("turn_moves") or ()),
        metrics=metrics,
        **per_turn,
        checksums=dict(value("checksums") or ()),
        tokens=tokens,
        **plain,
    )


def _check_tokens(played: Mapping[str, Any], learned: Mapping[str, Any], text: Any, turns: int) -> None:
    """Raise ``_Damaged`` unless all columns are of the same tokens, and these of the episode's turns."""
    size = len(played["token_ids"])
    columns = {name: column for name, column in {**played, **learned}.items() if name != "segment_starts"}
    if text is not None:
        columns["token_text"] = text
        if None in text:
            raise _Damaged("a token has no text")
    for name, column in columns.items():
        if column is not None and len(column) != size:
            raise _Damaged(f"it has {size} tokens, and {len(column)} entries of {name!r}")
    if any(column.dtype == np.float64 for column in played.values()):
        raise _Damaged("a column of its tokens has a null")
    starts, turn_ids = played["segment_starts"], played["turn_id"][played["action_mask"]]
    if len(starts) and (starts.min() < 0 or starts.max() > size or (np.diff(starts) < 0).any()):
        raise _Damaged("'segment_starts' are not the beginnings of segments of its tokens")
    if len(turn_ids) and (turn_ids.min() < 0 or turn_ids.max() >= turns):
        raise _Damaged(f"'turn_id' names another turn than its {turns}")


def _numbers(pairs: Any) -> dict[str, float]:
    if pairs is None or any(value is None for _, value in pairs):
        raise _Damaged("a metric or a term is null")
    return dict(pairs)


def _message(row: Mapping[str, Any]) -> Any:
    return {key: value for key, value in row.items() if value is not None}


def _of_record(index: int, record: Record) -> Episode:
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
        has_success=record.success is not None,
        stop=record.stop,
        error=record.failure,
        metrics=record.metrics,
        task_index=record.task_index,
        env_seed=record.seed,
        record=record,
    )


def _summary(episode: Episode) -> Summary:
    own: dict[str, Any] = {"turns": len(episode.turn_rewards), "tokens": None}
    names = Summary.__dataclass_fields__
    return Summary(**{name: own[name] if name in own else getattr(episode, name) for name in names})
