"""A shell whose state is a value: files, working directory, variables and functions.

No process and no folder lives between two commands. :meth:`Shell.run` takes a state and a command, runs the command in
a box that has the state's files, and returns the state after it. So a snapshot of a shell is a reference to its state,
a restore uses it again, and forks are commands from one state. See docs/sandbox.md.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import itertools
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .backends import choose
from .box import CONCURRENCY
from .layout import RESERVED
from .result import ShellLimits, Status
from .shell_cache import TreeCache
from .shell_server import Reply, bash_path, start
from .tree import Entry, Tree, decoded, encoded
from .worker import Pool, threads

#: Where a shell begins. Its other folder is ``/tmp``; both are kept.
PROJECT = "/project"
#: The time of a new shell (2025-06-02 09:00 UTC), and what each command adds to it, in seconds.
CLOCK_S, STEP_S = 1_748_854_800, 60
#: Bytes of variables and functions that are kept, and of a command.
STATE_BYTES, COMMAND_BYTES = 262_144, 131_072
#: Parts of a path that is kept, with the ``project`` or ``tmp`` at its beginning (:mod:`.shell_init` has the same).
DEEPEST = 128
#: Bytes that a process keeps of results, with their states' files; and of files that one of these may have written.
CACHE_BYTES, CACHED_BYTES = 128 << 20, 1 << 20

_NO_SANDBOX = "There is no shell without isolation."
_OPTION = re.compile(r"[a-z-]+")
_DEFAULT_OPTIONS = frozenset({"braceexpand", "hashall", "interactive-comments"})
_ENVIRONMENT = {
    "PATH": "/python/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": PROJECT,
    "PWD": PROJECT,
    "TMPDIR": "/tmp",
    "USER": "user",
    "SHELL": "/bin/bash",  # bash would look it up
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "GIT_AUTHOR_NAME": "user",
    "GIT_AUTHOR_EMAIL": "user@example.com",
    "GIT_COMMITTER_NAME": "user",
    "GIT_COMMITTER_EMAIL": "user@example.com",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "init.defaultBranch",
    "GIT_CONFIG_VALUE_0": "main",
    "GIT_CONFIG_KEY_1": "gc.auto",
    "GIT_CONFIG_VALUE_1": "0",
    "GIT_EDITOR": "true",
}


@dataclass(frozen=True)
class ShellState:
    """All that lasts of a shell from one command to the next; immutable, and picklable.

    Args:
        tree: The files: those of ``/project`` below ``project``, those of ``/tmp`` below ``tmp``. Its topmost folders
            are those that a command may write, and last whatever it does.
        script: Variables, functions, aliases, ``shopt`` options and the umask, as bash wrote them down.
        options: The names of the options of ``set -o`` that are on, with colons between them.
        cwd: The working directory.
        status: ``$?``, of the last command.
        commands: How many were run.
    """

    tree: Tree
    script: bytes = b""
    options: str = ":".join(sorted(_DEFAULT_OPTIONS))
    cwd: str = PROJECT
    status: int = 0
    commands: int = 0

    @classmethod
    def of(cls, project: Tree | None = None) -> ShellState:
        """Return the state of a new shell, with these files in ``/project``; a time of 0 becomes the shell's.

        Raises:
            ValueError: A path has more than :data:`DEEPEST` parts.
        """
        time_ns = CLOCK_S * 10**9
        entries = {path: Entry("folder", b"", 0o755, time_ns) for path in ("project", "tmp")}
        for path, entry in (project or {}).items():
            if path.count("/") + 2 > DEEPEST:
                raise ValueError(f"a shell keeps paths of at most {DEEPEST} parts, '/project' included: not {path!r}")
            entries[f"project/{path}"] = entry if entry.mtime_ns else replace(entry, mtime_ns=time_ns)
        return cls(Tree(entries))

    @classmethod
    def rooted(cls, files: Tree, folders: Iterable[str], cwd: str) -> ShellState:
        """Return the state of a new shell with files in several folders of the root; a time of 0 becomes the shell's.

        Args:
            files: By path from the root.
            folders: Topmost folders that the shell has beside those of ``files``.
            cwd: Where it begins.

        Raises:
            ValueError: A file in the root itself, a folder of the system, or a path of too many parts.
        """
        time_ns = CLOCK_S * 10**9
        entries = {name: Entry("folder", b"", 0o755, time_ns) for name in folders}
        for path, entry in files.items():
            entries[path] = entry if entry.mtime_ns else replace(entry, mtime_ns=time_ns)
            if path.count("/") + 1 > DEEPEST:
                raise ValueError(f"a shell keeps paths of at most {DEEPEST} parts: not {path!r}")
        for path, entry in entries.items():
            if "/" not in path and (path in RESERVED or entry.kind != "folder"):
                why = "is the system's" if path in RESERVED else f"is a {entry.kind}"
                raise ValueError(f"a shell keeps folders of its own in the root, and /{path} {why}")
        return cls(Tree(entries), cwd=cwd)

    @property
    def project(self) -> Tree:
        """The files in ``/project``."""
        return self.tree.below("project")

    @property
    def clock_s(self) -> int:
        """The time of the next command: that of the files that it changes."""
        return CLOCK_S + STEP_S * (self.commands + 1)


@dataclass(frozen=True)
class ShellResult:
    """The result of a command.

    Args:
        status: ``"ok"`` (exit code 0), ``"error"`` (another), ``"timeout"``, ``"memory"``, ``"output"`` (far too much),
            or ``"killed"``.
        head, tail: The output and the errors, in one stream; where it is long, its beginning and its end.
        omitted: How many bytes were between these.
        exit_code: Of bash; minus the signal's number where a signal ended it. ``None`` where its box was stopped.
        cwd: The working directory after it.
        notes: Sentences on what the shell did on its own: processes that were ended, files that could not be kept.
        survivors: How many processes it left, which were ended.
    """

    status: Status
    head: bytes = b""
    tail: bytes = b""
    omitted: int = 0
    exit_code: int | None = None
    cwd: str = PROJECT
    notes: tuple[str, ...] = ()
    survivors: int = 0

    @property
    def output(self) -> str:
        """The output as text, as far as it was kept."""
        return (self.head + self.tail).decode("utf-8", "replace")

    def describe(self, max_bytes: int = 4000) -> str:
        """Return what a model is shown: output (without its middle, where it is long), notes, exit code and folder."""
        content, omitted = self.head + self.tail, self.omitted
        if omitted or len(content) > max_bytes:
            first, last = min((max_bytes + 1) // 2, len(self.head)), min(max_bytes // 2, len(content) - len(self.head))
            if not omitted:
                first, last = (max_bytes + 1) // 2, max_bytes // 2
            left_out = len(content) - first - last + omitted
            ends = [part.decode("utf-8", "replace") for part in (content[:first], content[len(content) - last :])]
            text = f"{ends[0]}\n[... {left_out} bytes left out ...]\n{ends[1]}"
        else:
            text = content.decode("utf-8", "replace")
        lines = [text.rstrip("\n")] if text.strip("\n") else []
        lines += [f"[{note}]" for note in self.notes]
        lines.append(f"[exit code {'none' if self.exit_code is None else self.exit_code}, in {self.cwd}]")
        return "\n".join(lines)


class Shell:
    """Bash in a sandbox, with the system's programs, without network; see the module's docstring.

    It holds settings only, so it is cheap to make, to copy and to pickle. A command that ran to its end is not run
    again in the same state: replays and forks get the same result, and cost nothing.

    Raises:
        SandboxUnavailable: This machine has no user namespaces or no bash; the message has the remedy.
    """

    def __init__(self, limits: ShellLimits | None = None) -> None:
        self.limits = limits or ShellLimits()
        choose("namespaces", without=_NO_SANDBOX)
        bash_path()

    async def run(
        self, state: ShellState, command: str, *, timeout_s: float | None = None, read_only: tuple[str, ...] = ()
    ) -> tuple[ShellState, ShellResult]:
        """Run a command, or several lines of them.

        Args:
            state: What it finds.
            command: Its text, of at most :data:`COMMAND_BYTES` bytes.
            timeout_s: Seconds it may take, at most ``limits.wall_s``, which is the default.
            read_only: Topmost folders of the state, such as ``"/tests"``, in which it cannot write.

        Returns:
            The state after it, and what it did. Whatever the command does ends here, and not in an exception.

        Raises:
            SandboxFailure: The box could not be made: nothing was run.
        """
        work = self._prepare(state, command, timeout_s, read_only)
        if isinstance(work, tuple):
            return work
        return await asyncio.wrap_future(threads(CONCURRENCY, "textenvs-shell").submit(work))

    def run_now(
        self, state: ShellState, command: str, *, timeout_s: float | None = None
    ) -> tuple[ShellState, ShellResult]:
        """Run a command like :meth:`run`, and wait for it in this thread."""
        work = self._prepare(state, command, timeout_s)
        return work if isinstance(work, tuple) else work()

    def _prepare(
        self, state: ShellState, command: str, timeout_s: float | None, read_only: tuple[str, ...] = ()
    ) -> tuple[ShellState, ShellResult] | Callable[[], tuple[ShellState, ShellResult]]:
        """Return the result of a command where it is known, or else what runs the command and waits for it."""
        text = command.encode("utf-8", "replace")
        if b"\0" in text or len(text) > COMMAND_BYTES:
            why = "has a zero byte" if b"\0" in text else f"has more than {COMMAND_BYTES} bytes"
            message = f"bash: not run: the command {why}\n".encode()
            return state, ShellResult("error", message, exit_code=2, cwd=state.cwd)
        wall_s = min(self.limits.wall_s, timeout_s or self.limits.wall_s)
        parts = (state.script, state.options, state.cwd, state.status, state.commands)
        whole = repr((self.limits, wall_s, state.tree.digest, text, read_only, *parts))
        key = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).digest()
        if (cached := _cache.get(key)) is not None:
            return cached
        request = {
            "files": [(encoded(path), e.kind, e.mode, e.mtime_ns, e.content) for path, e in state.tree.items()],
            **shell_input(state, text),
            "environment": _environment(state),
            "wall_s": wall_s,
            "output_bytes": self.limits.output_bytes,
            "state_bytes": STATE_BYTES,
            "now_ns": state.clock_s * 10**9,
            "read_only": list(read_only),
        }
        return functools.partial(_run, self.limits, request, state, key)


#: By a digest of limits, state and command.
_cache = TreeCache[tuple[ShellState, ShellResult]](CACHE_BYTES)


@functools.cache
def _pool(limits: ShellLimits, folders: tuple[str, ...]) -> Pool:
    return Pool(functools.partial(start, limits, folders), CONCURRENCY, "textenvs-shell")


def _run(limits: ShellLimits, request: dict[str, Any], state: ShellState, key: bytes) -> tuple[ShellState, ShellResult]:
    folders = tuple(f"/{path}" for path in state.tree if "/" not in path)
    reply = _pool(limits, folders).ask(request, request["wall_s"])
    finished = state_after(replace(limits, wall_s=request["wall_s"]), state, reply)
    # How far one that was stopped came depends on the machine.
    if finished[1].status in ("ok", "error") and sum(len(file[-1]) for file in reply.files) <= CACHED_BYTES:
        changed, result = finished
        return _cache.put(key, finished, changed.tree, len(changed.script) + len(result.head) + len(result.tail))
    return finished


def _environment(state: ShellState) -> dict[str, str]:
    dates = ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE")
    return {**_ENVIRONMENT, "SOURCE_DATE_EPOCH": str(state.clock_s), **dict.fromkeys(dates, f"{state.clock_s} +0000")}


def shell_input(state: ShellState, command: bytes) -> dict[str, bytes]:
    """Return the input of the shell's start script (``shell.bash``), in the order in which it reads it."""
    return {
        "script": state.script,
        "options": _set_command(state.options),
        "cwd": encoded(state.cwd),
        "status": str(state.status).encode(),
        "command": command,
    }


def _set_command(options: str) -> bytes:
    """Return the command that sets these options, for the beginning of the command's line."""
    names = {name for name in options.split(":") if _OPTION.fullmatch(name)}
    changes = [f"+o {name}" for name in sorted(_DEFAULT_OPTIONS - names)]
    changes += [f"-o {name}" for name in sorted(names - _DEFAULT_OPTIONS)]
    return f"set {' '.join(changes)}; ".encode() if changes else b""


def state_after(
    limits: ShellLimits, state: ShellState, reply: Reply, environment: Mapping[str, str] = _ENVIRONMENT
) -> tuple[ShellState, ShellResult]:
    """Return the state after a command, and its result, from what its box said.

    ``environment`` are the variables that every command begins with.
    """
    notes = []
    if reply.stopped:
        notes.append(limits.says(reply.stopped, output_bytes=256 * limits.output_bytes))
    elif _out_of_time(limits, reply):
        notes.append(limits.says("cpu"))
    elif reply.code is not None and reply.code < 0:
        notes.append(limits.says("signal", number=-reply.code, name="of the shell itself"))
    if reply.survivors and not reply.stopped:
        notes.append("Processes that it left in the background were ended: none lives longer than its command.")
    if reply.dropped:
        names = ", ".join(_shown(f"/{path}") for path in reply.dropped[:3]) + (
            ", ..." if len(reply.dropped) > 3 else ""
        )
        notes.append(
            f"Not kept: {names}. Only files, folders and symbolic links are, {limits.disk_mb} MiB together, "
            f"with paths of at most 3839 bytes and {DEEPEST} parts."
        )
    entries = {path: Entry(kind, content, mode, mtime_ns) for path, kind, mode, mtime_ns, content in reply.files}  # type: ignore[arg-type]
    status = reply.code if reply.code is not None and reply.code >= 0 else 0 if reply.code is None else 128 - reply.code
    state_after = replace(
        state,
        tree=state.tree.changed(entries, frozenset(reply.removed)),
        status=status,
        commands=state.commands + 1,
    )
    # The shell's own two functions come first; where there is more than one state, the last one counts.
    parts = reply.saved.split(b"\0")
    if len(parts) >= 8 and parts[-2] == b"END" and len(reply.saved) <= STATE_BYTES:
        declared, functions, options, cwd = (
            parts[-6],
            parts[-5],
            parts[-4].decode("ascii", "replace"),
            decoded(parts[-3]),
        )
        for text in filter(None, parts[:2]):
            functions = functions.replace(text, b"")
        state_after = replace(
            state_after, script=_variables(declared, environment) + functions, options=options, cwd=cwd or state.cwd
        )
    elif reply.code is not None:
        notes.append("Variables, functions and the working directory are as they were before the command.")
    return state_after, ShellResult(
        _status(limits, reply),
        reply.head,
        reply.tail,
        reply.omitted,
        reply.code,
        _shown(state_after.cwd),
        tuple(notes),
        reply.survivors,
    )


#: The beginning of a variable in what ``declare -p`` prints.
_VARIABLE = re.compile(rb"^declare -([-A-Za-z]+) (\w+)", re.MULTILINE)
#: Variables that bash sets, or that every command has anew.
_NOT_KEPT = re.compile(
    rb"_|__shell_\w*|BASH|BASH_(ALIASES|ARGC|ARGV|ARGV0|CMDS|COMMAND|ENV|EXECUTION_STRING|LINENO|LOADABLES_PATH|MONOSECONDS|"
    rb"REMATCH|SOURCE|SUBSHELL|TRAPSIG|VERSINFO|VERSION|XTRACEFD)|BASHOPTS|BASHPID|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|"
    rb"EPOCHSECONDS|EUID|FUNCNAME|GIT_(AUTHOR|COMMITTER)_DATE|GROUPS|HISTCMD|LINENO|OPTARG|OPTERR|OPTIND|PIPESTATUS|"
    rb"POSIXLY_CORRECT|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SOURCE_DATE_EPOCH|SRANDOM|UID"
)


#: What ``declare -p`` prints of bash's own variables that are unchanged.
_AS_EVER = {b"declare -- IFS=$' \\t\\n'\n", b'declare -- OPTERR="1"\n', b'declare -- PS4="+ "\n'}


def _variables(declared: bytes, environment: Mapping[str, str]) -> bytes:
    """Return the part of ``declare -p`` that the next command is to have, and what it is not to have.

    Variables that are as every command finds them are left out: to declare them again would take longer than ``:``.
    """
    # Where it prints them in another way, they are kept.
    unchanged = _AS_EVER | {f'declare -x {name}="{value}"\n'.encode() for name, value in environment.items()}
    starts = list(_VARIABLE.finditer(declared))
    places = [*(start.start() for start in starts), len(declared)]
    lines = [
        line
        for start, (place, end) in zip(starts, itertools.pairwise(places), strict=True)
        if (line := declared[place:end]) not in unchanged and not _NOT_KEPT.fullmatch(start[2])
    ]
    flags = {start[2].decode(): start[1] for start in starts}
    for name in sorted(environment):
        if name not in flags:
            lines.append(f"unset {name}\n".encode())
        elif b"x" not in flags[name]:
            lines.append(f"export -n {name}\n".encode())
    return b"".join(lines)


def _out_of_time(limits: ShellLimits, reply: Reply) -> bool:
    """Return whether the limit of CPU time ended bash, or the last of its commands.

    The exit code alone could be the command's own choice. The kernel judges by counted ticks, and reports the time
    really run, which is less on a loaded machine: hence one half.
    """
    return reply.code in (-signal.SIGXCPU, 128 + signal.SIGXCPU) and reply.cpu_s >= limits.cpu_s / 2


def _status(limits: ShellLimits, reply: Reply) -> Status:
    if reply.stopped:
        named: dict[str, Status] = {"wall": "timeout", "output": "output", "memory": "memory"}
        return named.get(reply.stopped, "killed")
    if reply.code is None or reply.code < 0:
        return "timeout" if _out_of_time(limits, reply) else "killed"
    return "error" if reply.code else "ok"


def _shown(path: str) -> str:
    return encoded(path).decode("utf-8", "replace").replace("\n", "\\n")
