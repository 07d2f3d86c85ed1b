"""A small form of ``textenv/terminal``: few kinds of faults, short prompts, and an expert with short repairs."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from random import Random
from shlex import quote
from typing import Any

import numpy as np

from textenvs.envs.terminal.env import Terminal
from textenvs.envs.terminal.tasks import Assignment, TerminalTasks, assignment_of_task
from textenvs.messages import Message
from textenvs.sandbox import Tree
from textenvs.sandbox.shell import PROJECT
from textenvs.task import Task
from textenvs.tools.formats import call

#: Tasks of the template among which one of the kinds is looked for; they belong to no other index.
_BLOCK = 100


@dataclass(frozen=True)
class Correction:
    """Commands that find and correct a kind of faults in all projects, whatever their names are.

    Args:
        files: The files that are read and changed.
        look: A pattern of the lines that are shown.
        pattern: A pattern of what is replaced.
        replacement: What takes its place; ``None``: what the pattern matches in the healthy line.
        line: The number of the line, where the pattern is in others as well.
    """

    files: str
    look: str
    pattern: str
    replacement: str | None = None
    line: str = ""


#: By kind of faults. In three files; of all but one of them, the page of the rules has the right value.
CORRECTIONS: Mapping[str, Correction] = {
    "wrong-unit": Correction("etc/*", ".", ": .*", line="4"),
    "off-by-one": Correction("*/*.py", "- 1]", "- 1]", "]"),
    "figure": Correction("*/*.py", "return sum", "return sum.*"),
    "fewest-readings": Correction("*/*.py", ">=", ">= [0-9]*"),
    "ignored-place": Correction("*/*.py", "==", "== .*:"),
}


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

    It is the terminal with other words: without an introduction, and with a word for each tool. The scripted expert
    reads the page of the rules, looks for the line that may be wrong, corrects it, and finishes. It names files by
    patterns.

    Args:
        kinds: The kinds of faults of the template ``pipeline``, of :data:`CORRECTIONS`.
        seed: Which endless sequence of tasks.
        is_checked: Whether checks are run. Without them rewards mean nothing, and a reset runs no program.
        **options: Those of :class:`~textenvs.envs.terminal.env.Terminal`.
    """

    def __init__(self, *, kinds: Sequence[str], seed: int = 0, is_checked: bool = True, **options: Any) -> None:
        if unknown := sorted({*kinds} - CORRECTIONS.keys()):
            raise ValueError(f"kinds: {unknown[0]!r} is not one of {', '.join(CORRECTIONS)}")
        defaults: dict[str, Any] = {"call_format": "mistral", "max_assistant_turns": 8}
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
        """Read the page, look at the faulty line, correct it, finish."""
        commands = plan(self.assignment)
        command = next((one for one in commands if one not in self.state.commands), None)
        return self.format.write("", [call("finish") if command is None else call("run", command=command)])

    async def _share_of(self, work: Tree, inputs: Random | None = None) -> float:
        return await super()._share_of(work, inputs) if self.is_checked else 0.0


def plan(assignment: Assignment) -> list[str]:
    """Return the expert's commands: it reads the page and the lines that may be wrong, and corrects one."""
    page = _page_of(assignment)
    [fault] = assignment.faults
    correction, [change] = CORRECTIONS[fault.kind], fault.edits
    new = correction.replacement
    if new is None:
        [new] = re.findall(correction.pattern, change.old)
    script = f"{correction.line}s|{correction.pattern}|{new}|"
    files = correction.files
    return [f"cat {page}", f"grep -n -e {quote(correction.look)} {files}", f"sed -i {quote(script)} {files}"]


def _page_of(assignment: Assignment) -> str:
    """Return the path of the page of the rules, which the request names."""
    return str(re.findall(r"`([^`]+\.md)`", assignment.project.about)[-1])


def printed(assignment: Assignment) -> list[str]:
    """Return what the expert's commands print, by the project's files: no command is run."""
    page = _page_of(assignment)
    [fault] = assignment.faults
    [change] = fault.edits
    files = dict(assignment.project.files)
    files[change.path] = files[change.path].replace(change.old, change.new)
    look, folder = CORRECTIONS[fault.kind].look, CORRECTIONS[fault.kind].files
    paths = sorted(path for path in files if path.count("/") == 1 and fnmatch(path, folder))
    lines = [
        f"{f'{path}:' if len(paths) > 1 else ''}{number}:{line}"
        for path in paths
        for number, line in enumerate(files[path].splitlines(), start=1)
        if re.search(look, line)
    ]
    end = f"[exit code 0, in {PROJECT}]"
    return [f"{files[page].rstrip()}\n{end}", "\n".join([*lines, end]), end]
