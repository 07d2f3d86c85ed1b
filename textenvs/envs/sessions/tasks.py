"""Generated lives as tasks: seeded and endless."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...messages import Messages, text_of, user
from ...task import Endless, Split, Task, TaskError
from .life import Life, key_of, life_of, scale_of
from .view import rules, session_text

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")


@dataclass(frozen=True)
class SessionTasks(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of lives.

    Args:
        level: ``"easy"`` (20 sessions), ``"medium"`` (50) or ``"hard"`` (100).
        seed: Another seed is other lives.
        split: ``"train"`` or ``"test"``: names and wordings of one are never in the other.
        own: Parts of the level's :class:`~textenvs.envs.sessions.life.Scale` to replace: ``sessions``, ``people``,
            ``things``, ``capacity``.

    Raises:
        ValueError: An unknown level or split, a seed that is no integer, or a scale that no life can have.
    """

    level: Level = "easy"
    seed: int = 0
    split: Split = "train"
    own: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check_choices(LEVELS)
        scale_of(self.level, self.own)

    @property
    def name(self) -> str:
        own = "".join(f", {name}={value}" for name, value in self.own.items())
        return f"generated {self.level} lives ({self.split}, seed {self.seed}{own})"

    def _generate(self, index: int) -> Task:
        return task_of(life_of(key_of(self.level, self.split, self.seed, self.own, index)))


def task_of(life: Life) -> Task:
    """Return the task of a life; its ground truth is the right answers, a line each."""
    codes = "".join(f"~{number}={code}" for number, code in life.codes)
    silent = "".join(f"~{number}" for number in life.silent)
    return Task(
        key=f"{life.key}{codes}{silent}",
        data_source=f"textenvs/sessions-{life.key.partition('/')[0]}",
        prompt=opening_of(life, 0, ""),
        ground_truth="\n".join(life.answers),
        ability="memory",
        extra={"life": life.key, "codes": [list(one) for one in life.codes], "silent": list(life.silent)},
    )


def opening_of(life: Life, place: int, notebook: str) -> Messages:
    """Return the messages that a session begins with: the rules, the notebook, and what is said and asked."""
    return (user(f"{rules(life)}\n\n{session_text(life, life.sessions[place], notebook)}"),)


def life_of_task(task: Task) -> Life:
    """Return the life of a task; ``TaskError``: it has none, or not the one that this version draws."""
    try:
        codes = tuple((operator.index(number), str(code)) for number, code in task.extra.get("codes", ()))
        silent = tuple(operator.index(number) for number in task.extra.get("silent", ()))
        life = life_of(str(task.extra["life"]), codes, silent)
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"task {task.key}: it is no generated life: {error}") from None
    if task.ground_truth != "\n".join(life.answers) or not task.prompt:
        raise TaskError(f"task {task.key}: its answers are not those that this version draws; make the rows again")
    if text_of(task.prompt[-1]) != text_of(opening_of(life, 0, "")[0]):
        raise TaskError(f"task {task.key}: its opening is not the one that this version draws; make the rows again")
    return life
