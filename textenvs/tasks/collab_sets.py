"""Task sets of the collaboration environments: generated goals, and CollabLLM's rows from files and the Hub."""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..messages import check_conversation, clean_text, copy_messages, user
from ..scoring.collab import Domain
from ..scoring.final_answer import final_answer
from .base import SPLITS, Rows, Split, Task, TaskError, TaskSet
from .collab import goal_of, test_module
from .collab_code import draft_code
from .collab_document import draft_document
from .collab_draft import LEVELS, Draft, Level
from .collab_math import draft_math
from .files import json_rows, parquet_rows
from .hub import hub_rows
from .load import Source

#: One goal in this many is held out for the test split.
_HELD_OUT = 8

_DRAFTERS: Mapping[str, Callable[[random.Random, str], Draft | None]] = {
    "math": draft_math,
    "document": draft_document,
    "code": draft_code,
}

# What CollabLLM tells its simulated users about the three kinds of task, and how a row's user begins without saying
# anything of its content.
_DESCRIPTIONS = {"math": "question answering", "document": "document editing", "code": "code generation"}
_OPENINGS: Mapping[str, Sequence[str]] = {
    "math": (
        "I need help with a math problem.",
        "Can you help me solve a problem?",
        "I am stuck with a math question.",
    ),
    "document": ("I want to write an article.", "Can you help me write a text?", "I need a text written."),
    "code": ("I need a Python function.", "Can you write some Python code for me?", "I need help with a program."),
}
_ABILITIES = {"math": "math", "document": "writing", "code": "code"}
_COLUMNS = "'prompt' and 'completion', or 'single_turn_prompt' and 'single_turn_completion'"
_NOT_METADATA = {"prompt", "completion", "split", "single_turn_prompt", "single_turn_completion"}
_NOT_METADATA |= {"single_turn_metadata", "conv_id", "score", "turn_id", "sessions", "rewards", "data_source"}


@dataclass(frozen=True)
class GeneratedGoals:
    """An endless :class:`~textenvs.tasks.base.TaskSet` of collaboration tasks.

    Args:
        domain: ``"math"``, ``"document"`` or ``"code"``.
        level: ``"easy"``, ``"medium"`` or ``"hard"``: how much the user holds back (3, 4 and 5 pieces of a problem or
            a function; 3, 5 and 7 of a document).
        seed: Another seed is another sequence of tasks.
        split: ``"train"`` or ``"test"``; the two never share a goal, whatever their seeds.

    Raises:
        ValueError: An unknown domain, level or split, or a seed that is not a whole number.
    """

    domain: Domain
    level: Level = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.domain not in _DRAFTERS:
            raise ValueError(f"domain must be one of {', '.join(_DRAFTERS)}, not {self.domain!r}")
        if self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {self.level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")

    @property
    def name(self) -> str:
        """Which tasks these are, in a line."""
        return f"generated {self.level} {self.domain} goals ({self.split}, seed {self.seed})"

    @property
    def size(self) -> None:
        """Endless."""
        return None

    def __getitem__(self, index: int) -> Task:
        """The task at ``index``.

        Raises:
            IndexError: ``index`` is negative.
        """
        if index < 0:
            raise IndexError(f"{self.name}: index {index} is negative; generated tasks count from 0")
        key = f"{self.level}/{self.split}/{self.seed}/{int(index)}"
        rng = random.Random(f"collab-{self.domain}/{key}")
        draft = None
        while draft is None or _split_of(draft.content) != self.split:
            draft = _DRAFTERS[self.domain](rng, self.level)
        return Task(
            key=key,
            data_source=f"textenvs/collab-{self.domain}-{self.level}",
            prompt=(user(draft.opening),),
            ground_truth=draft.ground_truth,
            ability=_ABILITIES[self.domain],
            extra={
                **draft.extra,
                "single_turn_prompt": draft.request,
                "task_desc": _DESCRIPTIONS[self.domain],
                "pieces": [piece.to_json() for piece in draft.pieces],
                "level": self.level,
            },
        )


def load_goals(source: Source, domain: Domain, *, split: Split = "train", seed: int = 0) -> TaskSet:
    """The collaboration tasks that ``source`` names. A file is read once per process.

    Args:
        source: One of

            * a :class:`~textenvs.tasks.base.TaskSet`, returned as it is;
            * a ``.jsonl`` or ``.parquet`` file whose rows :func:`from_row` can read;
            * ``"generated:easy"``, ``"generated:medium"``, ``"generated:hard"``;
            * ``"hub:collabllm/collabllm-multiturn-math-hard"``, or ``"hub:REPOSITORY:CONFIGURATION"``;
            * a sequence of these names, for their rows one after the other;
            * ``None``: the generated easy tasks.

        domain: ``"math"``, ``"document"`` or ``"code"``: how rows are read.
        split: Which half of a generated source, or which split of one on the Hub. A file is one split already.
        seed: The seed of generated tasks.

    Raises:
        ValueError: An unknown split, level or kind of source.
        TaskError: Rows that cannot be used, listed by file, row and column.
        ImportError: The source needs a library that is not installed; the message names the extra.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if source is None:
        return GeneratedGoals(domain, "easy", seed, split)
    if isinstance(source, TaskSet):
        return source
    if isinstance(source, (str, Path)):
        return _named(source, domain, split, seed)
    parts = [_named(each, domain, split, seed) for each in source]
    if endless := [part.name for part in parts if part.size is None]:
        raise ValueError(f"{endless[0]} is endless and cannot be one of several sources")
    tasks = [
        replace(part[index], key=f"{place}/{part[index].key}")
        for place, part in enumerate(parts)
        for index in range(part.size or 0)
    ]
    return Rows(" + ".join(part.name for part in parts), tasks)


def from_row(row: Mapping[str, Any], domain: Domain, *, key: str, where: str, data_source: str) -> Task:
    r"""A task from a row of a file or of the Hub.

    It has one of these shapes:

    * verl's schema, as verl's recipe for CollabLLM and :func:`~textenvs.tasks.write_parquet` write it;
    * a single-turn row: ``prompt`` and ``completion``, both text;
    * a row of CollabLLM's data: ``single_turn_prompt``, ``single_turn_completion``, ``single_turn_metadata``, and
      perhaps ``prompt``, the conversation so far, which the episode then begins with.

    Args:
        row: The row. Without ``single_turn_metadata`` its other columns are the metadata.
        domain: How the reference is read: a solution that ends in ``\boxed{...}`` or ``#### ...``, a document, or
            code with its tests.
        key: The task's key.
        where: Named in errors, for example ``row 7``.
        data_source: The task's data source where the row has none.

    Raises:
        TaskError: A column is missing or malformed.
    """
    if "reward_model" in row:
        task = Task.from_row(row, key=key, where=where)
    else:
        task = _single_turn(row, domain, key, where, data_source)
    goal_of(task, domain)  # so that a bad row is met when it is read, not in the middle of a run
    return task


def _single_turn(row: Mapping[str, Any], domain: Domain, key: str, where: str, data_source: str) -> Task:
    nested = row.get("single_turn_prompt") is not None
    names = ("single_turn_prompt", "single_turn_completion") if nested else ("prompt", "completion")
    texts = []
    for name in names:
        value = row.get(name)
        if value is None:
            raise TaskError(f"{where}: column {name!r} is missing; a row needs {_COLUMNS}; it has {sorted(row)}")
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{where}: column {name!r} must be text with something in it")
        texts.append(clean_text(value).strip())
    request, reference = texts
    extra: dict[str, Any] = {"single_turn_prompt": request, "task_desc": _DESCRIPTIONS[domain]}
    metadata = _metadata(row, where)
    if metadata:
        extra["single_turn_metadata"] = metadata
    truth: str | None = reference
    if domain == "math":
        extra["answer"] = reference
        truth = final_answer(reference) or (reference if len(reference) <= 60 else None)
        if truth is None:
            raise TaskError(
                f"{where}: column {names[1]!r} has no final answer in \\boxed{{...}} or after ####; it ends in "
                f"{reference[-40:]!r}"
            )
    if domain == "code" and test_module(metadata, reference) is None:
        raise TaskError(f"{where}: there are no tests in 'test' of the metadata, nor of the reference as JSON")
    if nested and row.get("prompt") is not None:
        try:
            prompt = copy_messages(check_conversation(row["prompt"], "column 'prompt'"))
        except ValueError as error:
            raise TaskError(f"{where}: {error}") from error
        if not prompt or prompt[-1]["role"] != "user":
            raise TaskError(f"{where}: column 'prompt' must end in a user's message, which the assistant replies to")
    else:
        openings = _OPENINGS[domain]
        prompt = (user(openings[hashlib.sha256(request.encode()).digest()[0] % len(openings)]),)
    own = row.get("data_source")
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=prompt,
        ground_truth=truth,
        ability=_ABILITIES[domain],
        extra=extra,
    )


def _metadata(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = row.get("single_turn_metadata")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: column 'single_turn_metadata' is text, but not JSON ({error})") from error
    if given is None:
        given = {name: value for name, value in row.items() if name not in _NOT_METADATA}
    if not isinstance(given, Mapping):
        raise TaskError(f"{where}: column 'single_turn_metadata' must be a mapping, not {type(given).__name__}")
    return dict(given)


def _named(source: str | Path, domain: Domain, split: Split, seed: int) -> TaskSet:
    text = str(source)
    kind, _, rest = text.partition(":")
    if kind == "generated":
        if rest not in LEVELS:
            raise ValueError(f"{text!r}: unknown level; known are {', '.join(f'generated:{name}' for name in LEVELS)}")
        return GeneratedGoals(domain, rest, seed, split)  # type: ignore[arg-type]
    if kind == "hub":
        repository, _, config = rest.partition(":")
        if not repository:
            raise ValueError(f"{text!r}: name the data set, as 'hub:collabllm/collabllm-multiturn-math-hard'")
        return _hub(repository, config or None, domain, split)
    path = Path(source).expanduser()
    if path.suffix not in (".jsonl", ".parquet"):
        raise ValueError(
            f"{text!r}: not a task source; it must be a .jsonl or .parquet file, 'generated:LEVEL', "
            "'hub:REPOSITORY' or None"
        )
    stamp = (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else None
    return _file(path.absolute(), stamp, domain)


@functools.lru_cache(maxsize=16)
def _file(path: Path, stamp: tuple[int, int] | None, domain: Domain) -> Rows:
    def make(number: int, row: dict[str, Any]) -> Task:
        key = f"{path.stem}/{number}"
        return from_row(row, domain, key=key, where=f"row {number}", data_source=f"collabllm/{domain}")

    if path.suffix == ".jsonl":
        return _without_repeats(json_rows(path, make, columns=_COLUMNS))
    return _without_repeats(parquet_rows(path, make))


@functools.lru_cache(maxsize=16)
def _hub(repository: str, config: str | None, domain: Domain, split: Split) -> Rows:
    def make(number: int, row: dict[str, Any]) -> Task:
        key = f"{split}/{number}"
        return from_row(row, domain, key=key, where=f"row {number}", data_source=repository)

    return _without_repeats(hub_rows(repository, config, make, split=split))


def _without_repeats(rows: Rows) -> Rows:
    """CollabLLM's data has a row for every sampled reply; what is played is the conversation before it."""
    first: dict[str, Task] = {}
    for index in range(rows.size):
        task = rows[index]
        first.setdefault(json.dumps([task.prompt, task.extra.get("single_turn_prompt")]), task)
    return rows if len(first) == rows.size else Rows(rows.name, first.values())


def _split_of(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"
