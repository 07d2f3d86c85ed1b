"""Tasks and task sets: what an environment is asked to play.

A task is one row of data. Its fields are those of verl's Parquet schema, so rows travel between the two unchanged:
``data_source, prompt, ability, reward_model{style, ground_truth}, extra_info, agent_name``.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from .messages import Messages, check_conversation, clean_text, copy_messages, text_of
from .text import plural

Split = Literal["train", "test"]
ChoiceT = TypeVar("ChoiceT")
SPLITS: tuple[str, ...] = ("train", "test")


def split_by_hash(content: str, held_out: int) -> Split:
    """Return the split that ``content`` belongs to, for any seeds: one in ``held_out`` is a test problem."""
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % held_out == 0 else "train"


def split_choices(choices: Sequence[ChoiceT], split: Split, held_out: int = 4) -> tuple[ChoiceT, ...]:
    """Return those of ``choices`` (wordings, stories, ...) that a split draws from; the two splits share none.

    The order of their hashes decides: the first in ``held_out`` of them, at least one, are the test split's. A single
    choice belongs to both.

    Raises:
        ValueError: No choices, or two that are equal.
    """
    texts = tuple(str(choice) for choice in choices)
    test = _test_texts(texts, held_out)
    if len(texts) == 1:
        return tuple(choices)
    return tuple(choice for choice, text in zip(choices, texts, strict=True) if (text in test) == (split == "test"))


@functools.lru_cache(maxsize=4096)
def _test_texts(texts: tuple[str, ...], held_out: int) -> frozenset[str]:
    ranked = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())
    if not ranked or len(set(ranked)) < len(ranked):
        raise ValueError(f"give at least one choice and none twice, not {list(texts)!r}")
    return frozenset(ranked[: max(1, len(ranked) // held_out)])


class TaskError(ValueError):
    """Data that cannot be played: the message names the file, the row and the column, and what to do."""


@dataclass(frozen=True)
class Task:
    """One problem, immutable; the fields but the key are verl's."""

    key: str  # unique within its task set, and stable between runs
    data_source: str  # where the row comes from, for example ``openai/gsm8k``; results are reported per source
    prompt: Messages  # the opening messages (at least the user's question)
    ground_truth: Any  # what the answer is checked against; never part of an observation or of ``info``
    ability: str = ""  # the skill the row tests, for example ``math``
    style: str = "rule"  # how it is scored: verl's ``reward_model.style``
    extra: Mapping[str, Any] = field(default_factory=dict)  # verl's ``extra_info``
    agent_name: str | None = None  # verl's name of the loop that should play the row

    @property
    def question(self) -> str:
        return next((text_of(m) for m in reversed(self.prompt) if m["role"] == "user"), "")

    def to_row(self) -> dict[str, Any]:
        """Return the row in verl's Parquet schema; the key travels as ``extra_info.key``."""
        row: dict[str, Any] = {
            "data_source": self.data_source,
            "prompt": [dict(message) for message in self.prompt],
            "ability": self.ability,
            "reward_model": {"style": self.style, "ground_truth": self.ground_truth},
            "extra_info": {**self.extra, "key": self.key},
        }
        if self.agent_name is not None:
            row["agent_name"] = self.agent_name
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, key: str, where: str = "task row") -> Task:
        """Read a row in verl's schema; ``key`` is for one without ``extra_info.key``; ``where`` stands in errors."""
        if not isinstance(row, Mapping):
            raise TaskError(f"{where}: a {type(row).__name__}, not a mapping of columns")
        for column in ("data_source", "prompt", "reward_model"):
            if row.get(column) is None:
                raise TaskError(f"{where}: column {column!r} is missing; the row has {sorted(map(str, row))}")
        reward_model = row["reward_model"]
        truth = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
        if truth is None or (isinstance(truth, str) and not truth.strip()):
            raise TaskError(f"{where}: column 'reward_model' has no ground_truth, so no answer can be checked")
        try:
            prompt = copy_messages(check_conversation(row["prompt"], "column 'prompt'"))
        except (TypeError, ValueError) as error:
            raise TaskError(f"{where}: {error}") from error
        if not prompt:
            raise TaskError(f"{where}: column 'prompt' is empty")
        extra = row.get("extra_info") or {}
        if not isinstance(extra, Mapping):
            raise TaskError(f"{where}: column 'extra_info' must be a mapping, not {type(extra).__name__}")
        extra = dict(extra)
        own = extra.pop("key", None)
        return cls(
            key=clean_text(str(key if own is None else own)),
            data_source=clean_text(str(row["data_source"])),
            prompt=prompt,
            ground_truth=truth,
            ability=str(row.get("ability") or ""),
            style=str(reward_model.get("style") or "rule"),
            extra=extra,
            agent_name=row.get("agent_name"),
        )


@runtime_checkable
class TaskSet(Protocol):
    """Tasks by index. Finite sets have a ``size``; generated ones may be endless (``size`` is ``None``).

    ``self[index]`` depends on the index alone (no state, no global randomness), so a set can be shared by any number
    of environments and pickled cheaply. Finite sets raise ``IndexError`` outside ``range(size)``.
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...

    def __getitem__(self, index: int) -> Task: ...


class Rows:
    """A finite :class:`TaskSet`: tasks that are in memory, at least one, with keys that differ."""

    def __init__(self, name: str, tasks: Iterable[Task]) -> None:
        self.name = name
        self._tasks = tuple(tasks)
        if not self._tasks:
            raise TaskError(f"{name}: there is no task in it; give at least one row")
        first: dict[str, int] = {}
        for row, task in enumerate(self._tasks, start=1):
            if not isinstance(task, Task):
                raise TaskError(f"{name}: row {row} is a {type(task).__name__}; give Task(...) or Task.from_row(...)")
            if first.setdefault(task.key, row) != row:
                raise TaskError(
                    f"{name}: rows {first[task.key]} and {row} have the same key {task.key!r} (column 'extra_info', "
                    "field 'key'); give each row its own, or leave the field out"
                )
        self.size = len(self._tasks)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise IndexError(f"{self.name}: index {index} is outside its {plural(self.size, 'task')}")
        return self._tasks[index]

    def __repr__(self) -> str:
        return f"Rows({self.name!r}, {plural(self.size, 'task')})"


class Endless(ABC):
    """An endless, generated :class:`TaskSet`: a task for every integer, by the number alone.

    Subclasses are frozen dataclasses with ``seed`` and ``split``, perhaps ``level``. They define :meth:`_generate`, and
    either ``levels`` and ``what``, or ``name`` and a ``__post_init__`` that calls :meth:`check_choices`.
    """

    #: The values of ``level``.
    levels: ClassVar[Collection[Any]] = ()
    #: What the tasks are called in the set's name.
    what: ClassVar[str] = "tasks"

    seed: int
    split: Split

    def __post_init__(self) -> None:
        self.check_choices(self.levels)

    def check_choices(self, levels: Collection[Any] = ()) -> None:
        """Raise ``ValueError`` for an unknown level or split, or a seed that is not an integer."""
        if levels and (level := getattr(self, "level", None)) not in levels:
            raise ValueError(f"level must be one of {', '.join(levels)}, not {level!r}")
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {self.split!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ValueError(f"seed must be an integer, not {self.seed!r}")

    @property
    def name(self) -> str:
        return f"generated {getattr(self, 'level', '')} {self.what} ({self.split}, seed {self.seed})"

    @property
    def size(self) -> None:
        return None

    def __getitem__(self, index: int) -> Task:
        if index < 0:
            raise IndexError(f"{self.name}: index {index} is negative; generated tasks count from 0")
        return self._generate(int(index))

    @abstractmethod
    def _generate(self, index: int) -> Task:
        """Return the task at ``index``, which is at least 0."""


#: Twins of a fact, the task itself included, where there are that many: a policy that misses it is right in 1/7.
TWINS = 7


def proven_facts(
    task: Task, others: Iterable[tuple[str, Iterable[Task]]], *, least: int = 2, most: int | None = TWINS
) -> list[tuple[str, list[Task]]]:
    """Return the facts of a task that enough twins prove (``TextEnv.twin_worlds``): their ground truths all differ.

    Args:
        task: The task, which is the first twin of each fact.
        others: Facts in words, with tasks in which they have other values; of equal ground truths the first one counts.
        least: Twins without which a fact is left out.
        most: Twins after which no other task is tried; ``None`` tries all.
    """
    facts = []
    for name, tasks in others:
        twins = {task.ground_truth: task}
        for other in tasks:
            twins.setdefault(other.ground_truth, other)
            if len(twins) == most:
                break
        if len(twins) >= least:
            facts.append((name, list(twins.values())))
    return facts


def joined(parts: Sequence[TaskSet]) -> TaskSet:
    """Join the tasks of several finite sets, in order."""
    if not parts:
        raise ValueError("tasks is an empty sequence; name at least one source")
    if len(parts) == 1:
        return parts[0]
    if endless := [part.name for part in parts if part.size is None]:
        raise ValueError(f"{endless[0]} is endless and cannot be one of several sources")
    # Keys are unique within a source only; its place makes them unique here.
    tasks = [
        replace(part[index], key=f"{place}/{part[index].key}")
        for place, part in enumerate(parts)
        for index in range(part.size or 0)
    ]
    return Rows(" + ".join(part.name for part in parts), tasks)
