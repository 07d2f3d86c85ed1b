"""A small form of ``textenv/terminal``: few kinds of faults, short prompts, and an expert whose repair is one line."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from shlex import quote
from typing import Any

import numpy as np

from textenvs.envs.terminal.env import Terminal
from textenvs.envs.terminal.tasks import Assignment, TerminalTasks, assignment_of_task
from textenvs.messages import Message
from textenvs.sandbox import Tree
from textenvs.task import Task
from textenvs.tools.formats import call

#: Tasks of the template among which one of the kinds is looked for; they belong to no other index.
_BLOCK = 100
#: Lists the programs and the settings, and none of the files of readings.
_LIST = "ls */*.py etc/*"


@dataclass(frozen=True)
class Repairs(TerminalTasks):
    """Repairs of projects of the template ``pipeline``, of some kinds of faults.

    Args:
        kinds: The kinds of faults.
    """

    templates: Sequence[str] | None = ("pipeline",)
    goals: Sequence[Any] | None = ("repair",)
    kinds: tuple[str, ...] = ()

    def _generate(self, index: int) -> Task:
        return _repair(self.seed, self.kinds, index)


@functools.lru_cache(1000)
def _repair(seed: int, kinds: tuple[str, ...], index: int) -> Task:
    """Return the first task of an index's block whose fault is of one of the kinds."""
    tasks = TerminalTasks(seed=seed, templates=["pipeline"], goals=["repair"])
    block = (tasks[index * _BLOCK + place] for place in range(_BLOCK))
    return next(task for task in block if assignment_of_task(task).faults[0].kind in kinds)


class SmallTerminal(Terminal):
    """Repair one line of a small project.

    It is the terminal with other words: without an introduction, and with a line for each tool. The scripted expert
    lists the files, reads the page of the rules and the faulty file, whose lines it numbers, replaces the line, and
    finishes.

    Args:
        kinds: The kinds of faults of the template ``pipeline``.
        seed: Which endless sequence of tasks.
        is_checked: Whether checks are run. Without them, the expert's conversations are the same and take a quarter of
            the time, and rewards mean nothing.
        **options: Those of :class:`~textenvs.envs.terminal.env.Terminal`.
    """

    def __init__(self, *, kinds: Sequence[str], seed: int = 0, is_checked: bool = True, **options: Any) -> None:
        defaults = {"call_format": "mistral", "max_assistant_turns": 8}
        super().__init__(Repairs(seed=seed, kinds=tuple(kinds)), **defaults | options)
        self.is_checked = is_checked

    async def opening(self, task: Task) -> Sequence[Message]:
        """Return the user's words alone."""
        return [message for message in await super().opening(task) if message["role"] == "user"]

    def tool_instructions(self) -> str:
        """Return the names of the tools and of their arguments."""
        parameters = {tool.name: tool.schema["function"]["parameters"].get("required", ()) for tool in self.tools}
        return ", ".join(f"{name}({', '.join(required)})" for name, required in parameters.items())

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Look at the files, replace the faulty line, finish."""
        assert self.state.beginning is not None
        commands = plan(self.assignment, self.state.beginning)
        command = next((one for one in commands if one not in self.state.commands), None)
        return self.format.write("", [call("finish") if command is None else call("run", command=command)])

    async def _share_of(self, work: Tree, inputs: Random | None = None) -> float:
        return await super()._share_of(work, inputs) if self.is_checked else 0.0


def plan(assignment: Assignment, files: Tree) -> list[str]:
    """Return the expert's commands: it lists the files, reads the page and the faulty file, and replaces a line."""
    page = re.findall(r"`([^`]+\.md)`", assignment.project.about)[-1]
    [change] = assignment.faults[0].edits
    text = files.text(change.path) or ""
    number = text[: text.index(change.new)].count("\n") + 1
    line = change.old.rstrip("\n").replace("\\", "\\\\")
    script = quote(f"{number}c\\{line}")
    return [_LIST, f"cat {quote(page)}", f"grep -n . {quote(change.path)}", f"sed -i {script} {quote(change.path)}"]
