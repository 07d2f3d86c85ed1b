"""A command in a box: any program of the system, without network, but for one socket that this process serves.

The box has the system's programs and libraries, read-only, and a folder of its own in memory. Its namespace of the
network has the loopback device alone. There its first process makes a listening socket and passes it to this process,
which accepts the connections; so nothing has to forward them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from . import cgroup, layout, usage
from .backends import Backend, choose, make_command_job
from .process import START_S, launch
from .result import CommandLimits, SandboxFailure

#: The port on which the command reaches this process, at 127.0.0.1.
PORT = 8000
#: In this order, because the first one always gives the command a user with a name.
_ORDER: tuple[Backend, ...] = ("namespaces", "bubblewrap")
_NO_SANDBOX = "To run the command without isolation, on a machine that holds nothing of worth: leave sandbox out."
_DEPTH = 64  # of folders that are copied


@dataclass(frozen=True)
class CommandSandbox:
    """The settings of commands in boxes.

    Args:
        limits: What they may use.
        paths: What they may read beside the system's files.
        proc: Whether they have ``/proc``, with their own processes. Where the machine hides parts of its own, as most
            containers do, the kernel refuses it.
    """

    limits: CommandLimits
    paths: tuple[str, ...] = ()
    proc: bool = False

    @classmethod
    def of(cls, value: bool | Mapping[str, Any]) -> CommandSandbox | None:
        """Return the settings of an environment's option: ``True`` for the defaults, ``False`` for none.

        Raises:
            SandboxUnavailable: No backend isolates on this machine.
            ValueError: A bad value.
        """
        if value is False:
            return None
        if value is not True and not isinstance(value, Mapping):
            raise ValueError(f"it must be true, false, or a mapping of limits and paths, not {value!r}")
        options = {} if value is True else dict(value)
        paths = options.pop("paths", ())
        if isinstance(paths, str) or not all(isinstance(path, str) for path in paths):
            raise ValueError(f"paths must be a list of paths, not {paths!r}")
        if not isinstance(proc := options.pop("proc", False), bool):
            raise ValueError(f"proc must be true or false, not {proc!r}")
        names = [field.name for field in fields(CommandLimits)]
        if unknown := sorted(set(options) - set(names)):
            raise ValueError(f"it has no option {unknown[0]!r}; it has {', '.join((*names, 'paths', 'proc'))}")
        limits = CommandLimits(**options)
        choose(None, _ORDER, _NO_SANDBOX)
        return cls(limits, tuple(paths), proc)

    def check(self, command: Sequence[str]) -> None:
        """Raise ``ValueError`` where the program of a command is not in the box."""
        resolved(command, self.paths)

    def open(self, command: Sequence[str], environment: Mapping[str, str], *, piped: bool = False) -> CommandBox:
        """Make the box of a command; see :class:`CommandBox`."""
        return CommandBox(command, environment, self, piped=piped)


class CommandBox:
    """A box whose command has not begun: :meth:`begin` starts it, when its folder has what it needs.

    Args:
        command: Its words. The program is looked up as a shell does, in the box's part of ``PATH``.
        environment: Variables; there are no others but ``PATH``, ``HOME``, ``TMPDIR``, ``LANG`` and ``USER``.
        settings: What it may use and read.
        piped: Whether its standard input and its standard error are pipes of their own.

    Raises:
        SandboxUnavailable: No backend isolates on this machine.
        SandboxFailure: The box could not be made.
        ValueError: The program, or one of ``paths``, is not there.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        settings: CommandSandbox,
        *,
        piped: bool = False,
    ) -> None:
        backend = choose(None, _ORDER, _NO_SANDBOX)
        limits = self.limits = settings.limits
        self._group = None if (parent := cgroup.parent()) is None else cgroup.Group(parent, limits)
        self._init_pid: int | None = None
        self._spent = False  # whether it was stopped for its memory
        channel, far_end = socket.socketpair()
        try:
            argv, search = resolved(command, settings.paths)
            variables = _environment(search) | dict(environment)
            job = make_command_job(backend, argv, variables, limits, settings.paths, PORT, proc=settings.proc)
            self.owner = job["outside_user"]
            job["channel"] = far_end.fileno()
            pipes = {"stderr": subprocess.STDOUT}
            if piped:
                job["stdin"] = None  # it has the launcher's
                pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process, self._lines = launch(job, group=self._group, **pipes)
        except BaseException:
            channel.close()
            self._close_group()
            raise
        finally:
            far_end.close()
        self._channel = channel
        try:
            channel.settimeout(START_S)
            with suppress(TimeoutError, ConnectionError):
                _, descriptors, *_ = socket.recv_fds(channel, 16, 2)
                if len(descriptors) == 2:
                    self._folder, listener = descriptors
                    self.listener = socket.socket(fileno=listener)
                    return
            raise SandboxFailure(f"the sandbox could not be made: {self._problem()}")
        except BaseException:
            self.kill()
            self.process.wait()
            self._close_own()
            raise

    #: Listens in the box, at 127.0.0.1 and :data:`PORT`; who serves it closes it.
    listener: socket.socket

    @property
    def folder(self) -> Path:
        """The command's folder, as this process sees it, until :meth:`close`."""
        return Path(f"/proc/self/fd/{self._folder}")

    def begin(self) -> None:
        """Give the folder and its contents to the command's user, and start the command."""
        os.fchmod(self._folder, 0o700)
        if self.owner is not None:
            os.fchown(self._folder, *self.owner)
            for root, folders, files in os.walk(self.folder):
                for name in (*folders, *files):
                    os.chown(Path(root) / name, *self.owner, follow_symlinks=False)
        self._channel.send(b"!")
        self._channel.close()

    def kill(self) -> None:
        """End all processes of the box, from any thread; the caller makes sure that it was not waited for yet."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def check_memory(self) -> None:
        """End the command where its processes use more memory than they may, together."""
        if self._group is not None or self._spent:
            return  # the kernel watches
        if self._init_pid is None:
            # Of the launcher's children, the box's first process is the one that lives.
            with suppress(OSError, IndexError):  # it has ended
                task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
                self._init_pid = int(task.read_text().split()[-1])
        if usage.exceeds(self._init_pid or self.process.pid, self.limits.memory_mb << 20):
            self._spent = True
            self.kill()

    def ended(self) -> tuple[int | None, str]:
        """Return the command's exit code (of :mod:`subprocess`) and words for what stopped it, after its process."""
        if self._spent or (self._group is not None and self._group.ran_out()):
            return None, f"its processes used more than {self.limits.memory_mb} MiB of memory together"
        text = self._status()
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            if word == "ended":
                return int(rest.split()[0]), ""
        failed = text.partition("failed ")[2]
        return None, f"the sandbox could not be made: {failed}" if failed else "its sandbox was stopped"

    def copy_files(self, target: Path) -> None:
        """Copy the command's regular files and folders to ``target``, an empty folder.

        Links and special files are left out: the one who reads the copy would follow them to elsewhere. So are files
        for which ``limits.disk_mb`` has no room left, in the order of names, and folders too deep: whoever wrote them
        must not escape the judgement of the others.
        """
        self._copy(self._folder, target, self.limits.disk_mb << 20, 0)

    def _copy(self, folder: int, target: Path, room: int, depth: int) -> int:
        """Copy an open folder, with so many bytes of room; return the room that is left."""
        for entry in sorted(os.listdir(folder)):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            try:
                mode = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
                if not stat.S_ISREG(mode) and not (stat.S_ISDIR(mode) and depth < _DEPTH):
                    continue
                opened = os.open(entry, flags, dir_fd=folder)
            except OSError:  # it was removed meanwhile, or may not be read
                continue
            try:
                if stat.S_ISDIR(mode):
                    (target / entry).mkdir()
                    room = self._copy(opened, target / entry, room, depth + 1)
                else:
                    room = _copy_file(opened, target / entry, room)
            finally:
                os.close(opened)
        return room

    def close(self) -> None:
        """Release the folder, after the process was waited for."""
        if self._folder >= 0:
            folder, self._folder = self._folder, -1
            os.close(folder)
            self._close_own()

    def _close_own(self) -> None:
        self._channel.close()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        while self._lines:
            os.close(self._lines.popitem()[1])
        self._close_group()

    def _close_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _status(self) -> str:
        os.set_blocking(self._lines["status"], False)
        with suppress(BlockingIOError):
            return os.read(self._lines["status"], 65_536).decode("utf-8", "replace")
        return ""

    def _problem(self) -> str:
        self.kill()
        self.process.wait()
        errors = self.process.stderr or self.process.stdout
        assert errors is not None
        words = errors.read(2_000).decode("utf-8", "replace").strip()
        return self._status().partition("failed ")[2].strip() or words or "it ended at once"


def resolved(command: Sequence[str], paths: Sequence[str]) -> tuple[list[str], str]:
    """Return a command with the path of its program, and ``PATH``; both as far as the box has them."""
    missing = [path for path in paths if not os.path.isabs(path) or not os.path.exists(path)]
    if missing:
        raise ValueError(f"paths: {missing[0]!r} is no absolute path of a file or folder of this machine")
    if any(os.path.normpath(path) == "/tmp" for path in paths):
        raise ValueError("paths: '/tmp' is a command's own; name the files and folders in it that the command may read")
    box = layout.command_layout(paths)
    visible = [inside for _, inside in box["binds"]]
    visible += [path for target, path in box["links"] if target != layout.COMMAND_FOLDER]  # /bin -> usr/bin
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    search = os.pathsep.join(folder for folder in folders if layout.within(folder, visible)) or "/usr/bin:/bin"
    program, *arguments = command
    if os.sep in program and not os.path.isabs(program):
        return [program, *arguments], search  # of its own folder
    path = shutil.which(program, path=search)
    if path is None or not layout.within(path, visible):
        other_path = shutil.which(program)
        hint = (
            f"it is {other_path}, which the sandbox does not have; name its folder: sandbox={{'paths': [...]}}"
            if other_path
            else "there is no such program"
        )
        raise ValueError(f"{program!r} cannot be run in the sandbox: {hint}")
    return [path, *arguments], search


def _environment(search: str) -> dict[str, str]:
    folder = layout.COMMAND_FOLDER
    return {"PATH": search, "HOME": folder, "TMPDIR": folder, "PWD": folder, "LANG": "C.UTF-8", "USER": "user"}


def _copy_file(source: int, target: Path, room: int) -> int:
    """Copy an open file if it has at most ``room`` bytes; return the room that is left."""
    size = 0
    with open(target, "xb") as copy:
        while size <= room and (chunk := os.read(source, min(1 << 20, room - size + 1))):
            size += len(chunk)
            copy.write(chunk)
    if size <= room:
        return room - size
    target.unlink()
    return room
