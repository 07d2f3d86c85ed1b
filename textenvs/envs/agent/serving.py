"""Commands that stay alive and serve one task after another, or several at once.

A task is a line of JSON on the command's standard input, with ``id``, ``task``, ``base_url``, ``anthropic_base_url``
and ``key``. Its result is a line on the standard output, with the same ``id``, and ``reward`` or ``terms`` (neither
where a scorer judges), or ``error``; other lines are left out.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ...gateway.channel import Channel, Ended
from ...gateway.server import gateway
from ...text import excerpt, quoted
from .command import LAST_WORDS, Command, CommandSettings, ProgramError

#: Seconds in which a command must end a task whose episode is over.
_GRACE_S = 10.0
#: Ids of tasks are below this number, which JavaScript's numbers can hold. They are random, so that a policy whose
#: replies the command prints cannot write the result of its task among them.
_IDS = 2**53


class Serving:
    """The running commands of equal environments of this process, which end with the last of these.

    Args:
        settings: The command.
        most: How many tasks a command may have at a time; where all have so many, another one is started.
    """

    def __init__(self, settings: CommandSettings, most: int) -> None:
        self._settings, self._most = settings, most
        self._end: Any = None
        self.renew()

    def renew(self) -> None:
        """Begin anew, without commands; those of a forked child's parent are not the child's."""
        if self._end is not None:
            self._end.detach()
        self._lock = threading.Lock()
        self._servers: list[_Server] = []
        self._end = weakref.finalize(self, _stop_all, self._servers)
        self._end.atexit = False  # commands stop at the end of the process anyway

    @classmethod
    def of(cls, settings: CommandSettings, most: int) -> Serving:
        """Return the one of this process."""
        with _shared_lock:
            serving = _shared.get((settings, most))
            if serving is None:
                serving = _shared[settings, most] = cls(settings, most)
            return serving

    def __reduce__(self) -> tuple[Any, ...]:
        return Serving.of, (self._settings, self._most)

    def __deepcopy__(self, memo: Any) -> Serving:
        return self

    def begin(self, fields: Mapping[str, Any], url: str, channel: Channel) -> ServedProgram:
        """Give a task to a command; ``ProgramError`` where none can be started."""
        with self._lock:
            self._servers[:] = [server for server in self._servers if server.open]
            for server in self._servers:
                if (program := server.take(fields, url, channel, self._most)) is not None:
                    return program
            self._servers.append(server := _Server(self._settings, url))
            program = server.take(fields, url, channel, self._most)
        if program is None:
            raise ProgramError("it ended before it had a task")
        return program


_shared: weakref.WeakValueDictionary[tuple[CommandSettings, int], Serving] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def _forget_after_fork() -> None:
    """Leave the parent's commands to the parent."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for serving in _shared.values():
        serving.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


def _stop_all(servers: list[_Server]) -> None:
    for server in servers:
        server.stop()


class _Server:
    """A command under way and its tasks."""

    def __init__(self, settings: CommandSettings, url: str) -> None:
        self._key = f"serving-{secrets.token_urlsafe(24)}"  # opens no session
        self._boxed = settings.sandbox is not None
        self._lock = threading.RLock()  # a finalizer may abandon a task in the middle of a call
        self._open = True  # for further tasks
        self._tasks: dict[int, Channel] = {}
        self._overdue: set[int] = set()  # tasks that did not end with their episodes
        self._command = Command(settings, url, self._key, self._ended, on_line=self._read)

    @property
    def open(self) -> bool:
        return self._open

    def take(self, fields: Mapping[str, Any], url: str, channel: Channel, most: int) -> ServedProgram | None:
        """Send a task; ``None`` where there is no room, or the command has ended."""
        with self._lock:
            if not self._open or len(self._tasks) >= most:
                return None
            number = secrets.randbelow(_IDS)
            while number in self._tasks:
                number = secrets.randbelow(_IDS)
            self._tasks[number] = channel
        url = self._command.url if self._boxed else url
        addresses = {"base_url": f"{url}/v1", "anthropic_base_url": url, "key": channel.key}
        line = json.dumps({"id": number, "task": fields, **addresses}, ensure_ascii=False, default=str)
        # In a thread, because a command that does not read blocks it: the episode's time then runs out.
        threading.Thread(target=self._send, args=(line.encode("utf-8", "replace") + b"\n",), daemon=True).start()
        return ServedProgram(self, number)

    def abandon(self, number: int) -> None:
        """Note that an episode is over: its task must end soon, or the command takes no more."""
        with self._lock:
            if number not in self._tasks:
                return
        timer = threading.Timer(_GRACE_S, self._give_up, (number,))
        timer.daemon = True
        timer.start()

    def stop(self) -> None:
        self._open = False
        self._command.stop()

    def _send(self, line: bytes) -> None:
        with suppress(OSError, ValueError):  # it has ended, and says so itself
            self._command.write(line)

    def _give_up(self, number: int) -> None:
        with self._lock:
            if number not in self._tasks:
                return
            self._overdue.add(number)
            self._open = False
        self._stop_when_idle()

    def _stop_when_idle(self) -> None:
        with self._lock:
            idle = not self._open and set(self._tasks) <= self._overdue
        if idle:
            self.stop()

    def _read(self, line: bytes) -> None:
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            return
        number = result.get("id") if isinstance(result, dict) else None
        with self._lock:
            channel = self._tasks.pop(number, None) if type(number) is int else None
        if channel is not None:
            channel.program_ended(_end_of(result))
            self._stop_when_idle()

    def _ended(self, error: ProgramError | None) -> None:
        with self._lock:
            self._open = False
            channels, self._tasks = list(self._tasks.values()), {}
        gateway().close(self._key)  # the sandbox's socket
        for channel in channels:
            channel.program_ended(Ended(error=error or ProgramError("it exited with 0 before it ended the task")))


class ServedProgram:
    """A task of a serving command."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server, self._number = server, number

    def files(self) -> None:
        """Return ``None``: the folder is that of all tasks."""
        return

    def stop(self) -> None:
        self._server.abandon(self._number)


def _end_of(result: Mapping[str, Any]) -> Ended:
    names = [name for name in ("error", "reward", "terms") if result.get(name) is not None]
    if len(names) > 1:
        return Ended(error=ProgramError(f"its result has {' and '.join(names)}: {quoted(dict(result), 200)}"))
    if names == ["error"]:
        return Ended(error=ProgramError(f"it reported: {excerpt(str(result['error']), LAST_WORDS)}"))
    return Ended(result[names[0]] if names else None)
