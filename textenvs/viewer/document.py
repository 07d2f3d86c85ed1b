"""JSON data of the viewer's page: an index, which is read at once, and chunks of episodes, each read on demand."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluate.records import SUMMARY
from ..evaluate.summary import summarize
from ..messages import text_of
from ..records import Episode, Iteration, RecordedRun, RecordsError, open_run
from ..records.reader import METRICS, Tokens
from .compare import Pair, Ref, Side, paired

CHUNK = 32  # episodes in a chunk
CONTINUED = "continued"  # the folder of saved branches, in the run's, or beside the file
_EXCERPT = 160  # characters of an opening in a list
_LEARNED = ("advantage", "returns", "baseline", "teacher_advantage", "importance_weight", "loss_weight", "mismatch",
            "ratio", "clipped", "entropy", "loss")  # fmt: skip
#: Columns of a list that an episode has under the same name.
_COLUMNS = ("episode_id", "group_id", "task_key", "data_source", "status", "stop", "forked_from", "forked_turn",
            "total_reward", "signal", "group_mean", "group_std")  # fmt: skip
Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Part:
    """The episodes of one file: a list's columns, an excerpt of each group's opening, and compressed chunks."""

    rows: Rows = field(default_factory=dict)
    openings: Mapping[str, str] = field(default_factory=dict)
    chunks: Sequence[bytes] = ()
    problem: str = ""  # why the file cannot be read


class Document:
    """One run, or two that are compared; a file that has changed is read again.

    Args:
        paths: What :func:`~textenvs.records.open_run` opens; one or two.
        last: Iterations of each kind that are shown, the last ones; ``None`` shows all.
    """

    def __init__(self, paths: Sequence[str | Path], last: int | None = None) -> None:
        self.paths = [Path(path).expanduser() for path in paths]
        self.last = last
        self._parts: dict[Path, tuple[Any, Part]] = {}

    def runs(self) -> list[RecordedRun]:
        return [open_run(path) for path in self.paths]

    def stamp(self) -> str:
        """Return a hash that changes with any of the files that are shown."""
        names: list[Path] = []
        for run in self.runs():
            names += [run.path / name for name in (METRICS, SUMMARY)]
            names += [iteration.path for iteration in run.iterations]
            names += sorted(branch_folder(run).glob("*.parquet"))
        return hashlib.sha256(repr([(str(name), _stamp(name)) for name in names]).encode()).hexdigest()[:16]

    def index(self) -> dict[str, Any]:
        """All but the episodes themselves, as JSON values.

        Raises:
            RecordsError: A file cannot be read.
        """
        runs = self.runs()
        selections = [self.visible(run) for run in runs]
        if not any(selections) and not any(run.kind == "run" for run in runs):
            raise RecordsError(f"{self.paths[0]} has no episodes")
        for selection in selections:
            if (problems := [self._part(iteration).problem for iteration in selection]) and all(problems):
                raise RecordsError(problems[0])
        entries = [
            self._run(n, run, selection) for n, (run, selection) in enumerate(zip(runs, selections, strict=True))
        ]
        # Files that are no longer shown leave the cache: a run that continues removes old ones.
        files = {file for run, selection in zip(runs, selections, strict=True) for file in _files(run, selection)}
        self._parts = {file: part for file, part in self._parts.items() if file in files}
        if len({entry["name"] for entry in entries}) < len(entries):
            paths = [run.path.resolve() for run in runs]
            common = os.path.commonpath(paths)
            for path, entry in zip(paths, entries, strict=True):
                entry["name"] = os.path.relpath(path, common) if path != Path(common) else path.name
        return {
            "runs": entries,
            "pairs": self._pairs(selections) if len(runs) == 2 else [],
        }

    def visible(self, run: RecordedRun) -> list[Iteration]:
        """Return the iterations that are shown: all, or the last ones of each kind."""
        if self.last is None:
            return list(run.iterations)
        kinds = {iteration.kind for iteration in run.iterations}
        last = {
            id(iteration) for kind in kinds for iteration in [i for i in run.iterations if i.kind == kind][-self.last :]
        }
        return [iteration for iteration in run.iterations if id(iteration) in last]

    def chunks(self) -> Iterator[tuple[str, bytes]]:
        """Yield every chunk with its name: ``RUN/KIND/NUMBER/CHUNK``."""
        for n, run in enumerate(self.runs()):
            for iteration in self.visible(run):
                for name, part in self._named_parts(n, run, iteration):
                    yield from ((f"{name}/{m}", chunk) for m, chunk in enumerate(part.chunks))

    def chunk(self, name: str) -> bytes:
        """Return a chunk by its name; raise ``KeyError`` for an unknown name."""
        number, kind, index, *saved, chunk = name.split("/")
        run = self.runs()[int(number)]
        iteration = run.iteration(int(index), kind)  # type: ignore[arg-type]
        parts = dict(self._named_parts(int(number), run, iteration))
        return parts["/".join([number, kind, index, *saved])].chunks[int(chunk)]

    def episode(self, run: RecordedRun, kind: str, number: int, chunk: str, place: int) -> tuple[Iteration, Episode]:
        """Return an episode by its place in a chunk, and its iteration; saved branches are included."""
        iteration = run.iteration(number, kind)  # type: ignore[arg-type]
        *name, part = chunk.split("/")
        saved = {path.stem: path for path in branch_files(run, iteration)}
        source = iteration if len(name) == 3 else saved_branch(saved[name[3]])
        return iteration, source.episode(int(part) * CHUNK + place)

    def _named_parts(self, number: int, run: RecordedRun, iteration: Iteration) -> Iterator[tuple[str, Part]]:
        name = f"{number}/{iteration.kind}/{iteration.number}"
        yield name, self._part(iteration)
        for path in branch_files(run, iteration):
            yield f"{name}/{path.stem}", self._part(saved_branch(path))

    def _part(self, iteration: Iteration) -> Part:
        stamp = _stamp(iteration.path)
        cached = self._parts.get(iteration.path)
        if cached is None or cached[0] != stamp:
            try:
                part = _part(iteration)
            except RecordsError as error:  # damaged; or the run has removed an old one in the meantime
                part = Part(problem=str(error) if iteration.path.exists() else "")
            cached = self._parts[iteration.path] = stamp, part
        return cached[1]

    def _run(self, number: int, run: RecordedRun, iterations: Sequence[Iteration]) -> dict[str, Any]:
        results = None
        if run.kind == "evaluation":
            results = run.results or summarize(e.record for i in run.iterations for e in i.episodes() if e.record)
        return {
            "name": run.path.resolve().name,
            "path": str(run.path),
            "kind": run.kind,
            "config": _json(run.config),
            "results": results,
            "metrics": _metrics(run),
            "left_out": [
                f"{iteration.kind} {iteration.number}" for iteration in run.iterations if iteration not in iterations
            ],
            "iterations": [self._iteration(number, run, iteration) for iteration in iterations],
        }

    def _iteration(self, number: int, run: RecordedRun, iteration: Iteration) -> dict[str, Any]:
        rows: Rows = {}
        openings: dict[str, str] = {}
        for name, part in self._named_parts(number, run, iteration):
            for column, values in part.rows.items():
                rows.setdefault(column, []).extend(values)
            size = len(part.rows.get("episode_id", ()))
            rows.setdefault("chunk", []).extend(f"{name}/{n // CHUNK}" for n in range(size))
            rows.setdefault("place", []).extend(n % CHUNK for n in range(size))
            rows.setdefault("saved", []).extend([name.count("/") == 3] * size)
            openings = {**part.openings, **openings}
        problem = self._part(iteration).problem
        info = dict(iteration.info) if iteration.path.exists() and not problem else {}
        entry = {
            "kind": iteration.kind,
            "number": iteration.number,
            "info": _json(info),
            "rows": rows,
            "openings": openings,
        }
        return entry | {"problem": problem}

    def _pairs(self, selections: Sequence[Sequence[Iteration]]) -> list[Pair]:
        readable = [[iteration for iteration in selection if self._part(iteration).rows] for selection in selections]
        sides: list[dict[Ref, Side]] = [
            {
                (iteration.kind, iteration.number): Side(
                    n, iteration.kind, iteration.number, self._part(iteration).rows
                )
                for iteration in selection
            }
            for n, selection in enumerate(readable)
        ]
        return paired(*sides)


def branch_files(run: RecordedRun, iteration: Iteration) -> list[Path]:
    """List the files of branches that were saved from an iteration's episodes."""
    return sorted(branch_folder(run).glob(f"{iteration.kind}-{iteration.number:06d}-*.parquet"))


def _files(run: RecordedRun, iterations: Iterable[Iteration]) -> Iterator[Path]:
    for iteration in iterations:
        yield iteration.path
        yield from branch_files(run, iteration)


def saved_branch(path: Path) -> Iteration:
    """Return a branch's file as an iteration; it is Parquet, also for a branch of an evaluation."""
    return Iteration("train", 0, path)


def branch_folder(run: RecordedRun) -> Path:
    return (run.path if run.path.is_dir() else run.path.parent) / CONTINUED


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_mtime_ns, stat.st_size


def _part(iteration: Iteration) -> Part:
    rows: Rows = {name: [] for name in (*_COLUMNS, "turns", "tokens", "success")}
    openings: dict[str, str] = {}
    chunks: list[bytes] = []
    pending: list[dict[str, Any]] = []

    def close() -> None:
        if pending:
            # Level 4: an eighth larger than 9, and four times as fast.
            chunks.append(gzip.compress(json.dumps(pending, ensure_ascii=False).encode("utf-8", "replace"), 4, mtime=0))
            pending.clear()

    for episode in iteration.episodes():
        for name in _COLUMNS:
            rows[name].append(_json(getattr(episode, name)))
        rows["forked_turn"][-1] = episode.first_turn  # the page counts turns of the whole conversation
        rows["turns"].append(len(episode.turn_rewards))
        rows["tokens"].append(None if episode.tokens is None else len(episode.tokens.token_ids))
        rows["success"].append(episode.success)
        if episode.group_id not in openings:
            openings[episode.group_id] = _excerpt(episode)
        pending.append(episode_json(episode))
        if len(pending) == CHUNK:
            close()
    close()
    return Part(rows, openings, chunks)


def _excerpt(episode: Episode) -> str:
    opening = next((message for message in episode.messages if message["role"] == "user"), None)
    return "" if opening is None else " ".join(text_of(opening)[: 4 * _EXCERPT].split())[:_EXCERPT]


def episode_json(episode: Episode) -> dict[str, Any]:
    """Return all that is shown of an episode beside its line in the list."""
    entry: dict[str, Any] = {
        "messages": list(episode.messages),
        "rewards": _json(episode.turn_rewards.tolist()),
        "terms": [_json(terms) for terms in episode.turn_terms],
        "moved": _numbers(episode.credit_moved),
        "fork_value": _numbers(episode.fork_value),
        "moves": list(episode.turn_moves),
        "reaction": _numbers(episode.reaction_credit),
        "greedy": _json(episode.greedy_reward),
        "metrics": _json(dict(episode.metrics)),
        "error": episode.error,
        "env_seed": episode.env_seed,
        "task_index": episode.task_index,
    }
    if episode.tokens is not None and len(episode.tokens.token_ids):
        entry["tokens"] = _tokens(episode.tokens)
    if (record := episode.record) is not None:
        if record.contexts:
            entry["contexts"] = [list(messages) for messages in record.contexts]
            entry["places"] = list(record.reply_places)
        if record.context_roles:
            entry["roles"] = list(record.context_roles)
        entry["record"] = {
            name: getattr(record, name)
            for name in ("prompt_tokens", "completion_tokens", "cut_replies", "cost", "tool_calls", "tool_errors")
        }
    return entry


def _tokens(tokens: Tokens) -> dict[str, Any]:
    """Return the columns of a sequence. The learner's have an entry per action token; ``spans`` place them."""
    mask = tokens.action_mask
    turns = np.where(mask, tokens.turn_id, -1)
    edges = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(turns)]
    spans = [(a, b, int(turns[a])) for a, b in zip(edges[:-1], edges[1:], strict=True) if mask[a]]
    columns: dict[str, Any] = {
        "ids": tokens.token_ids.tolist(),
        "text": None if tokens.text is None else list(tokens.text),
        "spans": spans,
        "segments": tokens.segment_starts.tolist(),
        "version": tokens.weight_version[mask].tolist(),
        "logprob": _numbers(tokens.logprobs[mask]),
    }
    for name in _LEARNED:
        column = getattr(tokens, name)
        columns[name] = None if column is None else _numbers(column[mask])
    return columns


def _numbers(values: NDArray[Any] | None) -> list[float | None] | None:
    """Convert to JSON numbers of six significant digits; ``None`` where a value is not finite."""
    if values is None:
        return None
    exact = np.asarray(values, np.float64)
    finite = np.isfinite(exact)
    safe = np.where(finite & (exact != 0), exact, 1.0)
    scale = 10.0 ** np.clip(5 - np.floor(np.log10(np.abs(safe))), 0, 22)
    short = np.where(finite, np.rint(np.where(finite, exact, 0.0) * scale) / scale, 0.0)
    return [value if ok else None for value, ok in zip(short.tolist(), finite.tolist(), strict=True)]


def _metrics(run: RecordedRun) -> dict[str, Any]:
    by_step: dict[int, dict[str, float]] = {}
    for step, metrics in run.metrics():
        by_step.setdefault(step, {}).update(metrics)
    names = sorted({name for metrics in by_step.values() for name in metrics})
    steps = sorted(by_step)
    nothing = math.nan
    values = {name: _numbers(np.array([by_step[step].get(name, nothing) for step in steps])) for name in names}
    return {"steps": steps, "values": values}


def _json(value: Any) -> Any:
    """Return a value as JSON, which has no NaN, no infinity and no dates."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_json(item) for item in value]
    return str(value)
