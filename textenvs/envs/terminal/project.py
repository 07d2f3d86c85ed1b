"""Projects, their faults, and the checks that a repaired project passes.

A *template* draws a project that passes its checks. A *fault* changes it so that at least one check fails, and has the
shell command that repairs it. A *check* is a command with inputs that are drawn when it is made: its expected output is
computed here, and never enters a sandbox.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from ...event_loop import together
from ...sandbox import SandboxFailure, Shell, ShellState, Tree
from ...sandbox.result import ShellLimits
from ...sandbox.shell import CLOCK_S

#: CPU seconds of a process of a check.
_CHECK_CPU_S = 3
#: Seconds of a check, which depend on what else the machine does.
_CHECK_S = 20.0
#: The index of the project's repository.
_INDEX = ".git/index"
#: MiB and files for the inputs of a check, beside those of the project.
_INPUTS_MB, _INPUT_FILES = 8, 1024


@dataclass(frozen=True)
class Check:
    """A command in the project's folder, and what it must print.

    Args:
        name: Unique in its project.
        command: One line of shell; ``$IN`` is the folder of its inputs.
        expected: Its output, without errors and without white space at the end of lines; at most 64 KiB.
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

    def of_lines(self, text: str) -> Edit:
        """Return this edit of a file's text as one of whole lines."""
        start = text.index(self.old)
        end = start + len(self.old.removesuffix("\n"))
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        lines = text[first : last if last >= 0 else len(text)]
        ends = "\n" * self.old.endswith("\n")
        return Edit(self.path, lines + ends, (lines + ends).replace(self.old, self.new))

    @property
    def undo(self) -> str:
        """The shell command that takes it back, where ``new`` stands in the file."""
        script = (
            f"import pathlib; p = pathlib.Path({self.path!r}); t = p.read_text(encoding='utf-8'); "
            f"p.write_text(t.replace({self.new!r}, {self.old!r}, 1), encoding='utf-8')"
        )
        return f"python3 -c {quote(script)}"


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
        agreed: The sentence of the project's page that it goes against; empty where it is against no rule.
        followed: The sentence that would state what the faulty program does; empty where it is against no rule, or
            where other files tell that this sentence does not hold.
        page: The path of this page.
        alternatives: Numbers of other options of the rule, each of which the page could state in that place: the
            faulty program would be the same, and its repair another one.
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
    agreed: str = ""
    followed: str = ""
    page: str = ""
    alternatives: Sequence[int] = ()

    @property
    def is_visible(self) -> bool:
        """True where :meth:`Project.has_undone` can tell: it changes something else than what a command does."""
        return bool(self.edits or self.added or self.removed or self.modes)


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
        later: A shell command for what others did since; run after the faults.
        keeps_history: Whether all checks fail where the first tip of git's branch ``main`` is no ancestor of the last.
    """

    about: str
    files: Mapping[str, str]
    faults: Sequence[Fault]
    checks: Callable[[random.Random], Sequence[Check]]
    modes: Mapping[str, int] = field(default_factory=dict)
    setup: str = ""
    fixed: frozenset[str] = frozenset()
    questions: Sequence[Question] = ()
    later: str = ""
    keeps_history: bool = False

    def is_kept(self, work: Tree) -> bool:
        """Return whether the files that no repair may change have their contents in ``work``."""
        entries = ((work.get(path), self.files[path].encode()) for path in self.fixed)
        return all(entry is not None and (entry.kind, entry.content) == ("file", content) for entry, content in entries)

    def has_undone(self, fault: Fault, work: Tree) -> bool:
        """Return whether a fault's changes of files are taken back in ``work``; another repair of it is not seen."""
        return (
            all(self._has_undone_edit(edit, work.text(edit.path) or "") for edit in fault.edits)
            and all(path not in work for path in fault.added)
            and all(path in work and work.text(path) == self.files.get(path) for path in fault.removed)
            and all(path in work and work[path].mode == self.modes.get(path, 0o644) for path in fault.modes)
        )

    def _has_undone_edit(self, edit: Edit, text: str) -> bool:
        """Return whether a text has all lines that an edit took away, and none of those that it wrote.

        Where it only moved or repeated lines, the edit's own text decides.
        """
        before = self.files[edit.path].splitlines()
        after = self.files[edit.path].replace(edit.old, edit.new).splitlines()
        lines, gone, written = set(text.splitlines()), set(before) - set(after), set(after) - set(before)
        if not gone and not written:
            return edit.old in text and edit.new not in text
        return lines.issuperset(gone) and lines.isdisjoint(written)

    async def state(self, shell: Shell, faults: Sequence[Fault] = ()) -> ShellState:
        """Return the shell's state in which this project has these faults.

        Raises:
            ValueError: A fault does not fit to the others: its text is not there once, its file is not there, or its
                command fails.
            SandboxFailure: A command could not be run to its end.
        """
        state = await _ran(shell, ShellState.of(Tree.of(self.files, modes=self.modes)), self.setup)
        for fault in faults:
            state = await _ran(shell, ShellState.of(_changed(state.project, fault)), fault.command)
        state = await _ran(shell, ShellState.of(state.project), self.later)
        files = without_stat_data(state.project).items()
        # Times would say which files a fault has changed.
        return ShellState.of(Tree({path: replace(entry, mtime_ns=0) for path, entry in files}))


def without_stat_data(work: Tree) -> Tree:
    """Return a project's files without what git's index has from the machine: times, devices, owners, sizes.

    ``git status`` writes these anew, and they differ between two runs of the same command.
    """
    index = work.get(_INDEX)
    if index is None or index.kind != "file":
        return work
    folder = _INDEX.rpartition("/")[0]
    content = _index_without_stat_data(index.content)
    return work.changed(
        {folder: replace(work[folder], mtime_ns=0), _INDEX: replace(index, content=content, mtime_ns=0)}
    )


def _index_without_stat_data(index: bytes) -> bytes:
    """Return git's index with zeros for what is not of the repository; another format than 2 or 3 as it is.

    The format: https://git-scm.com/docs/index-format. An entry has ten numbers of four bytes (the times of change twice
    each, device, inode, mode, owner, group, size), a hash of 20 bytes, flags, and a name that zeros fill up to eight.
    """
    signature, version, count = struct.unpack_from(">4sII", index) if len(index) > 32 else (b"", 0, 0)
    if signature != b"DIRC" or version not in (2, 3):
        return index
    body, place = bytearray(index[:-20]), 12
    for _ in range(count):
        name = place + 62
        if len(body) <= name:
            return index
        name += 2 * bool(body[place + 60] & 0x40)  # more flags, of version 3
        body[place : place + 24] = bytes(24)
        body[place + 28 : place + 40] = bytes(12)
        end = body.find(b"\0", name)
        if end < 0:
            return index
        place += (end - place) // 8 * 8 + 8
    return bytes(body) + hashlib.sha1(body, usedforsecurity=False).digest()


async def verify(
    shell: Shell,
    work: Tree,
    project: Project,
    rng: random.Random,
    *,
    one_input: bool = False,
    beginning: Tree | None = None,
) -> dict[str, bool]:
    """Run the checks on copies of ``work``, each in a new sandbox; return which pass, by name.

    Of the checks with the same command, the others run only where the first passes: else all of them fail. All checks
    fail where a file that no repair may change is another one.

    Args:
        shell: Runs the commands.
        work: The project's files.
        project: What is checked.
        rng: Draws the inputs.
        one_input: Run no other check than the first with the same command; the others have its result.
        beginning: The project's files when the episode began, for a history that is kept; ``work`` by default.

    Raises:
        SandboxFailure: A check could not be run.
    """
    checks = project.checks(rng)
    if not project.is_kept(work):
        return {check.name: False for check in checks}
    if project.keeps_history:
        tip = ((beginning or work).text(".git/refs/heads/main") or "0").strip()
        kept = f"GIT_NO_REPLACE_OBJECTS=1 git merge-base --is-ancestor {tip} main || exit\n"
        checks = [replace(check, command=f"{kept}{check.command}") for check in checks]
    by_command: dict[str, list[Check]] = {}
    for check in checks:
        by_command.setdefault(check.command, []).append(check)
    results = await together(*(_passing(shell, work, group, one_input) for group in by_command.values()))
    passing = {name for names in results for name in names}
    return {check.name: check.name in passing for check in checks}


async def _passing(shell: Shell, work: Tree, checks: Sequence[Check], one_input: bool) -> list[str]:
    """Return the names of those checks of one command that pass."""
    first, *others = checks
    if not await _passes(shell, work, first):
        return []
    if one_input:
        return [check.name for check in checks]
    results = await together(*(_passes(shell, work, check) for check in others))
    return [first.name, *(check.name for check, passes in zip(others, results, strict=True) if passes)]


async def _passes(shell: Shell, work: Tree, check: Check) -> bool:
    """Run a check in a sandbox of its own, where no other check's program can write its output."""
    inputs = {f"tmp/in/{name}": content for name, content in check.inputs.items()}
    state = ShellState.of(work)
    entries = Tree.of(inputs, folders=("tmp/in",), mtime_ns=CLOCK_S * 10**9)
    command = f"exec </dev/null 2>/dev/null; ulimit -t {_CHECK_CPU_S}; export IN=/tmp/in\n{check.command}"
    _, result = await _check_shell(shell.limits).run(
        ShellState(state.tree.changed(dict(entries))), command, timeout_s=_CHECK_S
    )
    return not result.omitted and _normal(result.output) == _normal(check.expected)


@functools.cache
def _check_shell(limits: ShellLimits) -> Shell:
    """Return the shell of checks: with limits of its own, and more room than the policy's, which may be full."""
    return Shell(ShellLimits(disk_mb=limits.disk_mb + _INPUTS_MB, files=limits.files + _INPUT_FILES))


def edit(kind: str, symptom: str, path: str, old: str, new: str, *, looks: Sequence[str] = ()) -> Fault:
    """Return the fault of one changed place in a file."""
    change = Edit(path, old, new)
    return Fault(kind, symptom, [*looks, f"cat {quote(path)}"], change.undo, [change])


async def _ran(shell: Shell, state: ShellState, command: str) -> ShellState:
    if not command:
        return state
    after, result = await shell.run(state, command)
    if result.status == "error":
        raise ValueError(f"a command of a template failed: {command}\n{result.describe()}")
    if result.status != "ok":
        raise SandboxFailure(f"a command of a template was stopped: {command}\n{result.describe()}")
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


def _normal(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
