"""A small form of ``textenv/terminal``: few kinds of faults, short prompts, and an expert with short repairs."""

from __future__ import annotations

import ast
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
#: How often a careless policy corrects any kind of faults, and how often it ends before the next command.
_WRONG_KIND, _EARLY_END = 0.3, 0.12


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
    opens the page of the rules, looks for the line that may be wrong, corrects it, and finishes. It names files by
    patterns.

    Args:
        kinds: The kinds of faults of the template ``pipeline``, of :data:`CORRECTIONS`.
        seed: Which endless sequence of tasks.
        is_checked: Whether checks are run. Without them rewards mean nothing, and a reset runs no program.
        reads_files: Whether a project with the files of the healthy one, or of the faulty one, has its verdict without
            a check: 1 or 0. Programs in Python may be formatted differently. All other projects are checked.
        opens_page: Whether the scripted replies, the careless ones too, begin with the page of the rules.
        **options: Those of :class:`~textenvs.envs.terminal.env.Terminal`.
    """

    def __init__(
        self,
        *,
        kinds: Sequence[str],
        seed: int = 0,
        is_checked: bool = True,
        reads_files: bool = False,
        opens_page: bool = True,
        **options: Any,
    ) -> None:
        if unknown := sorted({*kinds} - CORRECTIONS.keys()):
            raise ValueError(f"kinds: {unknown[0]!r} is not one of {', '.join(CORRECTIONS)}")
        defaults: dict[str, Any] = {"call_format": "mistral", "max_assistant_turns": 8}
        super().__init__(Repairs(seed=seed, kinds=tuple(kinds)), **defaults | options)
        self.is_checked, self.reads_files, self.opens_page = is_checked, reads_files, opens_page

    async def opening(self, task: Task) -> Sequence[Message]:
        """Return the user's words alone."""
        return [message for message in await super().opening(task) if message["role"] == "user"]

    def tool_instructions(self) -> str:
        """Return the names of the tools and of their arguments."""
        parameters = {tool.name: tool.schema["function"]["parameters"].get("required", ()) for tool in self.tools}
        return ", ".join(f"{name}({', '.join(required)})" for name, required in parameters.items())

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Reply with the next command of the expert's plan, and finish after the last."""
        command = next((one for one in self._plan if one not in self.state.commands), None)
        return self.format.write("", [call("finish") if command is None else call("run", command=command)])

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Finish in the place of the correction; any other reply is the expert's."""
        if len(self.state.commands) + 1 < len(self._plan):
            return self.demonstration(rng)
        return self.format.write("", [call("finish")])

    @property
    def _plan(self) -> list[str]:
        return plan(self.assignment)[0 if self.opens_page else 1 :]

    async def _share_of(self, work: Tree, inputs: Random | None = None) -> float:
        if not self.is_checked:
            return 0.0
        if self.reads_files:
            project, beginning = self.assignment.project, self.state.beginning
            if _are_alike(work, Tree.of(project.files, modes=project.modes)):
                return 1.0
            if beginning is not None and _are_alike(work, beginning):
                return 0.0
        return await super()._share_of(work, inputs)


def _are_alike(tree: Tree, other: Tree) -> bool:
    """Return whether two trees have the same files: their times may differ, and the format of programs in Python."""
    return tree.keys() == other.keys() and all(
        (entry.kind, entry.mode) == (other[path].kind, other[path].mode)
        and (entry.content == other[path].content or _is_same_program(path, entry.content, other[path].content))
        for path, entry in tree.items()
    )


def _is_same_program(path: str, content: bytes, other: bytes) -> bool:
    try:
        return path.endswith(".py") and ast.dump(ast.parse(content)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def plan(assignment: Assignment, kind: str | None = None) -> list[str]:
    """Return the expert's commands: it reads the page and the lines that may be wrong, and corrects one.

    Args:
        assignment: The task.
        kind: The kind of faults that it corrects; ``None`` for the right one. Another one's line is written as it is.
    """
    [fault] = assignment.faults
    [change] = fault.edits
    correction = CORRECTIONS[kind or fault.kind]
    new = correction.replacement
    if new is None:
        texts = [change.old] if kind in (None, fault.kind) else _read(assignment, correction).values()
        new = next(match for text in texts for match in re.findall(correction.pattern, text))
    script = f"{correction.line}s|{correction.pattern}|{new}|"
    return [
        f"cat {_page_of(assignment)}",
        f"grep -n -e {quote(correction.look)} {correction.files}",
        f"sed -i {quote(script)} {correction.files}",
    ]


def careless_plan(assignment: Assignment, kinds: Sequence[str], rng: Random) -> tuple[str, int]:
    """Return what a careless policy does: the kind of faults that it corrects, and after how many commands it ends."""
    kind = rng.choice(kinds) if rng.random() < _WRONG_KIND else assignment.faults[0].kind
    commands = len(plan(assignment))
    return kind, next((number for number in range(1, commands) if rng.random() < _EARLY_END), commands)


def _page_of(assignment: Assignment) -> str:
    """Return the path of the page of the rules, which the request names."""
    return str(re.findall(r"`([^`]+\.md)`", assignment.project.about)[-1])


def printed(assignment: Assignment, kind: str | None = None) -> list[str]:
    """Return what the commands of :func:`plan` print, by the project's files: no command is run."""
    page = assignment.project.files[_page_of(assignment)]
    correction = CORRECTIONS[kind or assignment.faults[0].kind]
    files = _read(assignment, correction)
    lines = [
        f"{f'{path}:' if len(files) > 1 else ''}{number}:{line}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if re.search(correction.look, line)
    ]
    end = f"[exit code 0, in {PROJECT}]"
    return [f"{page.rstrip()}\n{end}", "\n".join([*lines, end]), end]


def _read(assignment: Assignment, correction: Correction) -> dict[str, str]:
    """Return the files that a correction is about, as they are with the fault, in the shell's order."""
    [change] = assignment.faults[0].edits
    files = dict(assignment.project.files)
    files[change.path] = files[change.path].replace(change.old, change.new)
    paths = sorted(path for path in files if path.count("/") == 1 and fnmatch(path, correction.files))
    return {path: files[path] for path in paths}
