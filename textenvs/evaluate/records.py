"""Storage of an evaluation: one record an episode, in a folder that survives a killed process.

The folder has ``manifest.json`` (what is evaluated, which never changes), ``episodes.jsonl`` (a line for each finished
episode), and at the end ``results.parquet`` and ``summary.json``. A line is written whole, by one system call, so a
killed process leaves at most a torn last line, which the next one removes. Recorded episodes are not played again.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from ..bounded_files import UnreadableFile, check_json_size, read_json_object, read_lines
from ..data.files import write_rows, written_whole
from ..messages import Messages, check_conversation, copy_messages

MANIFEST = "manifest.json"
EPISODES = "episodes.jsonl"
RESULTS = "results.parquet"
SUMMARY = "summary.json"

# What a line leaves out where it is empty.
_MAY_LACK = ("user_messages", "contexts", "reply_places", "context_roles", "role_terms", "notes")
_SYNC_EVERY_S = 1.0  # only a machine that loses power loses what was written and not synced


class FolderError(ValueError):
    """A folder that cannot be written to or resumed from; the message says which, why, and what to do."""


Natural = Annotated[int, Field(ge=0, lt=2**63)]


class Strict(BaseModel):
    """A value of a file as JSON has it: no text is read as a number, and every number is finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Environment(Strict):
    id: str
    version: int | str | None
    options: dict[str, Any]


class _Tasks(Strict):
    name: str
    count: Annotated[int, Field(ge=0, lt=2**31)]
    fingerprint: str


class Manifest(Strict):
    """The parts of a manifest that readers use."""

    environment: _Environment
    tasks: _Tasks
    samples: Annotated[int, Field(ge=1, lt=2**31)]
    seed: Natural
    policy: dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One finished episode."""

    task: int  # the task's number in the evaluation, from 0
    sample: int  # which of the task's episodes, from 0
    seed: int  # the seed of the environment's reset
    task_index: int  # the task's index in the task set
    task_key: str  # its name there
    data_source: str  # where it comes from
    # The environment ended the episode as solved; ``None`` where episodes cannot succeed (:attr:`TextEnv.has_success`).
    success: bool | None = False
    turn_rewards: tuple[float, ...] = ()  # the reward of each turn
    terms: Mapping[str, float] = field(default_factory=dict)  # the reward's named parts, each summed over the turns
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last value of each of the environment's metrics
    assistant_turns: int = 0  # replies of the policy
    user_turns: int = 0  # messages of the user after the opening
    # Calls of tools, those that could not be read or run among them; ``None`` where there are no tools.
    tool_calls: int | None = None
    tool_errors: int | None = None  # those among them that did not return a result
    terminated: bool = False  # the task was over
    truncated: bool = False  # a budget ran out, or something failed
    stop: str | None = None  # why the episode ended
    failed: bool = False  # machinery failed, not the policy: the episode says nothing about it, and no mean counts it
    failure: str | None = None  # in words: what failed, or why else it ended, where the stop needs them
    # Tokens the policy's service read, over all turns; ``None`` where it is not known.
    prompt_tokens: int | None = None
    completion_tokens: int | None = None  # tokens it wrote
    cut_replies: int = 0  # replies that ended at the limit of their length
    cost: float | None = None  # in US dollars; ``None`` where it is not known
    messages: Messages = ()  # the conversation; of several, the last one
    contexts: tuple[Messages, ...] = ()  # conversations that were left before, in the order in which they were
    # Of several conversations: the number of that of each turn's reply, in (*contexts, messages), and its place there.
    reply_places: tuple[tuple[int, int], ...] = ()
    context_roles: tuple[str, ...] = ()  # of several roles: whose each conversation is, of (*contexts, messages)
    role_terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # terms by role, of those that acted
    user_messages: Messages = ()  # the same from the side of a model that plays the user; empty without one
    notes: tuple[Any, ...] = ()  # what the policy kept of each turn; empty where it kept nothing of any

    @property
    def place(self) -> tuple[int, int]:
        return self.task, self.sample

    @property
    def total(self) -> float:
        """The episode's return: the sum of its turns' rewards."""
        return float(sum(self.turn_rewards))

    @property
    def role_returns(self) -> dict[str, float]:
        """The returns of several roles, of those that acted."""
        return {role: float(sum(terms.values())) for role, terms in self.role_terms.items()}

    def to_json(self) -> str:
        value = asdict(self)
        for name in _MAY_LACK:
            if not value[name]:
                del value[name]
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Parse a line of :meth:`to_json`; raises ``ValueError`` for any other text."""
        check_json_size(line)
        try:
            value = dict(_line_format().validate_json(line))
        except ValidationError as error:
            raise ValueError(f"not a record of an episode: {in_words(error)}") from None
        for name in ("messages", "user_messages"):
            value[name] = copy_messages(check_conversation(value[name], name))
        value["contexts"] = tuple(
            copy_messages(check_conversation(context, "contexts")) for context in value["contexts"]
        )
        return cls(**value)

    def to_row(self) -> dict[str, Any]:
        """Return a flat row for a table: terms and metrics are columns, the conversation is JSON text."""
        row = asdict(self)
        terms, metrics, messages = (row.pop(name) for name in ("terms", "metrics", "messages"))
        optional = {name: value for name in _MAY_LACK if (value := row.pop(name))}
        row |= {"turn_rewards": list(self.turn_rewards), "return": self.total}
        row |= {f"term/{name}": value for name, value in terms.items()}
        row |= {f"metric/{name}": value for name, value in metrics.items()}
        row |= {f"return/{role}": value for role, value in self.role_returns.items()}
        texts = {"messages": messages, **optional}
        return row | {name: json.dumps(value, ensure_ascii=False) for name, value in texts.items()}


class Folder(AbstractContextManager["Folder"]):
    """The folder of one evaluation, held by one process at a time, within a ``with`` block.

    An earlier run of the same evaluation (``configuration`` has all that may change a result, as JSON values) is
    resumed; ``retry_failed`` forgets its failed episodes, so that they are played again.
    """

    def __init__(self, path: str | Path, configuration: Mapping[str, Any], *, retry_failed: bool = False) -> None:
        self.path = Path(path).expanduser()
        self.records: dict[tuple[int, int], Record] = {}
        self.repaired = False  # whether a torn last line was removed
        self._file = -1
        self._synced = time.monotonic()
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file; --out names a folder")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._open()  # first, so that of two that begin at once, one alone writes its manifest
            self._check_manifest(configuration)
            self._read()
            if retry_failed and any(record.failed for record in self.records.values()):
                self._forget_failed()
        except BaseException:
            self.close()
            raise

    def add(self, record: Record) -> None:
        """Append a record; when this returns, killing the process no longer loses it."""
        if record.place in self.records:
            raise ValueError(f"task {record.task}, sample {record.sample} has a record already")
        line = (record.to_json() + "\n").encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path / EPISODES}: a line could only be written in part; is the disk full?")
        self.records[record.place] = record
        if time.monotonic() - self._synced > _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        os.fsync(self._file)
        self._synced = time.monotonic()

    def write_results(self) -> Path:
        """Write ``results.parquet``, a row an episode, ordered by task and sample, whole or not at all."""
        return write_rows([record.to_row() for _, record in sorted(self.records.items())], self.path / RESULTS)

    def close(self) -> None:
        """Release the folder; safe to call twice."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_manifest(self, configuration: Mapping[str, Any]) -> None:
        path = self.path / MANIFEST
        expected = json.loads(json.dumps(configuration, allow_nan=False))
        if not path.exists():
            if (self.path / EPISODES).stat().st_size:
                raise FolderError(f"{self.path} has {EPISODES} but no {MANIFEST}; name another folder with --out")
            write_json(path, expected)
            return
        try:
            manifest = read_json_object(path)
        except UnreadableFile as error:
            raise FolderError(f"{error}; it is not a manifest, so name another folder with --out") from error
        if listed := "\n  ".join(_differences(manifest, expected)):
            raise FolderError(
                f"{self.path} belongs to another evaluation:\n  {listed}\n"
                "Name another folder with --out, or give the command of the earlier run."
            )

    def _open(self) -> None:
        path = self.path / EPISODES
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            lock(self._file)
        except BlockingIOError as error:
            raise FolderError(f"{self.path}: another process is evaluating into this folder; wait for it") from error
        except OSError as error:
            raise FolderError(f"{self.path}: {error}; name a folder on a file system with locks") from error

    def _read(self) -> None:
        path = self.path / EPISODES
        content = path.read_bytes()
        whole, end, torn = content.rpartition(b"\n")
        if torn:
            try:
                Record.from_json(torn.decode())  # all there but the line's end
                os.write(self._file, b"\n")
                whole, end = content, b"\n"
            except (ValueError, TypeError):
                os.ftruncate(self._file, len(whole) + len(end))
                self.repaired = True
        self.records = _records(path, whole.split(b"\n") if end else ())

    def _forget_failed(self) -> None:
        for name in (SUMMARY, RESULTS):  # until they are made again, they would be of the episodes that are forgotten
            (self.path / name).unlink(missing_ok=True)
        self.records = {place: record for place, record in self.records.items() if not record.failed}
        path = self.path / EPISODES
        write_text(path, "".join(record.to_json() + "\n" for record in self.records.values()))
        os.close(self._file)
        self._file = -1
        self._open()


def read_folder(path: str | Path) -> tuple[dict[str, Any], list[Record]]:
    """Read the manifest and the finished episodes, by task and sample; nothing is written.

    A torn last line is omitted: its episode is not finished. ``FolderError``: no such folder, or a damaged file.
    """
    folder = Path(path).expanduser()
    try:
        manifest = read_json_object(folder / MANIFEST)
        Manifest.model_validate(manifest)
        records = _records(
            folder / EPISODES, (line for _, line in read_lines(folder / EPISODES) if line.endswith(b"\n"))
        )
    except (OSError, UnreadableFile) as error:
        raise FolderError(f"{folder} is no folder that `textenvs evaluate --out` has written: {error}") from error
    except ValidationError as error:
        raise FolderError(f"{folder / MANIFEST} is not a manifest of an evaluation: {in_words(error)}") from error
    return manifest, [records[place] for place in sorted(records)]


def in_words(error: ValidationError) -> str:
    """Describe the first problems of a value that pydantic refuses, without the value."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    listed = [
        f"{'.'.join(str(part)[:64] for part in problem['loc'])}: {problem['msg'][:256]}" for problem in problems[:3]
    ]
    return "; ".join(listed) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


@functools.cache
def _line_format() -> TypeAdapter[Any]:
    """Return the format of a line of :class:`Record`: its fields and their types; messages are checked elsewhere."""
    hints = get_type_hints(Record)
    hints |= dict.fromkeys(("messages", "user_messages", "contexts", "notes"), tuple[Any, ...])
    hints |= dict.fromkeys(("task", "sample", "task_index"), Natural)
    hints |= dict.fromkeys(("terms", "metrics"), dict[str, float])
    hints["role_terms"] = dict[str, dict[str, float]]
    absent: dict[str, Any] = {**dict.fromkeys(_MAY_LACK, ()), "role_terms": {}}
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    names: dict[str, Any] = {
        column.name: (hints[column.name], absent.get(column.name, ...)) for column in fields(Record)
    }
    return TypeAdapter(create_model("EpisodeLine", __config__=config, **names))


def _records(path: Path, lines: Iterable[bytes]) -> dict[tuple[int, int], Record]:
    records: dict[tuple[int, int], Record] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = Record.from_json(line.decode())
        except (ValueError, TypeError) as error:
            raise FolderError(
                f"{path}: line {number} is damaged ({error}); remove the line, and its episode is played again"
            ) from error
        if record.place in records:
            raise FolderError(
                f"{path}: line {number} is the second one of task {record.task}, sample {record.sample}; "
                "remove one of the two"
            )
        records[record.place] = record
    return records


def lock(descriptor: int) -> None:
    """Take the lock of an open file until it is closed: a ``BlockingIOError`` where another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows has other locks; there, one process at a time is up to the user
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_json(path: Path, value: Mapping[str, Any]) -> Path:
    """Write a file of JSON for people to read, whole or not at all."""
    return write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> Path:
    with written_whole(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
    return path


def _differences(existing: Mapping[str, Any], expected: Mapping[str, Any], before: str = "") -> Iterable[str]:
    for key in dict.fromkeys([*existing, *expected]):
        name, old, new = f"{before}{key}", existing.get(key), expected.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{name}.")
        elif old != new or (key in existing) != (key in expected):
            was, now = (json.dumps(value, ensure_ascii=False) for value in (old, new))
            yield f"{name}: it has {was}, the command {now}"
