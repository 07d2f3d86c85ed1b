"""The host's side of :mod:`.shell_init`: a process that runs commands of a shell, one at a time."""

from __future__ import annotations

import functools
import json
import marshal
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cgroup, layout
from .backends import make_shell_job
from .process import START_S, launch
from .result import SandboxFailure, SandboxUnavailable, ShellLimits, transient
from .worker import Worker, WorkerDied, WorkerTooLarge

#: The arguments of bash; the first is in one line, so that errors have the lines of the command.
RUN = (
    'eval "$1"; shift; __shell_return "$__shell_status"; eval "$__shell_options$__shell_command"; '
    '{ __shell_status=$?; __shell_save "$SHELLOPTS"; } 2>/dev/null; __shell_return "$__shell_status"'
)
PREPARE = Path(__file__).with_name("shell.bash").read_text("utf-8")
#: Seconds that a box may take for its own work, above a command's.
_GRACE_S = START_S
#: MiB for the processes of this package in the box, beside the files that they read and write.
_OVERHEAD_MB = 64


@dataclass(frozen=True)
class Reply:
    """The answer of a box to a request.

    ``stopped`` is the limit that ended it (``"wall"``, ``"output"``, ``"memory"``), ``"broken"`` where the box ended
    before the command, or empty. ``cpu_s`` is of bash and of the processes that it waited for. ``head``, ``tail`` and
    ``omitted`` are of the output; ``saved`` is what bash wrote of its state. ``files`` are the entries that differ
    (path, kind, mode, mtime_ns, content), ``removed`` the paths that are gone, ``dropped`` those that cannot be kept;
    ``survivors`` is how many processes ran still.
    """

    stopped: str = ""
    code: int | None = None
    cpu_s: float = 0.0
    head: bytes = b""
    tail: bytes = b""
    omitted: int = 0
    saved: bytes = b""
    files: tuple[tuple[str, str, int, int, bytes], ...] = ()
    removed: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    survivors: int = 0


class ShellServer(Worker):
    """A started process that runs commands in boxes of their own; one thread at a time may use it."""

    def __init__(self, limits: ShellLimits, folders: Sequence[str], *, proc: bool) -> None:
        argv = [bash_path(), "--noprofile", "--norc", "-c", RUN, "bash", PREPARE]
        self._group = None if (parent := cgroup.parent()) is None else cgroup.Group(parent, limits)
        try:
            process, lines = launch(
                make_shell_job(argv, limits, folders, proc=proc), stdin=subprocess.PIPE, group=self._group
            )
            memory_mb = limits.memory_mb + 4 * limits.disk_mb + _OVERHEAD_MB
            super().__init__(process, max_bytes=16, lines=lines, memory_mb=memory_mb)
        except BaseException:
            self._close_group()
            raise

    def ask(self, question: Any, timeout_s: float) -> Reply:
        """Run a command; ``question`` is a request of :mod:`.shell_init`, and ``timeout_s`` is the command's.

        Raises:
            SandboxFailure: The box could not be made: nothing was run. ``WorkerDied`` where this process has ended.
        """
        deadline = time.monotonic() + timeout_s + _GRACE_S
        content = marshal.dumps(dict(question))
        began = False
        try:
            self._send(len(content).to_bytes(8, "little") + content, deadline)
            answer = _Answer(self._chunks(deadline))
            kind = answer.take(1)
            if began := kind == b"s":
                kind = answer.take(1)
            sizes = [int.from_bytes(answer.take(8), "little") for _ in range(1 if kind == b"f" else 2)]
            parts = [answer.take(size) for size in sizes]
        except (WorkerDied, TimeoutError) as error:
            return self._ended_in(error, began)
        if kind == b"f":
            raise SandboxFailure(f"the sandbox could not be made: {parts[0].decode(errors='replace')}")
        return _reply(json.loads(parts[0]), parts[1])

    def close(self) -> None:
        super().close()
        self._close_group()

    def _ended_in(self, error: Exception, began: bool) -> Reply:
        """Return what a command did that ended this process; raise ``error`` where there was no command yet."""
        self.kill()
        if isinstance(error, WorkerTooLarge) or (self._group is not None and self._group.ran_out()):
            return Reply("memory")
        if not began:
            raise error if isinstance(error, WorkerDied) else WorkerDied("the sandbox took too long to be made")
        return Reply("wall" if isinstance(error, TimeoutError) else "broken")

    def _close_group(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def start(limits: ShellLimits, folders: Sequence[str]) -> ShellServer:
    """Start a server whose commands write in these folders of the root.

    They have ``/proc`` where the kernel permits that: in most containers it does not.
    """
    return ShellServer(limits, folders, proc=_proc_permitted())


@functools.cache
def _proc_permitted() -> bool:
    try:
        ShellServer(ShellLimits(), ("/tmp",), proc=True).close()
    except SandboxFailure as failure:
        if "mount(/proc)" in str(failure) and not transient(failure):
            return False
        raise  # of other causes, and so not remembered
    return True


class _Answer:
    """Bytes that come in chunks, taken by number."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._held = chunks, bytearray()

    def take(self, size: int) -> bytes:
        while len(self._held) < size:
            self._held += next(self._chunks)
        content = bytes(self._held[:size])
        del self._held[:size]
        return content


def _reply(result: Mapping[str, Any], contents: bytes) -> Reply:
    sizes = [*result["sizes"], *(size for *_, size in result["files"])]
    parts, start = [], 0
    for size in sizes:
        parts.append(contents[start : start + size])
        start += size
    head, tail, saved, *of_files = parts
    files = [(*file[:4], content) for file, content in zip(result["files"], of_files, strict=True)]
    return Reply(
        result["stopped"],
        result["code"],
        result["cpu_s"],
        head,
        tail,
        result["omitted"],
        saved,
        tuple(files),
        tuple(result["removed"]),
        tuple(result["dropped"]),
        result["survivors"],
    )


def bash_path() -> str:
    """Return bash's path in the box; ``SandboxUnavailable`` where this machine has none that the box sees."""
    visible = [inside for _, inside in layout.shell_layout()["binds"]]
    path = next((path for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash") if os.path.exists(path)), None)
    path = path or shutil.which("bash")
    if path is None or not layout.within(os.path.realpath(path), visible):
        raise SandboxUnavailable("a shell needs bash in a folder of the system; install it (apt-get install bash)")
    return os.path.realpath(path)
