"""Tasks of a folder in containers of docker or podman.

An episode's state is the task, the commands so far and what each gave; a container is only a cache of it. So a state
can be copied, pickled and moved: where its container has gone on, or is not here, another one runs the commands again,
and what they print must be the same.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import hashlib
import itertools
import os
import re
import socket
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ....bounded_files import read_bytes
from ....sandbox import SandboxFailure, ShellLimits, ShellResult, ShellState, Tree
from ....sandbox.shell import COMMAND_BYTES, STATE_BYTES, shell_input, state_after
from ....sandbox.shell_server import PREPARE, RUN, Reply
from ....sandbox.worker import threads
from .engine import COPY_S, Engine, environment
from .formats import CLEARED, TEST_FOLDERS, FolderTask
from .verdict import REWARD_BYTES, Verdict, of_pytest, of_reward_files

T = TypeVar("T")
Program = Literal["docker", "podman"]

#: Bytes of the list of an episode's changed files.
_DIFF_BYTES = 64 << 20
#: A line of `docker diff`: what became of a path, none of whose parts is empty, "." or "..".
_DIFF_LINE = re.compile(r"[ACD] (?:/(?!\.{1,2}(?:/|$))[^/\n]+)+")
#: Idle containers of one environment and its forks; those used longest ago are removed.
IDLE = 8
#: Calls of the program at the same time.
_CALLS = 64
#: Folders in the root that tests find as the image has them.
PROGRAM_FOLDERS = frozenset(
    ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "nix", "boot", "dev", "proc", "run", "sys")
)
#: Seconds of a command where neither the task nor the limits say how many.
_COMMAND_S = 600.0
#: Removes links that lead to where tests will be, from the folders of the root that are its arguments.
_REMOVE_LINKS = f"""for top; do find "/$top" -xdev -type l -print0 | while IFS= read -r -d '' link; do
  case "$(readlink -m -- "$link")/" in
    {"|".join(f"{folder}/*" for folder in CLEARED)}|//|/|/logs/|/proc/*) rm -f -- "$link" ;;
  esac
done; done"""
#: The prefix of names of containers and images.
_PREFIX = "textenvs"
_LIMITS = ("wall_s", "output_bytes", "memory_mb", "processes")
#: The state comes from standard input, and goes to standard error; output and errors of the command are one stream.
_EXEC = f'exec 250>&2 251<&0 252<<<"" 2>&1 </dev/null; {RUN}'
_END = b"\0END\0"  # of bash's state
_numbers = itertools.count()


@dataclass(frozen=True)
class _Ran:
    """A command that was run, its limit of time, and a digest of what it gave."""

    command: str
    timeout_s: float | None
    digest: str


@dataclass(frozen=True)
class ContainerState:
    """The state of an episode in a container: what was run, and bash's own state (its files are in the container)."""

    task: str
    ran: tuple[_Ran, ...] = ()
    shell: ShellState = field(default_factory=lambda: ShellState(Tree()))

    @property
    def cwd(self) -> str:
        return self.shell.cwd

    @functools.cached_property
    def key(self) -> str:
        """The name of this history."""
        return hashlib.sha256(repr((self.task, self.ran)).encode("utf-8", "surrogatepass")).hexdigest()


class Containers:
    """Plays tasks in containers.

    Args:
        program: ``"docker"`` or ``"podman"``.
        limits: A mapping of ``wall_s``, ``output_bytes``, ``memory_mb`` and ``processes``, in the place of the task's.
        network: Whether containers have the network that a task says they have; else they have none.
        clean: Whether tests run in a new container, with the folders of the episode's that have no programs of the
            system; else in the episode's own container, after all its processes have ended.

    Raises:
        ValueError: A limit that containers do not have here.
        SandboxUnavailable: There is no such program, or it has no daemon.
    """

    def __init__(
        self, program: Program, limits: ShellLimits | Mapping[str, Any] | None, *, network: bool, clean: bool
    ) -> None:
        if isinstance(limits, ShellLimits) or (unknown := sorted({*(limits or {})} - {*_LIMITS})):
            named = "a ShellLimits" if isinstance(limits, ShellLimits) else f"{unknown[0]!r}"
            raise ValueError(f"limits of a container are a mapping of {', '.join(_LIMITS)}, and not {named}")
        self.limits: Mapping[str, Any] = {**(limits or {})}
        ShellLimits(**self.limits)  # raises for values out of range
        self.network, self.clean = network, clean
        self.engine = Engine(program)
        self._tasks: dict[str, FolderTask] = {}
        self._images: dict[str, str] = {}
        self._workdirs: dict[str, str] = {}
        self._forget()
        _remove_orphans(self.engine)

    def check(self, tasks: Sequence[FolderTask]) -> None:
        self._tasks = {task.name: task for task in tasks}

    async def begin(self, task: FolderTask) -> ContainerState:
        return await _in_thread(self._begin, task)

    async def run(
        self, state: ContainerState, command: str, *, timeout_s: float | None = None
    ) -> tuple[ContainerState, ShellResult]:
        return await _in_thread(self._run, state, command, timeout_s)

    async def judge(self, task: FolderTask, state: ContainerState) -> Verdict:
        return await _in_thread(self._judge, task, state)

    def end(self, state: ContainerState) -> None:
        with self._lock:
            idle = self._idle.pop(state.key, [])
        self._remove(*idle)

    def close(self) -> None:
        with self._lock:
            alive = [*self._alive]
            self._idle.clear()
        self._remove(*alive)

    # ------------------------------------------------------------------ images and containers

    def _begin(self, task: FolderTask) -> ContainerState:
        container = self._start(task)
        try:
            cwd = self._workdir(task, container)
        except BaseException:
            self._remove(container)
            raise
        state = ContainerState(task.name, shell=ShellState(Tree(), cwd=cwd))
        self._keep(state, container)
        return state

    def _image(self, task: FolderTask) -> str:
        """Return the task's image, built or fetched where it is not there."""
        if task.name not in self._images:
            name = task.image or f"{_PREFIX}-task:{_digest_of(task.context)}"
            if self.engine.call("image", "inspect", name).code:
                if task.image is not None:
                    self.engine.done("pull", task.image, timeout_s=task.build_s)
                else:
                    arguments = ("build", "-t", name, "-f", str(task.dockerfile), str(task.context))
                    self.engine.done(*arguments, timeout_s=task.build_s)
            self._images[task.name] = name
        return self._images[task.name]

    def _start(self, task: FolderTask) -> str:
        """Start a container of the task's image, and return its name; it has bash and the formats' folders."""
        image = self._image(task)
        name = f"{_PREFIX}-{_host()}-{os.getpid()}-{next(_numbers)}"
        memory = self.limits.get("memory_mb", task.memory_mb)
        options = [
            *([] if self.network and task.has_network else ["--network", "none"]),
            *([] if memory is None else ["--memory", f"{memory}m"]),
            *([] if task.cpus is None else ["--cpus", f"{task.cpus:g}"]),
            *(["--pids-limit", str(self.limits["processes"])] if "processes" in self.limits else []),
            *environment(task.variables),
        ]
        with self._lock:
            self._alive.add(name)
        try:
            # As both formats start it; an entry point of the image stays.
            self.engine.done("run", "-d", "--name", name, *options, image, "sh", "-c", "sleep infinity")
            folders = " ".join((*TEST_FOLDERS, "/logs/verifier", "/logs/agent", "/logs/artifacts"))
            self.engine.done("exec", "-u", "0", name, "bash", "-c", f"mkdir -p {folders} && chmod 777 /logs/*")
        except BaseException:
            self._remove(name)
            raise
        return name

    def _remove(self, *containers: str) -> None:
        """Remove containers; those that cannot be removed now are tried again by :meth:`close`."""
        if not containers:
            return
        called = self.engine.call("rm", "-f", "-v", *containers)
        if not called.code and not called.stopped:
            with self._lock:
                self._alive.difference_update(containers)

    def _workdir(self, task: FolderTask, container: str) -> str:
        """Return the folder in which a task's commands begin."""
        if task.name not in self._workdirs:
            self._workdirs[task.name] = task.workdir or self._inspect(container, "{{.Config.WorkingDir}}") or "/"
        return self._workdirs[task.name]

    def _inspect(self, container: str, template: str) -> str:
        return self.engine.done("inspect", "-f", template, container).output.decode("utf-8", "replace").strip()

    # ------------------------------------------------------------------ commands

    def _run(self, state: ContainerState, command: str, timeout_s: float | None) -> tuple[ContainerState, ShellResult]:
        if "\0" in command or len(command.encode("utf-8", "replace")) > COMMAND_BYTES:
            why = "has a zero byte" if "\0" in command else f"has more than {COMMAND_BYTES} bytes"
            message = f"bash: not run: the command {why}\n".encode()
            return state, ShellResult("error", message, exit_code=2, cwd=state.cwd)
        container = self._container(state)
        try:
            shell, result = self._exec(container, state, command, timeout_s)
        except BaseException:
            self._remove(container)
            raise
        ran = _Ran(command, timeout_s, _digest(result))
        changed = ContainerState(state.task, (*state.ran, ran), shell)
        self._keep(changed, container)
        return changed, result

    def _exec(
        self, container: str, state: ContainerState, command: str, timeout_s: float | None
    ) -> tuple[ShellState, ShellResult]:
        task = self._tasks[state.task]
        most = float(self.limits.get("wall_s") or task.command_s or _COMMAND_S)
        limits = ShellLimits(**{**self.limits, "wall_s": min(most, timeout_s or most)})
        called = self.engine.call(
            *("exec", "-i", *_as_user(task.user), "-e", f"SOURCE_DATE_EPOCH={state.shell.clock_s}", container),
            *("bash", "--noprofile", "--norc", "-c", _EXEC, "bash", PREPARE),
            stdin=b"".join(
                part + b"\0" for part in shell_input(state.shell, command.encode("utf-8", "replace")).values()
            ),
            timeout_s=limits.wall_s,
            output_bytes=limits.output_bytes,
            error_bytes=4 * STATE_BYTES,
        )
        saved, stopped, code = called.errors, called.stopped, called.code
        notes: tuple[str, ...] = ()
        if stopped:  # the command still runs in the container
            self._revive("restart", container)
        elif _END not in saved and self._inspect(container, "{{.State.Running}}") != "true":
            self._revive("start", container)
            notes = ("The container had ended: no process of before is there.",)
        reply = Reply(
            stopped=stopped,
            code=None if stopped else code,
            head=called.head,
            tail=called.tail if _END in saved else called.tail + _words_of(saved),
            omitted=called.omitted,
            saved=saved,
        )
        shell, result = state_after(limits, state.shell, reply, {})
        return shell, replace(result, notes=(*result.notes, *notes))

    def _revive(self, how: Literal["start", "restart"], container: str) -> None:
        """Start a container, without what ran in it; one that cannot start any more is as its commands left it."""
        called = self.engine.call(how, *(("-t", "0") if how == "restart" else ()), container)
        if called.code or called.stopped:
            self._inspect(container, "{{.State.Running}}")  # raises where it is gone, which no command can do

    def _container(self, state: ContainerState) -> str:
        """Return the container of a state, for the caller alone; its commands are run again where there is none."""
        with self._lock:
            if idle := self._idle.get(state.key):
                container = idle.pop()
                if not idle:
                    del self._idle[state.key]
                return container
        task = self._tasks[state.task]
        container = self._start(task)
        try:
            replayed = ContainerState(task.name, shell=ShellState(Tree(), cwd=self._workdir(task, container)))
            for ran in state.ran:
                shell, result = self._exec(container, replayed, ran.command, ran.timeout_s)
                if _digest(result) != ran.digest:
                    raise SandboxFailure(
                        f"command {len(replayed.ran) + 1} of a copied episode gave another result when run again, "
                        f"so the copy would be another state: {ran.command[:200]!r}"
                    )
                replayed = ContainerState(task.name, (*replayed.ran, ran), shell)
        except BaseException:
            self._remove(container)
            raise
        return container

    def _keep(self, state: ContainerState, container: str) -> None:
        with self._lock:
            self._idle.setdefault(state.key, []).append(container)
            self._idle.move_to_end(state.key)
            surplus = []
            while sum(map(len, self._idle.values())) > IDLE:
                key, containers = next(iter(self._idle.items()))
                surplus.append(containers.pop(0))
                if not containers:
                    del self._idle[key]
        self._remove(*surplus)

    # ------------------------------------------------------------------ tests

    def _judge(self, task: FolderTask, state: ContainerState) -> Verdict:
        played = self._container(state)
        tested = played
        try:
            if self.clean:
                tested = self._start(task)
                try:
                    self._copy_work(played, tested)
                except SandboxFailure as failure:
                    for container in (played, tested):
                        self._inspect(container, "{{.State.Running}}")  # raises where it is gone
                    return Verdict(None, str(failure))
            else:
                self._revive("restart", played)
            return self._tested(task, tested)
        finally:
            self._remove(*{played, tested})

    def _copy_work(self, source: str, target: str) -> None:
        """Replace the folders that an episode changed, but those of programs and tests; end its processes before."""
        self.engine.call("kill", source)  # one that has ended already is an error, and as good
        listed = self.engine.call("diff", source, timeout_s=COPY_S, output_bytes=_DIFF_BYTES)
        if listed.code or listed.stopped or listed.omitted:
            raise SandboxFailure("the changed files of the container could not be listed, or are too many")
        lines = listed.output.decode("utf-8", "surrogateescape").split("\n")[:-1]
        # A name may hold a line break, and what follows it would be read as a path of its own.
        if odd := [line for line in lines if not _DIFF_LINE.fullmatch(line)]:
            raise SandboxFailure(f"the container has a file whose name cannot be listed: {odd[0][:100]!r}")
        changed = {line[3:].partition("/")[0] for line in lines}
        tops = sorted(changed - PROGRAM_FOLDERS - {"", *(folder.lstrip("/") for folder in TEST_FOLDERS)} | {"logs"})
        within = ("exec", "-u", "0", target, "bash", "-c")
        self.engine.done(*within, 'set -e; for top; do rm -rf -- "/$top"; done', "bash", *tops, timeout_s=COPY_S)
        for top in tops:
            if f"D /{top}" not in lines:
                self.engine.copy(source, target, f"/{top}")
        # When all are there: a link may lead through another folder's.
        self.engine.done(*within, _REMOVE_LINKS, "bash", *tops, timeout_s=COPY_S)

    def _tested(self, task: FolderTask, container: str) -> Verdict:
        clear = f"rm -rf -- {' '.join(CLEARED)}; mkdir -p {' '.join(CLEARED)}; chmod 777 /logs/verifier"
        try:
            self.engine.done("exec", "-u", "0", container, "bash", "-c", clear, timeout_s=COPY_S)
            self.engine.put(container, task.tests())
        except SandboxFailure as failure:
            if self.clean or self.engine.call("inspect", container).code:
                raise
            return Verdict(None, f"what the episode left does not let the tests in: {failure}")
        called = self.engine.call(
            *("exec", *_as_user(task.tests_user), *environment(task.tests_variables), container),
            *("bash", "-c", f'cd "$1" || exit\n{task.tests_command}', "bash", self._workdir(task, container)),
            timeout_s=task.tests_s,
        )
        if called.stopped or called.code > 128:
            verdict = Verdict(None, f"the tests were stopped: {called.stopped or f'exit code {called.code}'}")
        elif task.format == "terminal-bench":
            verdict = of_pytest(called.output.decode("utf-8", "replace"))
        else:
            places = (f"/logs/verifier/reward.{end}" for end in ("json", "txt"))
            verdict = of_reward_files(*(self.engine.content(container, place, REWARD_BYTES) for place in places))
        if verdict.reward is not None:
            return verdict
        self._inspect(container, "{{.State.Running}}")  # raises where the container is gone, which no command can do
        log = self.engine.content(container, "/logs/verifier/test-stdout.txt", REWARD_BYTES) or called.output
        return Verdict(None, f"{verdict.why}; the end of their output:\n{log[-600:].decode('utf-8', 'replace')}")

    # ------------------------------------------------------------------ copies of this object

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, list[str]] = OrderedDict()
        self._alive: set[str] = set()
        _live.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_idle", "_alive")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)
        self._forget()


_live: weakref.WeakSet[Containers] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for containers in list(_live):
        containers.close()


def _remove_orphans(engine: Engine) -> None:
    """Remove containers of processes of this machine that have ended without removing them."""
    listed = engine.call("ps", "-a", "--filter", f"name={_PREFIX}-{_host()}-", "--format", "{{.Names}}")
    for name in listed.output.decode("ascii", "replace").split():
        pid = name.removeprefix(f"{_PREFIX}-{_host()}-").partition("-")[0]
        if pid.isdecimal() and not _is_alive(int(pid)):
            engine.call("rm", "-f", "-v", name)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@functools.cache
def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.wrap_future(threads(_CALLS, "textenvs-containers").submit(function, *arguments))


def _as_user(user: str | None) -> list[str]:
    return [] if user is None else ["-u", user]


def _digest(result: ShellResult) -> str:
    """Return a digest of what a command gave; how far one that was stopped came depends on the machine."""
    if result.status not in ("ok", "error"):
        return result.status
    parts = (result.status, result.head, result.tail, result.omitted, result.exit_code, result.cwd)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _words_of(saved: bytes) -> bytes:
    """Return what the program itself said, in the place of bash's state."""
    return b"" if b"\0" in saved else saved[-1000:]


def _digest_of(folder: Path) -> str:
    """Return a digest of a folder's files: their paths, contents and permission to execute."""
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = hashlib.sha256(read_bytes(path, None)).digest()
            whole.update(f"{path.relative_to(folder)}\0{os.access(path, os.X_OK)}\0".encode() + content)
    return whole.hexdigest()[:24]
