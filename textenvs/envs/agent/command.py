"""A command under way: a process group and a folder of its own, or a sandbox; nothing is left after its end."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...gateway.server import gateway
from ...sandbox import SandboxFailure, SandboxUnavailable
from ...sandbox.command import PORT, CommandBox, CommandSandbox
from ...sandbox.layout import COMMAND_FOLDER
from ...text import excerpt
from .reaper import kill_group, kill_marked

#: Bytes of a program's output that are kept: its last words.
LAST_WORDS = 2_000
#: Milliseconds between two looks at the memory of a command in a sandbox.
_LOOK_MS = 200
#: A task's JSON above this size, in bytes, is in the file alone: an environment variable has a limit.
_VARIABLE_BYTES = 100_000
#: Bytes of a line of a serving command, at most.
_LINE_BYTES = 1_000_000
#: Reads of a stream after the end of its process, 64 KiB each: what it started may write on.
_LAST_READS = 32
#: The folder of a command has the task under this name.
TASK_FILE = "task.json"


class ProgramError(Exception):
    """The end of a command that did not succeed."""


@dataclass(frozen=True)
class CommandSettings:
    """The settings of a command that are the environment's options of the same names."""

    words: tuple[str, ...]
    files: Path | None = None
    sandbox: CommandSandbox | None = None


class Command:
    """A command in a process group and a new folder, which are gone after its end; or in a sandbox.

    Args:
        settings: What runs, and where.
        url: The gateway's address, outside a sandbox.
        key: The key in its environment, which also marks the processes that it starts.
        on_end: Called once, in a thread, with ``None`` for success, or with the error.
        task: The task as JSON; ``None`` where tasks come by ``stdin``.
        on_line: Called in the same thread with each line of its standard output, which is then no part of its last
            words; it has a standard input, and a standard error of its own.

    Raises:
        ProgramError: It cannot be started.
    """

    def __init__(
        self,
        settings: CommandSettings,
        url: str,
        key: str,
        on_end: Callable[[ProgramError | None], None],
        *,
        task: str | None = None,
        on_line: Callable[[bytes], None] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="textenvs-agent-"))
        self.url = url if settings.sandbox is None else f"http://127.0.0.1:{PORT}"
        self._key, self._on_end, self._on_line = key, on_end, on_line
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._reaped = self._stopped = False
        self._box: CommandBox | None = None
        try:
            self._process = self._start(settings, task)
        except (OSError, ValueError, shutil.Error, SandboxFailure, SandboxUnavailable) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise ProgramError(f"it cannot be started: {error}") from error
        _running.add(self)
        threading.Thread(target=self._watch, name="textenvs-agent", daemon=True).start()
        try:
            _reaper.started(self._process.pid, key, str(self.folder))
        except OSError as error:
            self.stop()
            raise ProgramError(f"the process that watches over it cannot be started: {error}") from error

    def _start(self, settings: CommandSettings, task: str | None) -> subprocess.Popen[bytes]:
        piped = self._on_line is not None
        if settings.sandbox is None:
            _fill(self.folder, settings.files, task)
            return subprocess.Popen(
                settings.words,
                cwd=self.folder,
                env={**os.environ, **_variables(str(self.folder), task, self.url, self._key)},
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if piped else subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        variables = _variables(COMMAND_FOLDER, task, self.url, self._key)
        box = settings.sandbox.open(settings.words, variables, piped=piped)
        listens = False
        try:
            _fill(box.folder, settings.files, task)
            gateway().listen(self._key, box.listener)
            listens = True
            box.begin()
        except BaseException:
            box.kill()
            box.process.wait()
            if listens:
                gateway().close(self._key)  # the socket is the server's now: closed under it, it breaks the next one
            else:
                box.listener.close()
            box.close()
            raise
        self._box = box
        return box.process

    def write(self, line: bytes) -> None:
        """Write to its standard input; ``OSError`` where it has ended."""
        assert self._process.stdin is not None
        with self._writing:
            rest = memoryview(line)
            while rest:
                rest = rest[self._process.stdin.write(rest) :]

    def files(self) -> Path:
        """Return the folder with the command's files: with copies of them, where it is in a sandbox.

        Raises:
            OSError: There is too much in the sandbox's folder.
        """
        if self._box is not None:
            self._box.copy_files(self.folder)
        return self.folder

    def stop(self) -> None:
        """Kill the process group, and remove the folder; safe to call twice, from any thread."""
        with self._lock:
            self._stopped = True
            if not self._reaped:
                kill_group(self._process.pid)
            elif self._box is not None:
                self._box.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        """Read the output until the process ends, kill what it leaves behind, and report its end."""
        process, words, rest = self._process, b"", b""
        streams = {stream.fileno(): stream for stream in (process.stdout, process.stderr) if stream is not None}
        assert process.stdout is not None
        lines = process.stdout.fileno() if self._on_line is not None else None
        ended = os.pidfd_open(process.pid)
        watched = select.poll()  # select() has a limit on the number of a file
        for fd in (*streams, ended):
            watched.register(fd, select.POLLIN | select.POLLHUP)
        for fd in streams:
            os.set_blocking(fd, False)
        running = True
        while running:
            ready = [fd for fd, _ in watched.poll(None if self._box is None else _LOOK_MS)]
            if self._box is not None:
                self._box.check_memory()
            running = ended not in ready
            outputs = [fd for fd in streams if fd in ready] if running else [*streams] * _LAST_READS
            for fd in outputs:
                chunk = _read(fd)
                if chunk == b"" and running:
                    watched.unregister(fd)
                if fd == lines and self._on_line is not None:
                    *whole, rest = (rest + (chunk or b"")).split(b"\n")
                    for line in whole:
                        self._on_line(line)
                    rest = rest[:_LINE_BYTES]  # cut, it is no JSON
                else:
                    words = (words + (chunk or b""))[-LAST_WORDS:]
        with self._lock:  # as long as it is not reaped, its number belongs to it
            kill_group(process.pid)
            code: int | None = process.wait()
            problem = ""
            if self._box is not None:  # the process is that of the box, and the code is the command's
                code, problem = self._box.ended()
            self._reaped = True
        os.close(ended)
        for stream in (*streams.values(), process.stdin):
            if stream is not None:
                stream.close()
        kill_marked(self._key)
        self._on_end(_end_of(code, problem, words.decode("utf-8", "replace").strip()))
        _reaper.ended(process.pid)
        _running.discard(self)
        with self._lock:
            if self._stopped or self._on_line is not None:  # it may have written while its folder was removed
                shutil.rmtree(self.folder, ignore_errors=True)
                if self._box is not None:
                    self._box.close()


def _fill(folder: Path, files: Path | None, task: str | None) -> None:
    """Write the files and the task, if there is one, into a command's folder."""
    if files is not None:
        shutil.copytree(files, folder, dirs_exist_ok=True)
    if task is not None:
        (folder / TASK_FILE).write_text(task, encoding="utf-8")


def _read(output: int) -> bytes | None:
    """Return output; ``b""`` at its end, ``None`` where there is none yet."""
    with suppress(BlockingIOError):
        return os.read(output, 65_536)
    return None


def _end_of(code: int | None, problem: str, words: str) -> ProgramError | None:
    if code == 0:
        return None
    if code is None:
        how = f"was stopped: {problem}"
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
    return ProgramError(f"it {how}; its last words: {excerpt(words, LAST_WORDS) or 'none'}")


def _variables(folder: str, task: str | None, url: str, key: str) -> dict[str, str]:
    """Return the environment variables of a session; no proxy stands before the gateway."""
    own = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # which would be sent to OpenAI, with this key
    }
    if task is not None:
        own["TEXTENVS_TASK_FILE"] = f"{folder}/{TASK_FILE}"
    if task is not None and len(task.encode("utf-8", "replace")) <= _VARIABLE_BYTES:
        own["TEXTENVS_TASK"] = task
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), "127.0.0.1"]))
    return {**own, "NO_PROXY": direct, "no_proxy": direct}


class _Reaper:
    """The process that kills this one's programs if it dies; started with the first program, and again if it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._programs: dict[int, Mapping[str, Any]] = {}

    def started(self, group: int, key: str, folder: str) -> None:
        with self._lock:
            self._programs[group] = {"group": group, "key": key, "folder": folder}
            self._tell(self._programs[group])

    def ended(self, group: int) -> None:
        with self._lock:
            self._programs.pop(group, None)
            self._tell({"ended": group})

    def close_pipe(self) -> None:
        """Close this process's end of the pipe, in a forked child."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                os.close(self._process.stdin.fileno())

    def _tell(self, entry: Mapping[str, Any]) -> None:
        try:
            if self._process is not None and self._process.poll() is None:
                self._write([entry])
                return
        except BrokenPipeError:
            pass
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd="/",
        )
        self._write(list(self._programs.values()))

    def _write(self, entries: Sequence[Mapping[str, Any]]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{json.dumps(entry)}\n" for entry in entries))
        self._process.stdin.flush()


_reaper = _Reaper()
_running: set[Command] = set()


def _forget_after_fork() -> None:
    """Leave the parent's programs to the parent: a forked child holds no end of its reaper's pipe open."""
    global _reaper, _running
    _reaper.close_pipe()
    _reaper, _running = _Reaper(), set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _stop_all() -> None:
    for command in list(_running):
        command.stop()
