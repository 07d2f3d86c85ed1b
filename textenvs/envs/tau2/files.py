"""tau2-bench's data folder: its location, and a domain's files, each read once in a process."""

from __future__ import annotations

import functools
import importlib.util
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bounded_files import LINE, UnreadableFile, parse_json, read_text
from ...task import TaskError

#: tau2's own variable for its data folder.
VARIABLE = "TAU2_DATA_DIR"
_REMEDY = (
    "Clone https://github.com/sierra-research/tau2-bench and give data='tau2-bench/data', or set "
    f"{VARIABLE} to that folder"
)

_VALUES = 10_000_000  # of a file of JSON: telecom has thousands of tasks
_KINDS: Mapping[type, str] = {dict: "an object", list: "a list"}


def find_data(data: str | None) -> Path:
    """Return the folder with tau2's domains: ``data``, else ``TAU2_DATA_DIR``, else that of an installed clone.

    Raises:
        ValueError: There is none, or it has no domain; the message says how to get one.
    """
    places = [data] if data is not None else [os.environ.get(VARIABLE), _installed()]
    root = next((Path(place) for place in places if place), None)
    if root is None:
        raise ValueError(f"textenv/tau2 plays from tau2-bench's data folder, and none was given. {_REMEDY}")
    for folder in (root / "tau2" / "domains", root / "domains", root):
        if any(folder.glob("*/tasks*.json")):
            return folder.resolve()
    raise ValueError(f"data={str(root)!r} has no domain of tau2 (tau2/domains/NAME/tasks.json). {_REMEDY}")


def _installed() -> str | None:
    """Return the data folder of an installed clone of tau2, located without importing it."""
    spec = importlib.util.find_spec("tau2")
    data = Path(spec.origin).parents[2] / "data" if spec and spec.origin else None  # beside src/tau2/__init__.py
    return str(data) if data and data.is_dir() else None


@dataclass(frozen=True)
class Folder:
    """A domain's folder."""

    path: str
    domain: str

    def __deepcopy__(self, memo: object) -> Folder:
        return self

    @property
    def tables(self) -> Mapping[str, Mapping[str, dict[str, Any]]]:
        """Both sides' records by table and key."""
        return _tables(self.path)

    def raw(self, side: str) -> dict[str, Any]:
        """Return the database of ``"assistant"`` or ``"user"`` as its file has it; empty where the domain has none."""
        return _raw(self.path, "db" if side == "assistant" else "user_db")

    def text(self, *names: str) -> str:
        """Return the text of the first of these files that exists."""
        return read_text(self._file(*names), LINE)

    def _file(self, *names: str) -> Path:
        path = next((candidate for candidate in (Path(self.path, name) for name in names) if candidate.is_file()), None)
        if path is None:
            raise ValueError(f"tau2's {self.domain} needs {' or '.join(names)} in {self.path}. {_REMEDY}")
        return path

    def tasks(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the tasks of a split: of ``tasks_<split>.json``, or of ``tasks.json`` by ``split_tasks.json``."""
        if not split.isidentifier():  # it is part of a file's name
            raise ValueError(f"split must be a name like base, train or test, not {split!r}")
        whole = Path(self.path, f"tasks_{split}.json")
        if whole.is_file():
            yield from _read_tasks(whole)
            return
        file = self._file("split_tasks.json")
        splits = _read(file, dict)
        for name, ids in splits.items():
            if not isinstance(ids, list) or not all(isinstance(task_id, str) for task_id in ids):
                raise UnreadableFile(f"{file}: split {name!r} is not a list of tasks' ids")
        if split not in splits:
            raise ValueError(f"split must be one of {', '.join(splits)} for tau2's {self.domain}, not {split!r}")
        if not Path(self.path, "tasks.json").is_file():
            available = [path.stem.removeprefix("tasks_") for path in Path(self.path).glob("tasks_*.json")]
            raise ValueError(
                f"split {split!r} of tau2's {self.domain} needs {self.path}/tasks.json; without it, split is one of "
                f"{', '.join(available) or 'none'}. {_REMEDY}"
            )
        tasks = {task["id"]: task for task in _read_tasks(Path(self.path, "tasks.json"))}
        if missing := [task_id for task_id in splits[split] if task_id not in tasks]:
            raise TaskError(f"{self.path}/tasks.json has no task {missing[0]!r}, which split {split!r} names")
        yield from (tasks[task_id] for task_id in splits[split])


def _read(path: Path, kind: type) -> Any:
    """Return the value of a file of JSON or TOML; ``UnreadableFile`` where it is none, or of another kind."""
    text = read_text(path, LINE)
    try:
        value = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text, values=_VALUES)
    except (ValueError, RecursionError) as error:
        raise UnreadableFile(f"{path} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise UnreadableFile(f"{path} must be {_KINDS[kind]}, not a {type(value).__name__}")
    return value


def _read_tasks(path: Path) -> list[dict[str, Any]]:
    tasks = _read(path, list)
    for number, task in enumerate(tasks, start=1):
        if not isinstance(task, dict) or not isinstance(task.get("id"), str):
            raise UnreadableFile(f"{path}: task {number} is not an object with an 'id' that is text")
    return tasks  # type: ignore[no-any-return]


def keyed(raw: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return a database file as tables by key: lists by their records' ids, mappings as they are.

    A mapping without records in it (the user's phone) is a table of one, whose key is its name.
    """
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for name, table in raw.items():
        if isinstance(table, list):  # bills by bill_id, and so on
            tables[name] = {record[f"{name[:-1]}_id"]: record for record in table}
        elif name in ("device", "surroundings"):
            tables[name] = {name: table}
        else:
            tables[name] = table
    return tables


@functools.lru_cache(maxsize=8)
def _tables(path: str) -> Mapping[str, Mapping[str, dict[str, Any]]]:
    assistant, user = _raw(path, "db"), _raw(path, "user_db")
    if not assistant:
        raise ValueError(f"{path} has no db.json or db.toml, the domain's database. {_REMEDY}")
    if "device" in user:
        user = {**user, "surroundings": {**SURROUNDINGS, **user.get("surroundings", {})}}
    return {**keyed(assistant), **keyed(user)}


#: The surroundings of a phone's user where the file does not say.
SURROUNDINGS: Mapping[str, Any] = {
    "is_abroad": False,
    "roaming_allowed": False,
    "signal_strength": {"2G": "poor", "3G": "fair", "4G": "good", "5G": "excellent"},
    "mobile_data_usage_exceeded": False,
    "line_active": True,
}


@functools.lru_cache(maxsize=8)
def _raw(path: str, name: str) -> dict[str, Any]:
    for file in (f"{name}.json", f"{name}.toml"):
        if Path(path, file).is_file():
            tables: dict[str, Any] = _read(Path(path, file), dict)
            if bad := next((table for table, records in tables.items() if not _is_table(records)), None):
                raise UnreadableFile(f"{Path(path, file)}: {bad!r} is not a table of records")
            return tables
    return {}


def _is_table(records: Any) -> bool:
    """Return whether this is an object, or a list of objects (bills by bill_id, and so on)."""
    return isinstance(records, dict) or (
        isinstance(records, list) and all(isinstance(record, dict) for record in records)
    )
