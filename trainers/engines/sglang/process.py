"""An SGLang server as a child process: started, watched, ended; its words kept for error messages."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from .launcher import PARENT

_GRACE_S = 5.0  # a server has nothing to save: what is not gone by then is killed
_TAIL_LINES = 15


class ServerProcess:
    """A process, and those it starts, which write to one log file.

    It ends with :meth:`stop`, when this object is collected, or with this process: the launcher sees to the last.

    Args:
        command: What to run.
        environment: Laid over this process's own environment.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        handle, log = tempfile.mkstemp(prefix="sglang-", suffix=".log")
        self.log = Path(log)
        try:
            # A session of its own: Ctrl-C is for us, who then end the server in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment, PARENT: str(os.getpid())},
            )
        finally:
            os.close(handle)
        self._stop = weakref.finalize(self, _stop, self._process)

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """``None`` while it runs."""
        return self._process.poll()

    def tail(self) -> str:
        """The last lines of the log, and where the rest is."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"the end of {self.log}:", *lines])

    def stop(self, *, keep_log: bool = False) -> None:
        """End it and all that it started; blocks for some seconds at most. Safe to call twice."""
        self._stop()
        if not keep_log:
            self.log.unlink(missing_ok=True)


def launcher_command(python: str | Path) -> list[str]:
    """How SGLang's own Python runs the launcher; the server's arguments follow."""
    return [str(python), str(Path(__file__).with_name("launcher.py"))]


def free_port() -> int:
    """A TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process.pid, signal.SIGTERM)
    _signal_group(process.pid, signal.SIGCONT)  # one that is stopped hears nothing else
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _signal_group(process.pid, signal.SIGKILL)  # the children too, which a killed parent leaves behind
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
