"""Agent World Model's data folder: its worlds and tasks, and the boxes in which worlds are run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bounded_files import LINE, UnreadableFile, parse_json, read_lines
from ...sandbox import CORES, Limits, Pool, Sandbox, SandboxFailure, WorkerDied
from ...sandbox.answering import program
from ...task import TaskError, split_by_hash

#: The variable with the data folder.
VARIABLE = "AWM_DATA_DIR"
#: Seconds that a question may take, all calls so far included, and that loading a world may take.
TIMEOUT_S, LOADING_S = 10.0, 120.0
#: One world in this many is a test world.
HELD_OUT = 4
_REMEDY = (
    "Get it with `hf download Snowflake/AgentWorldModel-1K --repo-type dataset --local-dir awm` and give data='awm', "
    f"or set {VARIABLE} to that folder; its code is run in a sandbox"
)
_FILES: Mapping[str, str] = {
    "tables": "gen_db.jsonl",
    "samples": "gen_sample.jsonl",
    "code": "gen_envs.jsonl",
    "verifiers": "gen_verifier.pure_code.jsonl",
}
_WORKER = Path(__file__).with_name("worker.py")
_LIMITS = Limits(cpu_s=1 << 20, wall_s=1 << 20, memory_mb=2048, processes=16, disk_mb=256, output_bytes=16 << 20)


class CallStopped(Exception):
    """A call did not end in time, or ended its process; the message says which."""


def find_data(data: str | None) -> Path:
    """Return the folder with AWM's files: ``data``, else what ``AWM_DATA_DIR`` names.

    Raises:
        ValueError: There is none, or a file is missing; the message says how to get it.
    """
    place = data if data is not None else os.environ.get(VARIABLE)
    if not place:
        raise ValueError(f"textenv/awm plays the worlds of a data folder, and none was given. {_REMEDY}")
    root = Path(place).expanduser().resolve()
    if missing := [name for name in _FILES.values() if not (root / name).is_file()]:
        raise ValueError(f"data={str(place)!r} has no {', '.join(missing)}. {_REMEDY}")
    return root


def normalized(scenario: str) -> str:
    """Return a world's name as AWM compares it: lower case, with one underscore for what is no letter or digit."""
    return re.sub(r"_+", "_", re.sub(r"[^a-z0-9_]", "_", scenario.lower())).strip("_")


@dataclass(frozen=True)
class Item:
    """A task of a world: what is asked, and the code of its verifier."""

    world: str
    number: int
    text: str
    verifier: str

    @property
    def key(self) -> str:
        return f"{self.world}/{self.number}"


def in_split(world: str, split: str) -> bool:
    """Return whether a world is of a split (``"all"``, ``"train"`` or ``"test"``): all its tasks are."""
    return split in ("all", split_by_hash(world, HELD_OUT))


@functools.lru_cache(maxsize=4)
def items(root: Path) -> Mapping[str, Item]:
    """Return the tasks that have a world and a verifier, by their keys, in the order of the verifiers' file."""
    worlds = set(_places(root / _FILES["code"])) & set(_places(root / _FILES["tables"]))
    file, result = root / _FILES["verifiers"], dict[str, Item]()
    for number, row in _rows(file):
        try:
            code = row["verification"]["code"]
            item = Item(normalized(row["scenario"]), int(row["task_idx"]), str(row["task"]), str(code))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableFile(f"{file}, line {number}: not a verifier of AWM: {error!r}") from None
        if item.world in worlds and isinstance(code, str) and "def verify" in code:  # AWM kept tasks without a verifier
            result[item.key] = item
    if not result:
        raise TaskError(f"{file} has no task whose world is in {_FILES['code']} and {_FILES['tables']}")
    return result


@functools.lru_cache(maxsize=64)
def world_source(root: Path, world: str) -> tuple[str, dict[str, Any]]:
    """Return a world's key and what is needed to load it: tables, sample rows and code."""
    rows = {part: _row(root / _FILES[part], world) for part in ("tables", "code")}
    file = root / _FILES["samples"]
    samples = _row(file, world) if world in _places(file) else {}
    try:
        source = {
            "tables": [dict(table) for table in rows["tables"]["db_schema"]["tables"]],
            "samples": [
                str(statement)
                for table in samples.get("sample_data", {}).get("tables", ())
                for statement in table.get("insert_statements", ())
            ],
            "code": str(rows["code"]["full_code"]),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableFile(f"{root}: the world {world!r} is not as AWM writes it: {error!r}") from None
    return hashlib.blake2b(json.dumps(source).encode(), digest_size=12).hexdigest(), source


def _row(file: Path, world: str) -> dict[str, Any]:
    place = _places(file).get(world)
    if place is None:
        raise UnreadableFile(f"{file} has no world {world!r}")
    with file.open("rb") as lines:
        lines.seek(place)
        return _parsed(file, "", lines.readline(LINE))


@functools.lru_cache(maxsize=16)
def _places(file: Path) -> Mapping[str, int]:
    """Return where in a file the line of each world begins, in bytes."""
    places, place = dict[str, int](), 0
    for number, line in read_lines(file, LINE):
        row = _parsed(file, f", line {number}", line)
        if not isinstance(row.get("scenario"), str):
            raise UnreadableFile(f"{file}, line {number}: it names no scenario")
        places.setdefault(normalized(row["scenario"]), place)
        place += len(line)
    return places


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in read_lines(file, LINE):
        yield number, _parsed(file, f", line {number}", line)


def _parsed(file: Path, where: str, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UnreadableFile(f"{file}{where}: {error}") from error
    if not isinstance(row, dict):
        raise UnreadableFile(f"{file}{where}: a {type(row).__name__}, not an object")
    return row


# ------------------------------------------------------------------ boxes


@dataclass(frozen=True)
class Box:
    """The boxes in which the worlds of a folder run. ``packages`` is what they may import, as in ``Sandbox``."""

    root: Path
    packages: str

    def tools(self, world: str) -> list[dict[str, Any]]:
        """Return the operations of a world as tools: name, description, parameters."""
        return _tools(self, world)

    def call(self, world: str, calls: tuple[tuple[str, str], ...]) -> tuple[int, str]:
        """Return the status and the text that answer the last of these calls.

        Raises:
            CallStopped: It did not end in time, or ended its process.
            SandboxFailure: There is no box, or the world cannot be run.
        """
        answer = self._ask(world, ask="call", calls=calls, timeout_s=TIMEOUT_S)
        if "stopped" in answer:
            raise CallStopped(answer["stopped"])
        return answer["status"], answer["text"]

    def verify(self, item: Item, calls: tuple[tuple[str, str], ...], final_answer: str) -> dict[str, Any]:
        """Return whether the task is ``complete`` after these calls, and the ``problem`` of a verifier that raised.

        Calls that cannot be made again in four times the time that each was given complete nothing: a policy must not
        escape its score by calls that take long.
        """
        inputs = {"verifier": item.verifier, "answer": final_answer, "timeout_s": 4 * TIMEOUT_S}
        answer = self._ask(item.world, ask="verify", calls=calls, **inputs)
        return {"complete": False, "problem": answer["stopped"]} if "stopped" in answer else answer

    def _ask(self, world: str, **question: Any) -> dict[str, Any]:
        key, source = world_source(self.root, world)
        limit = LOADING_S + question.get("timeout_s", 0.0)
        try:
            answer: dict[str, Any] = _pool(self.packages).ask({"key": key, **question}, limit)
            if "unknown" in answer:  # this box has not loaded it
                answer = _pool(self.packages).ask({"key": key, "world": source, **question}, limit)
        except TimeoutError:
            raise WorkerDied(f"the world {world} is not loaded within {LOADING_S:g} s") from None
        if "error" in answer:
            raise SandboxFailure(f"the world {world} cannot be run: {answer['error']}")
        return answer


@functools.lru_cache(maxsize=1024)
def _tools(box: Box, world: str) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = box._ask(world, ask="tools")["tools"]
    return tools


@functools.cache
def _pool(packages: str) -> Pool:
    sandbox = Sandbox(packages=packages, limits=_LIMITS)
    return Pool(lambda: sandbox.start(worker_source()), min(4, CORES), "textenvs-awm")


def worker_source() -> str:
    """Return the program that runs worlds in a box."""
    return program(_WORKER)
