"""A program under way: a function in a thread, or a command in a process group and a folder of its own."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...gateway.channel import Channel, Ended
from ...gateway.server import gateway
from ...sandbox import SandboxFailure, SandboxUnavailable
from ...sandbox.command import PORT, CommandBox, CommandSandbox
from ...sandbox.layout import COMMAND_FOLDER
from ...task import Task
from ...text import excerpt
from .reaper import kill_group, kill_marked

#: Bytes of a program's output that are kept: its last words.
LAST_WORDS = 2_000
#: A task's JSON above this size, in bytes, is in the file alone: an environment variable has a limit.
_VARIABLE_BYTES = 100_000
#: What asyncio says where a library keeps the connections of an earlier episode.
_LOOP_WORDS = ("Event loop is closed", "different loop", "different event loop")
_LOOP_HINT = (
    ". An asynchronous agent has an event loop of its own in each episode: create its client there, and close it"
)
#: Milliseconds between two looks at the memory of a command in a sandbox.
_LOOK_MS = 200
#: The folder of a command has the task under this name.
TASK_FILE = "task.json"


class ProgramError(Exception):
    """The end of a command that did not succeed."""


class Program(Protocol):
    """A program that runs; ``stop`` may come twice, from anywhere."""

    def files(self) -> Path | None:
        """Return the folder with a command's files; ``None`` for a function. It may be called once."""

    def stop(self) -> None: ...


def task_fields(task: Task, *, with_answer: bool) -> dict[str, Any]:
    """Return a task as a command gets it in JSON."""
    fields: dict[str, Any] = {
        "key": task.key,
        "data_source": task.data_source,
        "question": task.question,
        "prompt": [dict(message) for message in task.prompt],
        "extra": dict(task.extra),
    }
    return {**fields, "ground_truth": task.ground_truth} if with_answer else fields


def last_words(error: BaseException) -> str:
    """Return an exception of a program in words: its type, message and place."""
    if isinstance(error, ProgramError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "it cannot be written"
    hint = _LOOP_HINT if isinstance(error, RuntimeError) and any(words in text for words in _LOOP_WORDS) else ""
    return f"it raised {type(error).__name__}: {excerpt(text, LAST_WORDS)}{place}{hint}"


# ------------------------------------------------------------------ functions


class FunctionProgram:
    """A plain or asynchronous function in a thread of its own, which nothing can stop but its next call of the model.

    An asynchronous one has an event loop of its own: whatever it blocks, the gateway goes on.
    """

    def __init__(self, function: Callable[..., Any], task: Task, url: str, channel: Channel) -> None:
        arguments = (function, channel, task, url, channel.key)
        threading.Thread(target=_call, args=arguments, name="textenvs-agent", daemon=True).start()

    def files(self) -> None:
        return None

    def stop(self) -> None:
        """Return: the session has ended, so the function's next call of the model raises."""


def _call(function: Callable[..., Any], channel: Channel, *arguments: Any) -> None:
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except BaseException as error:  # SystemExit is an end, too
        channel.program_ended(Ended(error=error))
    else:
        channel.program_ended(Ended(result))


async def _awaited(value: Any) -> Any:
    return await value


# ------------------------------------------------------------------ commands


class CommandProgram:
    """A command in a process group and a new folder, which are gone after its end; or in a sandbox.

    Raises:
        ProgramError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        files: Path | None,
        sandbox: CommandSandbox | None,
        fields: Mapping[str, Any],
        url: str,
        channel: Channel,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="textenvs-agent-"))
        self._channel = channel
        self._lock = threading.Lock()
        self._reaped = self._stopped = False
        self._box: CommandBox | None = None
        task = json.dumps(fields, ensure_ascii=False, default=str)
        try:
            if sandbox is None:
                _fill(self.folder, files, task)
                self._process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env={**os.environ, **_variables(str(self.folder), task, url, channel.key)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    bufsize=0,
                    start_new_session=True,
                )
            else:
                self._process = self._start_in(sandbox, command, files, task)
        except (OSError, ValueError, shutil.Error, SandboxFailure, SandboxUnavailable) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise ProgramError(f"it cannot be started: {error}") from error
        _running.add(self)
        threading.Thread(target=self._watch, name="textenvs-agent", daemon=True).start()
        try:
            _reaper.started(self._process.pid, channel.key, str(self.folder))
        except OSError as error:
            self.stop()
            raise ProgramError(f"the process that watches over it cannot be started: {error}") from error

    def _start_in(
        self, sandbox: CommandSandbox, command: Sequence[str], files: Path | None, task: str
    ) -> subprocess.Popen[bytes]:
        key = self._channel.key
        box = sandbox.open(command, _variables(COMMAND_FOLDER, task, f"http://127.0.0.1:{PORT}", key))
        try:
            _fill(box.folder, files, task)
            gateway().listen(key, box.listener)
            box.begin()
        except BaseException:
            box.kill()
            box.process.wait()
            box.listener.close()
            box.close()
            raise
        self._box = box
        return box.process

    def files(self) -> Path:
        """Return the folder with the command's files: with copies of them, where it is in a sandbox.

        Raises:
            OSError: There is too much in the sandbox's folder.
        """
        if self._box is not None:
            self._box.copy_files(self.folder)
        return self.folder

    def stop(self) -> None:
        """Kill the process group, and remove the folder."""
        with self._lock:
            self._stopped = True
            if not self._reaped:
                kill_group(self._process.pid)
            elif self._box is not None:
                self._box.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        """Read the output until the process ends, kill what it leaves behind, and report its end."""
        process, words = self._process, b""
        assert process.stdout is not None
        output = process.stdout.fileno()
        ended = os.pidfd_open(process.pid)
        watched = select.poll()  # select() has a limit on the number of a file
        watched.register(output, select.POLLIN | select.POLLHUP)
        watched.register(ended, select.POLLIN)
        os.set_blocking(output, False)
        while True:
            ready = dict(watched.poll(None if self._box is None else _LOOK_MS))
            if self._box is not None:
                self._box.check_memory()
            if output in ready:
                chunk = _read(output)
                words = (words + (chunk or b""))[-LAST_WORDS:]
                if chunk == b"":
                    watched.unregister(output)
            if ended in ready:
                break
        words = (words + (_read(output) or b""))[-LAST_WORDS:]
        with self._lock:  # as long as it is not reaped, its number belongs to it
            kill_group(process.pid)
            code: int | None = process.wait()
            problem = ""
            if self._box is not None:  # the process is that of the box, and the code is the command's
                code, problem = self._box.ended()
            self._reaped = True
        os.close(ended)
        process.stdout.close()
        kill_marked(self._channel.key)
        self._channel.program_ended(_end_of(code, problem, words.decode("utf-8", "replace").strip()))
        _reaper.ended(process.pid)
        _running.discard(self)
        with self._lock:
            if self._stopped:  # it may have written while its folder was removed
                shutil.rmtree(self.folder, ignore_errors=True)
                if self._box is not None:
                    self._box.close()


def _fill(folder: Path, files: Path | None, task: str) -> None:
    """Write the files and the task into a command's folder."""
    if files is not None:
        shutil.copytree(files, folder, dirs_exist_ok=True)
    (folder / TASK_FILE).write_text(task, encoding="utf-8")


def _read(output: int) -> bytes | None:
    """Return output; ``b""`` at its end, ``None`` where there is none yet."""
    with suppress(BlockingIOError):
        return os.read(output, 65_536)
    return None


def _end_of(code: int | None, problem: str, words: str) -> Ended:
    if code == 0:
        return Ended()
    if code is None:
        how = f"was stopped: {problem}"
    else:
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
    return Ended(error=ProgramError(f"it {how}; its last words: {excerpt(words, LAST_WORDS) or 'none'}"))


def _variables(folder: str, task: str, url: str, key: str) -> dict[str, str]:
    """Return the environment variables of a session; no proxy stands before the gateway."""
    own = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": key,
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # which would be sent to OpenAI, with this key
        "TEXTENVS_TASK_FILE": f"{folder}/{TASK_FILE}",
    }
    if len(task.encode("utf-8", "replace")) <= _VARIABLE_BYTES:
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
_running: set[CommandProgram] = set()


def _forget_after_fork() -> None:
    """Leave the parent's programs to the parent: a forked child holds no end of its reaper's pipe open."""
    global _reaper, _running
    _reaper.close_pipe()
    _reaper, _running = _Reaper(), set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _stop_all() -> None:
    for program in list(_running):
        program.stop()
