"""An inference server behind HTTP: its process, where the run starts one, and whether it lives.

Every engine that is a server uses these two: :class:`ServerProcess` starts and stops one, :class:`ServerHealth` waits
until it is ready, watches that it answers, and says why it is gone. Whether it also computes, and what takes the place
of a dead one, is the matter of :class:`trainers.engines.replicas.Replicas`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from trainers.engines.base import EngineDeadError, EngineError
from trainers.engines.http import Client, error_text, refused

_Result = TypeVar("_Result")
WeightWay = Literal["auto", "process_group", "disk", "http"]

_GRACE_S = 5.0  # a server has nothing to save: what has not ended by then is killed
_CHILDREN_S = 2.0  # likewise its children, after it
_TAIL_LINES, _ERROR_LINES = 15, 5  # of the log, in an error message
_ERROR = re.compile(r"\b\w+(?:Error|Exception|Interrupt)\b: .*")
_TICK_S = 0.25  # between two looks at the process

# Outlives this process if that is killed, and then ends the server, which may be any program.
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
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server and the processes it starts, which write to one log file.

    It ends with :meth:`stop`, when this object is collected, or with this process, even if that is killed.

    Args:
        command: What to run.
        environment: Added to this process's own environment.
        folder: Its working directory; ``None`` is this process's own.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, folder: str | Path | None = None
    ) -> None:
        handle, log = tempfile.mkstemp(prefix="server-", suffix=".log")
        self.log = Path(log)
        try:
            # A session of its own: Ctrl-C is for this process, which then stops the server and all that it started.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
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
        """How it ended: ``was killed by SIGKILL``, ``exited with code 3``; ``None`` while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def tail(self) -> str:
        """The first errors in the log, its last lines, and where the rest is."""
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        # Others follow from the first error, so the end alone may not show it.
        errors = list(dict.fromkeys(found[0] for line in lines[:-_TAIL_LINES] if (found := _ERROR.search(line))))
        said = ["errors in its log:", *errors[:_ERROR_LINES]] if errors else []
        return "\n    ".join([*said, f"the end of {self.log}:", *lines[-_TAIL_LINES:]])

    def stop(self, *, keep_log: bool = False) -> None:
        """Stop it and all that it started; blocks for some seconds at most. Safe to call twice."""
        self._stop()
        if not keep_log:
            self.log.unlink(missing_ok=True)


def _stop(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes]) -> None:
    guard.kill()
    guard.wait()
    # To the server alone, which ends its children: these remove their shared memory, which a signal would prevent.
    process.terminate()
    _signal_group(process.pid, signal.SIGCONT)  # a stopped process receives nothing else
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
        deadline = time.monotonic() + _CHILDREN_S
        while time.monotonic() < deadline and _signal_group(process.pid, 0):
            time.sleep(0.05)
    _signal_group(process.pid, signal.SIGKILL)  # the children too, which a killed parent leaves behind
    process.wait()


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to all processes of a group; whether there are any."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@dataclass(frozen=True)
class ServerOptions:
    """How an engine reaches its server, how it brings weights there, and how patient it is.

    Args:
        base_url: Of a server that runs already, for example ``http://127.0.0.1:30000``; ``None`` starts one.
        api_key: Of that server.
        python: The Python of the server's environment, to start one with; ``None`` is this one.
        tensor_parallel: Workers of a server that is started, which share each matrix.
        transport: How weights travel: ``process_group`` (gloo, or NCCL to a server on other GPUs), ``disk`` through a
            folder that both sides see, ``http`` by value. ``auto`` is ``process_group`` to a server that is started,
            ``http`` to one that runs already.
        bucket_bytes: Of weights that travel at once by ``process_group`` and ``http``, at most.
        master_address: Of this machine, as the server reaches it, for ``process_group``; ``None`` finds it.
        update_folder: Where ``disk`` writes; ``None`` is a temporary folder of this machine.
        verify: After an update, compare the server's checksums with what was sent.
        update_timeout_s: Seconds for one step of an update.
        start_timeout_s: Seconds until it must be ready.
        health_interval_s: Seconds between two health checks.
        health_timeout_s: Seconds that one may take; after two failures in a row the server is dead.

    Raises:
        ValueError: A number is not positive, the address is none, or there is no Python with the server's package.
    """

    base_url: str | None = None
    api_key: str | None = None
    python: str | None = None
    tensor_parallel: int = 1
    transport: WeightWay = "auto"
    bucket_bytes: int = 256 * 2**20
    master_address: str | None = None
    update_folder: Path | None = None
    verify: bool = True
    update_timeout_s: float = 600.0
    start_timeout_s: float = 600.0
    health_interval_s: float = 2.0
    health_timeout_s: float = 5.0

    package: ClassVar[str]  #: what a server is started from

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        make = f"`make venv-{self.package}` makes .venv-{self.package}/bin/python"
        if self.base_url is not None:
            if not self.base_url.startswith(("http://", "https://")):
                raise ValueError(f"base_url must begin with http:// or https://, not {self.base_url!r}")
            if self.python is not None:
                raise ValueError("base_url names a server that runs already: python would start one")
        elif self.python is None:
            if importlib.util.find_spec(self.package) is None:
                raise ValueError(
                    f"{self.package} is not installed here: give the Python of an environment that has it ({make}, for "
                    f"the CPU; with CUDA, pip install 'textenvs[{self.package}]' into an environment of its own), or "
                    "the base_url of a server that runs already"
                )
        elif shutil.which(self.python) is None:
            raise ValueError(f"there is no Python at {self.python}; {make}")


class ServerHealth:
    """Whether a server lives. Once it is dead, it stays dead.

    Args:
        kind: What it is, in messages: ``SGLang``.
        path: What a health check gets; 200 is healthy.
        client: To ask it.
        process: Where it is ours: its end is noticed within a quarter of a second.
        options: How patient to be.
        on_death: Called after every :meth:`finish`, to tell those who wait.
    """

    def __init__(
        self,
        kind: str,
        path: str,
        client: Client,
        process: ServerProcess | None,
        options: ServerOptions,
        *,
        on_death: Callable[[], None],
    ) -> None:
        self.error: EngineDeadError | None = None  #: why it is dead
        self._path, self._client, self._process, self._options = path, client, process, options
        self._kind, self._on_death = kind, on_death
        self._over = asyncio.Event()

    @property
    def name(self) -> str:
        """The server, in messages."""
        process = "" if self._process is None else f" (process {self._process.pid})"
        return f"the {self._kind} server at {self._client.base_url}{process}"

    @property
    def tail(self) -> str:
        """The end of its log on lines of its own, where the process is ours."""
        return "" if self._process is None else f"\n{self._process.tail()}"

    def check(self) -> None:
        """Return while it lives.

        Raises:
            EngineDeadError: It is dead.
        """
        if self.error is not None:
            raise EngineDeadError(str(self.error)) from self.error.__cause__

    def finish(self, error: EngineDeadError, cause: BaseException | None = None) -> None:
        """It is dead, for the reason that is given first."""
        if self.error is None:
            error.__cause__ = cause or error.__cause__
            self.error = error
        self._over.set()
        self._on_death()

    async def while_alive(self, work: Awaitable[_Result]) -> _Result:
        """Await ``work``, which is cancelled when the server dies first.

        Raises:
            EngineDeadError: The server is dead.
        """
        task, over = asyncio.ensure_future(work), asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return task.result()
        finally:
            over.cancel()
            task.cancel()

    async def wait_until_ready(self) -> Any:
        """Wait for the first health check that succeeds; returns the body of its answer.

        Raises:
            EngineDeadError: Its process ended.
            EngineError: It took longer than ``start_timeout_s``.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._options.start_timeout_s
        while True:
            self._check_process("did not start: it")
            try:
                return await self._check_health()
            except EngineError as error:
                if clock() > deadline:
                    raise EngineError(f"it was not ready after {self._options.start_timeout_s:g} s ({error})") from None
            await asyncio.sleep(_TICK_S)

    async def watch(self) -> None:
        """Run until the server dies, and then call :meth:`finish`."""
        options, clock = self._options, asyncio.get_running_loop().time
        checked, failures = clock(), 0
        try:
            while self.error is None:
                await asyncio.sleep(min(_TICK_S, options.health_interval_s))
                self._check_process("died: it")
                if clock() - checked < options.health_interval_s:
                    continue
                try:
                    await self._check_health()
                    failures = 0
                except EngineError as error:
                    failures += 1
                    self._check_process("died: it")
                    if failures > 1 or refused(error):
                        raise EngineDeadError(f"{self.name} is gone: {error}{self.tail}") from error
                checked = clock()
        except EngineDeadError as error:
            self.finish(error)

    async def suspect(self, error: BaseException) -> None:
        """Something failed: find out whether the server is dead, and finish it if so.

        Raises:
            EngineDeadError: It is.
        """
        self.check()
        try:
            self._check_process("died: it")
            await self._check_health()
        except EngineError:
            ended = None if self._process is None else self._process.ended
            for _ in range(4 if self._process is not None else 0):
                if ended is None:  # a killed process is gone a moment after its connections are
                    await asyncio.sleep(0.05)
                    ended = self._process.ended if self._process is not None else None
            said = "is gone" if ended is None else f"died: it {ended}"
            self.finish(EngineDeadError(f"{self.name} {said}: {error}{self.tail}"), error)
        self.check()

    async def _check_health(self) -> Any:
        answer = await self._client.request("GET", self._path, timeout=self._options.health_timeout_s)
        if answer.status != 200:
            raise EngineError(f"{self._path} answers {answer.status}: {error_text(answer.body)}")
        return answer.body

    def _check_process(self, what: str) -> None:
        if self._process is not None and (ended := self._process.ended) is not None:
            raise EngineDeadError(f"{self.name} {what} {ended}{self.tail}")
