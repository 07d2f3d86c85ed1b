"""The games of textenv/textworld as task sets: generated ones, by seed, and a folder's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...messages import user
from ...task import SPLITS, Endless, Rows, Split, Task, TaskError, TaskSet
from .games import Kind, dials_text, game_file, games_in, named


@dataclass(frozen=True)
class GameTasks(Endless):
    """Generated games: one for every seed, for training even ones; endless, or the first ``count``.

    A task's prompt only names its game: a player's first message comes from the game itself.
    """

    kind: Kind
    dials: Mapping[str, int]
    folder: Path  # of the generated games
    seed: int = 0
    split: Split = "train"
    count: int | None = None
    text: str = field(init=False)  # of the dials, as every task carries it

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "text", dials_text(self.kind, self.dials))

    @property
    def size(self) -> int | None:  # type: ignore[override]
        return self.count

    @property
    def name(self) -> str:
        return f"TextWorld's {named(self.kind, self.dials)} ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        if self.count is not None and index >= self.count:
            raise IndexError(f"{self.name}: index {index} is outside its {self.count} games")
        seed = self.seed * 2**32 + 2 * index + SPLITS.index(self.split)
        return _task(f"{named(self.kind, self.dials)}/{seed}", self.kind, {"dials": self.text, "seed": seed})


class GameFiles(Rows):
    """A folder's games, by name."""

    def __init__(self, folder: str) -> None:
        self.paths = games_in(folder)
        super().__init__(f"the games of {folder}", [_task(name, "files", {"file": name}) for name in self.paths])


def file_of(task: Task, tasks: TaskSet) -> Path:
    """Return the file of a task's game, generated where there is none yet.

    Raises:
        TaskError: The task is none of ``tasks``: a row chooses no path and no dials. Or its game cannot be generated.
    """
    extra = task.extra
    if isinstance(tasks, GameFiles):
        if extra.get("file") not in tasks.paths:
            raise TaskError(f"task {task.key}: extra_info.file is {extra.get('file')!r}, which is none of {tasks.name}")
        return tasks.paths[extra["file"]]
    assert isinstance(tasks, GameTasks)
    if extra.get("dials") != tasks.text:
        raise TaskError(f"task {task.key}: extra_info.dials is {extra.get('dials')!r}, not {tasks.text!r}")
    seed = extra.get("seed")
    if type(seed) is not int or not 0 <= seed < 2**64:
        raise TaskError(f"task {task.key}: extra_info.seed must be an integer from 0, not {seed!r}")
    return game_file(tasks.folder, tasks.kind, tasks.dials, seed)


def _task(key: str, kind: str, extra: Mapping[str, Any]) -> Task:
    return Task(
        key=key,
        data_source=f"textworld/{kind}",
        prompt=(user(f"TextWorld: {key}"),),
        ground_truth=key,
        ability="game",
        extra=extra,
    )
