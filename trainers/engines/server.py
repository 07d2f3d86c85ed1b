"""The process of an inference server, its options, and an HTTP client for it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from textenvs.text import excerpt
from trainers.engines.base import EngineError

if TYPE_CHECKING:
    import aiohttp

WeightWay = Literal["auto", "process_group", "disk", "http"]

_GRACE_S = 5.0  # a server has no state to save: processes still running then are killed
_CHILDREN_S = 2.0  # likewise its children, after it
_TAIL_LINES, _ERROR_LINES = 15, 5  # of the log, in an error message
_ERROR = re.compile(r"\b\w+(?:Error|Exception|Interrupt)\b: .*")

# A guard that outlives this process if that is killed, and then ends the server.
_GUARD = """
import os, signal, sys, time
parent, group = map(int, sys.argv[1:])
while os.getppid() == parent:
    time.sleep(0.5)
try:
    os.killpg(group, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server and the processes it starts, which write to one log file.

    It ends with :meth:`stop`, when this object is collected, or with this process, even if that is killed.

    ``environment`` is added to this process's own. Raises ``OSError``: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        handle, log = tempfile.mkstemp(prefix="server-", suffix=".log")
        self.log = Path(log)
        try:
            # In its own session: Ctrl-C reaches this process alone, which then stops the server and its children.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        except OSError:
            self.log.unlink()
            raise
        finally:
            os.close(handle)
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(self.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._stop = weakref.finalize(self, _stop, self._process, guard)

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


def _stop(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes]) -> None:
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


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to all processes of a group; return whether there are any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server: its address or start, the transport of weights, and timeouts.

    ``transport`` is how weights travel: ``process_group`` (gloo, or NCCL to a server on other GPUs), ``disk`` through a
    folder that both sides see, ``http`` by value. ``auto`` is ``process_group`` to a server that is started, ``http``
    to one that runs already.

    Raises ``ValueError``: the address is none, or there is no Python with the server's package.
    """

    base_url: str | None = None  #: of a server that runs already, ``http://127.0.0.1:30000``; ``None`` starts one
    api_key: str | None = None  #: of that server
    python: str | None = None  #: of the server's environment, to start one with; ``None`` is this one
    tensor_parallel: int = 1  #: workers of a server that is started, which share each matrix
    # Of a server that is started:
    max_slots: int = 256  #: how many requests run at once; more wait
    dtype: str = "float32"  #: or ``bfloat16``
    device: str = "cpu"  #: or ``cuda``
    gpu: int | None = None  #: which one, modulo their number; ``None`` is the server's choice
    threads: int | None = None  #: on the CPU; ``None`` is torch's own choice
    kv_cache_gib: float | None = None  #: for keys and values; ``None`` is the server's choice
    seed: int = 0  #: of requests without a seed
    # Updates, health checks and timeouts:
    transport: WeightWay = "auto"
    bucket_bytes: int = 256 * 2**20  #: of weights that travel at once by ``process_group`` and ``http``, at most
    master_address: str | None = None  #: of this machine, as the server reaches it; ``None`` finds it
    update_folder: Path | None = None  #: where ``disk`` writes; ``None`` is a temporary folder of this machine
    verify: bool = True  #: after an update, compare the server's checksums with those of the sent weights
    update_timeout_s: float = 600.0  #: for one step of an update
    start_timeout_s: float = 600.0  #: until it must be ready
    health_interval_s: float = 2.0  #: between two health checks
    health_timeout_s: float = 5.0  #: that one may take; after two failures in a row the server is dead

    package: ClassVar[str]  #: what a server is started from

    def __post_init__(self) -> None:
        make = f"`make venv-{self.package}` makes .venv-{self.package}/bin/python"
        if self.base_url is not None:
            if not self.base_url.startswith(("http://", "https://")):
                raise ValueError(f"base_url must begin with http:// or https://, not {self.base_url!r}")
        elif self.python is None:
            if importlib.util.find_spec(self.package) is None:
                raise ValueError(
                    f"{self.package} is not installed here: give the Python of an environment that has it ({make}, for "
                    f"the CPU; with CUDA, pip install 'textenvs[{self.package}]' into an environment of its own), or "
                    "the base_url of a server that runs already"
                )
        elif shutil.which(self.python) is None:
            raise ValueError(f"there is no Python at {self.python}; {make}")


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
