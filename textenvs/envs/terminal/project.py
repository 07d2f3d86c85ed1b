"""Projects, their faults, and the checks that a repaired project passes.

A *template* draws a project that passes its checks. A *fault* changes it so that at least one check fails, and has the
shell command that repairs it. A *check* is a command with inputs that are drawn when it is made: its expected output is
computed here, and never enters a sandbox.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...sandbox import Shell, ShellState, Tree

#: Seconds of a check.
_CHECK_S = 3


@dataclass(frozen=True)
class Check:
    """A command in the project's folder, and what it must print.

    Args:
        name: Unique in its project.
        command: One line of shell; ``$IN`` is the folder of its inputs.
        expected: Its output, without white space at the end of lines.
        inputs: Files, by name.
    """

    name: str
    command: str
    expected: str
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """A change of a file: ``old``, which stands there once, becomes ``new``."""

    path: str
    old: str
    new: str

    @property
    def undo(self) -> str:
        """The shell command that takes it back, where ``new`` stands in the file."""
        script = (
            f"import pathlib; p = pathlib.Path({self.path!r}); t = p.read_text(encoding='utf-8'); "
            f"p.write_text(t.replace({self.new!r}, {self.old!r}, 1), encoding='utf-8')"
        )
        return f"python3 -c {quoted(script)}"


@dataclass(frozen=True)
class Fault:
    """A fault, and its repair. Several faults of a project are applied in order; they must not need the same text.

    Args:
        kind: Its type; the test split holds out some types.
        symptom: What somebody who uses the project would report; it does not say the cause.
        looks: Commands with which an agent finds it.
        repair: The shell command that repairs it, in the project's folder.
        edits: Changes of files.
        added: New files, by path.
        removed: Files that are gone.
        modes: New permissions, by path.
        command: A shell command that does what the others cannot, for example in the history; run after them.
    """

    kind: str
    symptom: str
    looks: Sequence[str]
    repair: str
    edits: Sequence[Edit] = ()
    added: Mapping[str, str] = field(default_factory=dict)
    removed: Sequence[str] = ()
    modes: Mapping[str, int] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True)
class Question:
    """A question whose answer is in the project, hard to guess: at least 20 bits.

    Args:
        kind: Its type; the test split holds out some types.
        text: What is asked.
        answer: One line; compared without white space around it.
        looks: Commands that find the answer; the last one prints it.
    """

    kind: str
    text: str
    answer: str
    looks: Sequence[str]


@dataclass(frozen=True)
class Project:
    """A drawn project.

    Args:
        about: What it is for, in a sentence or two, for somebody who has never seen it.
        files: Contents by path.
        faults: What can be wrong with it.
        checks: Makes checks, with inputs from this generator: after the episode, from another one.
        modes: Permissions by path, where not 644.
        setup: A shell command that finishes the project, for example its history; run once, before the faults.
        fixed: Files that no repair may change.
        questions: What can be asked about it.
    """

    about: str
    files: Mapping[str, str]
    faults: Sequence[Fault]
    checks: Callable[[random.Random], Sequence[Check]]
    modes: Mapping[str, int] = field(default_factory=dict)
    setup: str = ""
    fixed: frozenset[str] = frozenset()
    questions: Sequence[Question] = ()

    def state(self, shell: Shell, faults: Sequence[Fault] = ()) -> ShellState:
        """Return the shell's state in which this project has these faults.

        Raises:
            ValueError: A fault does not fit to the others: its text is not there once, or its file is not there.
        """
        state = _ran(shell, ShellState.of(Tree.of(self.files, modes=self.modes)), self.setup)
        for fault in faults:
            state = _ran(shell, ShellState.of(_changed(state.project, fault)), fault.command)
        return ShellState.of(state.project)


def verify(shell: Shell, work: Tree, project: Project, rng: random.Random) -> dict[str, bool]:
    """Run the checks on a copy of ``work`` in one new sandbox; return which pass, by name.

    All fail where a file that no repair may change is another one.
    """
    checks = project.checks(rng)
    if any(work.text(path) != project.files[path] for path in project.fixed):
        return {check.name: False for check in checks}
    files, lines = {}, []
    for number, check in enumerate(checks):
        for name, content in check.inputs.items():
            files[f"{number}/{name}"] = content
        lines.append(
            f"(cd /project; export IN=/tmp/in/{number}; timeout {_CHECK_S} bash -c {quoted(check.command)} "
            f"</dev/null >/tmp/out{number} 2>/dev/null)"
        )
    state = ShellState.of(work)
    inputs = Tree.of({f"tmp/in/{path}": content for path, content in files.items()})
    state = ShellState(state.tree.changed(dict(inputs)))
    after, _ = shell.run_now(state, "\n".join(lines), timeout_s=_CHECK_S * len(checks) + 1)
    return {
        check.name: _normal(after.tree.text(f"tmp/out{number}")) == _normal(check.expected)
        for number, check in enumerate(checks)
    }


def edit(kind: str, symptom: str, path: str, old: str, new: str, *, looks: Sequence[str] = ()) -> Fault:
    """Return the fault of one changed place in a file."""
    change = Edit(path, old, new)
    return Fault(kind, symptom, [*looks, f"cat {quoted(path)}"], change.undo, [change])


def quoted(text: str) -> str:
    """Return a word of shell that stands for this text."""
    return "'" + text.replace("'", "'\\''") + "'"


def _ran(shell: Shell, state: ShellState, command: str) -> ShellState:
    if not command:
        return state
    after, result = shell.run_now(state, command)
    if result.status != "ok":
        raise RuntimeError(f"a command of a template failed: {command}\n{result.describe()}")
    return after


def _changed(tree: Tree, fault: Fault) -> Tree:
    contents = {edit.path: tree.text(edit.path) for edit in fault.edits}
    for change in fault.edits:
        text = contents[change.path]
        if text is None or text.count(change.old) != 1:
            there = "no such file" if text is None else f"{change.old!r} stands there {text.count(change.old)} times"
            raise ValueError(f"{fault.kind}: {change.path}: {there}")
        contents[change.path] = text.replace(change.old, change.new)
    files = {path: text for path, text in contents.items() if text is not None} | dict(fault.added)
    modes = {path: tree[path].mode for path in contents} | dict(fault.modes)
    entries = {
        path: entry for path, entry in Tree.of(files, modes=modes).items() if entry.kind == "file" or path not in tree
    }
    for path in fault.modes.keys() - files.keys():
        entries[path] = replace(tree[path], mode=fault.modes[path])
    return tree.changed(entries, frozenset(fault.removed))


def _normal(text: str | None) -> str | None:
    return None if text is None else "\n".join(line.rstrip() for line in text.strip().splitlines())
