"""A clone of the leaderboard: its location, its tasks and tools, and its API classes in processes of their own."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from ...bounded_files import LINE, UnreadableFile, parse_json, read_lines
from ...python_text import parse_python
from ...sandbox import CORES, Pool, SandboxFailure, Worker, WorkerDied
from ...sandbox.answering import program
from ...task import TaskError, split_by_hash

Category = Literal["base", "miss_func", "miss_param", "long_context"]
CATEGORIES: tuple[str, ...] = get_args(Category)
#: The variable with the clone's folder.
VARIABLE = "BFCL_CLONE"
#: Seconds that a question may take: all calls of an episode take milliseconds.
TIMEOUT_S = 5.0
#: One in so many tasks is a test task.
HELD_OUT = 4
_ANSWER_BYTES = 16 << 20
_REMEDY = (
    f"Clone https://github.com/ShishirPatil/gorilla and give data='gorilla', or set {VARIABLE} to that folder; its "
    "code is run"
)
_WORKER = Path(__file__).with_name("worker.py")
_TYPES: Mapping[str, str] = {"dict": "object", "float": "number", "tuple": "array", "hashmap": "object"}


class CallStopped(Exception):
    """A call did not end in time, or ended its process; the message says which."""


def find_clone(data: str | None) -> Path:
    """Return the folder that has the package ``bfcl_eval``: of ``data``, of ``BFCL_CLONE``, or of an installed package.

    Raises:
        ValueError: There is none, or it has no multi-turn tasks; the message says how to get one.
    """
    place = data if data is not None else os.environ.get(VARIABLE) or _installed()
    if place is None:
        raise ValueError(f"textenv/bfcl plays from a clone of the leaderboard, and none was given. {_REMEDY}")
    root = Path(place).expanduser()
    for folder in (root / "berkeley-function-call-leaderboard", root, root.parent):
        if any((folder / "bfcl_eval" / "data").glob("BFCL_v*_multi_turn_*.json")):
            return folder.resolve()
    raise ValueError(f"data={str(root)!r} has no bfcl_eval/data/BFCL_v4_multi_turn_base.json. {_REMEDY}")


def _installed() -> str | None:
    """Return the folder above an installed ``bfcl_eval``, located without importing it."""
    spec = importlib.util.find_spec("bfcl_eval")
    return str(Path(spec.origin).parents[1]) if spec and spec.origin else None


# ------------------------------------------------------------------ tasks


class _UserMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    role: Literal["user"]
    content: str


class Entry(BaseModel):
    """A task: what the user says in each turn, the state at the beginning, and the calls that are right.

    ``gold`` are calls as text, by turn, such as ``"cd(folder='document')"``. ``withheld`` are functions by the turn in
    which they are given; nobody speaks in that turn.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    classes: tuple[str, ...]
    config: dict[str, Any]
    question: tuple[tuple[_UserMessage, ...], ...]
    withheld: dict[int, tuple[str, ...]] = {}
    gold: tuple[tuple[str, ...], ...]
    long_context: bool = False

    @field_validator("gold")
    @classmethod
    def _calls(cls, gold: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for text in (text for turn in gold for text in turn):
            if _call_name(text) is None:
                raise ValueError(f"{text!r} is not a call of a function with literal arguments")
        return gold

    @model_validator(mode="after")
    def _turns(self) -> Self:
        if len(self.gold) != len(self.question) or not self.question or not any(self.gold):
            raise ValueError("question and gold must have the same turns, at least one, and a call in one of them")
        silent = [turn for turn, messages in enumerate(self.question) if not messages and turn not in self.withheld]
        if silent or 0 in self.withheld:
            raise ValueError("a turn needs a user's message, or, after the first, functions that it gives")
        return self

    @property
    def judged(self) -> int:
        """The number of judged turns: those with calls that are right."""
        return sum(map(bool, self.gold))

    def world(self) -> dict[str, Any]:
        """Return what a process needs to begin the task, as JSON."""
        return {"classes": list(self.classes), "config": self.config, "long_context": self.long_context}


def _call_name(text: str) -> str | None:
    """Return the function of a call with literal arguments; ``None`` where the text is none."""
    try:
        call = parse_python(text, "eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            ast.literal_eval(argument)
        return None if any(keyword.arg is None for keyword in call.keywords) else call.func.id
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@functools.lru_cache(maxsize=4096)
def read_entry(text: str) -> Entry:
    """Return a task from its JSON text; ``TaskError``: it is none."""
    try:
        return Entry.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TaskError(
            f"extra_info.bfcl is not a task of the leaderboard as JSON text: {where} {first['msg']}"
        ) from None


@functools.lru_cache(maxsize=8)
def entries(root: Path, category: str) -> tuple[Entry, ...]:
    """Return the tasks of a category, in the order of its file; ``UnreadableFile`` names a file that is not right."""
    data = root / "bfcl_eval" / "data"
    file = max(data.glob(f"BFCL_v*_multi_turn_{category}.json"), default=data / f"BFCL_v4_multi_turn_{category}.json")
    answers = {str(row.get("id")): row.get("ground_truth") for row in _rows(data / "possible_answer" / file.name)}
    tasks = []
    for row in _rows(file):
        entry = {
            "id": row.get("id"),
            "classes": row.get("involved_classes"),
            "config": row.get("initial_config"),
            "question": row.get("question"),
            "withheld": row.get("missed_function") or {},
            "gold": answers.get(str(row.get("id"))),
            "long_context": category == "long_context",
        }
        try:
            tasks.append(read_entry(json.dumps(entry)))
        except TaskError as error:
            raise UnreadableFile(f"{file}: task {row.get('id')!r}: {error}") from None
    return tuple(tasks)


def _rows(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in read_lines(file, LINE):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UnreadableFile(f"{file}, line {number}: {error}") from error
        if not isinstance(row, dict):
            raise UnreadableFile(f"{file}, line {number}: a {type(row).__name__}, not an object")
        rows.append(row)
    return rows


def in_split(entry: Entry, split: str) -> bool:
    """Return whether a task is of a split (``"all"``, ``"train"`` or ``"test"``).

    The number in its id decides, without the category: the categories have variants of the same tasks.
    """
    return split in ("all", split_by_hash(re.sub(r"\D*", "", entry.id) or entry.id, HELD_OUT))


# ------------------------------------------------------------------ tools


@functools.lru_cache(maxsize=8)
def documents(root: Path, classes: tuple[str, ...]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the functions of each class as its documentation has them; a class that cannot be imported is an error.

    Raises:
        ValueError: A class is unknown, or its module cannot be imported; the message has the reason.
    """
    try:
        answer = _pool(root).ask({"describe": list(classes)}, TIMEOUT_S + 25)  # the first import compiles
    except (SandboxFailure, TimeoutError) as error:
        raise ValueError(f"the API classes of {root} cannot be run: {error or 'it took too long'}") from error
    if "error" in answer:
        raise ValueError(
            f"the API classes of {root} cannot be imported: {answer['error']}. What they need is in its "
            "pyproject.toml; of the multi-turn tasks only MathAPI needs a package, mpmath"
        )
    folder = root / "bfcl_eval" / "data" / "multi_turn_func_doc"
    return {name: _rows(folder / Path(file).name) for name, file in answer["files"].items()}


def parameters_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a documented function as a JSON schema."""
    parameters: dict[str, Any] = _as_schema(document.get("parameters") or {"type": "object"})
    return {"properties": {}, "required": [], **parameters}


def _as_schema(value: Any) -> Any:
    """Return a schema in which the leaderboard's names of types are those of JSON schema."""
    if isinstance(value, list):
        return [_as_schema(part) for part in value]
    if not isinstance(value, dict):
        return value
    schema = {name: _as_schema(part) if name != "default" else part for name, part in value.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = _TYPES.get(kind, kind)
        if kind == "any":
            del schema["type"]
    return schema


# ------------------------------------------------------------------ processes


@dataclass(frozen=True)
class Play:
    """A task with the policy's calls so far, by turn; each is a function's name and its arguments as JSON text."""

    root: Path
    entry: Entry
    turns: tuple[tuple[tuple[str, str], ...], ...]

    def result(self) -> str:
        """Return the result of the last call of the last turn.

        Raises:
            CallStopped: It did not end in time, or ended its process.
            SandboxFailure: No process can be started, or the task cannot be begun.
        """
        answer = self._ask(TIMEOUT_S)
        if "stopped" in answer:
            raise CallStopped(answer["stopped"])
        return str(answer["result"])

    def problem(self) -> str | None:
        """Return why the last of ``turns`` is wrong (``"no_call"``, ``"state"``, ``"response"``); ``None`` if right.

        Calls that cannot be carried out again in four times the time that each was given have no state that is right:
        a policy must not escape its score by calls that take long.

        Raises:
            SandboxFailure: No process can be started, or the task cannot be begun.
        """
        answer = self._ask(4 * TIMEOUT_S, gold=self.entry.gold[: len(self.turns)])
        problem: str | None = "state" if "stopped" in answer else answer["problem"]
        return problem

    def named_calls(self, turn: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the calls that are right in a turn, with all arguments by their names."""
        answer = self._ask(TIMEOUT_S, named=self.entry.gold[turn])
        if "stopped" in answer:
            raise self._failure(answer["stopped"])
        return [(name, arguments) for name, arguments in answer["calls"]]

    def _ask(self, timeout_s: float, **parts: Any) -> dict[str, Any]:
        question = {"task": self.entry.world(), "turns": self.turns, "timeout_s": timeout_s, **parts}
        try:
            answer: dict[str, Any] = _pool(self.root).ask(question, timeout_s + 10)  # it watches the time itself
        except TimeoutError:
            raise WorkerDied("the program that plays the task does not answer") from None
        if "error" in answer:
            raise self._failure(answer["error"])
        return answer

    def _failure(self, problem: str) -> SandboxFailure:
        return SandboxFailure(f"{self.entry.id} of {self.root}: {problem}")


@functools.cache
def _pool(root: Path) -> Pool:
    return Pool(functools.partial(_start, root), min(4, CORES), "textenvs-bfcl")


def _start(root: Path) -> Worker:
    pipe = subprocess.PIPE
    # Its own variables: the keys of this process are none of a clone's business, and the order of sets is the same.
    environment = {
        **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        **{"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"},
    }
    command = [sys.executable, "-P", "-c", program(_WORKER), str(root)]
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment, start_new_session=True
    )
    return Worker(process, max_bytes=_ANSWER_BYTES)
