"""The process of an inference server, and an HTTP client for it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from textenvs.text import excerpt
from trainers.config.engine import ServedEngineSection
from trainers.engines.base import EngineError

if TYPE_CHECKING:
    import aiohttp

_GRACE_S = 5.0  # a server has no state to save: processes still running then are killed
_CHILDREN_S = 2.0  # likewise its children, after it
_TAIL_LINES, _ERROR_LINES = 15, 5  # of the log, in an error message
_ERROR = re.compile(r"\b\w+(?:Error|Exception|Interrupt)\b: .*")

_SOCKETS = "VLLM_RPC_BASE_PATH"  # the variable with vLLM's folder for them; no other server reads it

# A guard that outlives this process if that is killed, and then ends the server and removes its files.
_GUARD = """
import os, shutil, signal, sys, time
parent, group = map(int, sys.argv[1:3])
while os.getppid() == parent:
    time.sleep(0.5)
try:
    os.killpg(group, signal.SIGKILL)
except ProcessLookupError:
    pass
log, sockets = sys.argv[3:]
shutil.rmtree(sockets, ignore_errors=True)
os.path.exists(log) and os.unlink(log)
"""


_LEAST_PORT = 10_000  # of those for servers: well-known ones are below


def free_port() -> int:
    """Return a port for a server that will bind it later, perhaps after half a minute of imports.

    It is none of those that the system gives to connections, and to others that ask for any port: it stays free unless
    another server is told to take it.
    """
    try:
        least, greatest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except OSError:  # not Linux: the range that is registered for this
        least, greatest = 49152, 65535
    ports = [*range(_LEAST_PORT, least), *range(greatest + 1, 65536)]
    for port in (*random.SystemRandom().sample(ports, min(len(ports), 100)), 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise EngineError("this machine has no free port")


class ServerProcess:
    """A server and the processes it starts, which write to one log file.

    It ends with :meth:`stop`, when this object is collected, or with this process, even if that is killed. Sockets that
    vLLM's processes leave where they are killed have a folder of their own, which is then removed.

    ``environment`` is added to this process's own. Raises ``OSError``: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        handle, log = tempfile.mkstemp(prefix="server-", suffix=".log")
        self.log = Path(log)
        sockets = tempfile.mkdtemp(prefix="server-")
        try:
            # In its own session: Ctrl-C reaches this process alone, which then stops the server and its children.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment, _SOCKETS: sockets},
            )
        except OSError:
            self.log.unlink()
            os.rmdir(sockets)
            raise
        finally:
            os.close(handle)
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(self.pid), log, sockets],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._stop = weakref.finalize(self, _stop, self._process, guard, sockets)

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """Description of its end: ``was killed by SIGKILL``, ``exited with code 3``; ``None`` while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def tail(self) -> str:
        """Return the first errors in the log, its last lines, and its path."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        # Later errors follow from the first one, so the end alone may not show it.
        errors = list(dict.fromkeys(match[0] for line in lines[:-_TAIL_LINES] if (match := _ERROR.search(line))))
        header = ["errors in its log:", *errors[:_ERROR_LINES]] if errors else []
        return "\n    ".join([*header, f"the end of {self.log}:", *lines[-_TAIL_LINES:]])

    def stop(self, *, keep_log: bool = False) -> None:
        """Stop it and all that it started; blocks for some seconds at most. Safe to call twice."""
        self._stop()
        if not keep_log:
            self.log.unlink(missing_ok=True)


def _stop(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes], sockets: str) -> None:
    guard.kill()
    guard.wait()
    # Signal the server alone, which ends its children: these then remove their shared memory.
    process.terminate()
    _signal_group(process.pid, signal.SIGCONT)  # a stopped process receives nothing else
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
        deadline = time.monotonic() + _CHILDREN_S
        while time.monotonic() < deadline and _signal_group(process.pid, 0):
            time.sleep(0.05)
    _signal_group(process.pid, signal.SIGKILL)  # also children that a killed parent left
    process.wait()
    shutil.rmtree(sockets, ignore_errors=True)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to all processes of a group; return whether there are any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def server_python(section: ServedEngineSection) -> str:
    """Return the Python that starts the section's server; ``ValueError``: it is missing, or has no such server."""
    package, python = section.name, section.server.python
    make = f"`make venv-{package}` makes .venv-{package}/bin/python"
    if python is None and importlib.util.find_spec(package) is None:
        raise ValueError(
            f"{package} is not installed here: give the Python of an environment that has it ({make}, for the CPU; "
            f"with CUDA, pip install 'textenvs[{package}]' into an environment of its own), or the base_url of a "
            "server that runs already"
        )
    if python is not None and shutil.which(python) is None:
        raise ValueError(f"there is no Python at {python}; {make}")
    return python or sys.executable


def command_words(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of a server's options, by names with underscores; true is a flag, ``None`` leaves one out."""
    for name, value in arguments.items():
        word = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{word}" if value else f"--no-{word}"
        elif isinstance(value, list | tuple):
            yield from (f"--{word}", *map(str, value))
        elif value is not None:
            yield from (f"--{word}", json.dumps(value) if isinstance(value, Mapping) else str(value))


# Uvicorn drops idle connections after 5 s. Connections that are closed earlier are never dropped during a request.
_KEEPALIVE_S = 2.0


class UnreachableError(EngineError):
    """No answer arrived: the connection was refused or broke, or the request timed out."""


class Answer(NamedTuple):
    """An HTTP response; its body is what its JSON says, or its text where it is no JSON."""

    status: int
    body: Any


class Client:
    """Requests to ``base_url``, in one event loop, with ``api_key`` as bearer token; ImportError without aiohttp."""

    def __init__(self, base_url: str, api_key: str | None = None, *, extra: str) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise ImportError(f"the engine at {base_url} needs aiohttp: pip install 'textenvs[{extra}]'") from error
        self.base_url = base_url.rstrip("/")
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._aiohttp = aiohttp
        self._sessions: dict[bool, aiohttp.ClientSession] = {}  # by whether connections serve once

    async def request(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = None, alone: bool = False
    ) -> Answer:
        """Send one request, ``body`` as JSON; raises UnreachableError where no answer comes.

        Without a ``timeout`` (seconds for all of it) it waits as long as the connection stands. ``alone`` uses a
        new connection, for requests that must not be repeated: a server may close a kept one just when it is reused.
        """
        limit = self._aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._open(alone).request(method, self.base_url + path, json=body, timeout=limit) as response:
                text = (await response.read()).decode("utf-8", errors="replace")
        except (TimeoutError, self._aiohttp.ClientError, OSError) as error:
            late = isinstance(error, TimeoutError) and timeout is not None
            why = f"no answer within {timeout:g} s" if late else repr(error)
            raise UnreachableError(f"{method} {self.base_url}{path}: {why}") from error
        try:
            return Answer(response.status, json.loads(text) if text else "")
        except ValueError:
            return Answer(response.status, text)

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.popitem()[1].close()

    def _open(self, alone: bool) -> aiohttp.ClientSession:
        if alone not in self._sessions:
            http = self._aiohttp
            keep = {"force_close": True} if alone else {"keepalive_timeout": _KEEPALIVE_S}
            # A proxy of the environment must not be used for these requests: trust_env is off.
            self._sessions[alone] = http.ClientSession(
                connector=http.TCPConnector(limit=0, **keep), headers=self._headers
            )
        return self._sessions[alone]


def error_text(body: Any) -> str:
    """Return the error message in a server's answer; ``body`` is the parsed JSON, or the text."""
    while isinstance(body, Mapping):
        body = next((body[key] for key in ("error", "message", "detail") if body.get(key)), json.dumps(body))
    text = body if isinstance(body, str) else json.dumps(body, default=str)
    return excerpt(text.strip() or "nothing")


def refused(error: BaseException) -> bool:
    """Return whether the connection was refused, which a busy server never does."""
    return getattr(error.__cause__, "errno", None) == errno.ECONNREFUSED
