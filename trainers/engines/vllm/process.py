"""A vLLM server as a child process: started under its own Python, watched, stopped with everything it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trainers
from trainers.engines.base import EngineDeadError

_TAIL, _ERRORS = 20, 5  # lines of its log that an error shows
_ERROR = re.compile(r"\b\w+(?:Error|Exception|Interrupt)\b: .*")


class ServerProcess:
    """One server, from start to stop.

    Its Python needs vLLM and nothing of this project's environment: it finds the package ``trainers`` through a link in
    the server's own folder, which is all that ``PYTHONPATH`` names.

    Args:
        python: The interpreter; by default this one.
        config: What ``trainers.engines.vllm.server`` reads, without ``socket``.
        model: The folder's part ``model/`` is made from this: a configuration with ``save_pretrained``.
        env: More environment variables.

    Raises:
        EngineDeadError: There is no such interpreter.
    """

    def __init__(
        self, python: str | None, config: Mapping[str, Any], model: Any, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="textenvs-vllm-"))
        self.socket, self.log = self.folder / "socket", self.folder / "log.txt"
        model.save_pretrained(self.folder / "model")
        (self.folder / "trainers").symlink_to(Path(trainers.__file__).resolve().parent)
        (self.folder / "server.json").write_text(json.dumps({**config, "socket": str(self.socket)}))
        variables = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONSTARTUP")
        } | {
            "PYTHONPATH": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            "VLLM_USE_V2_MODEL_RUNNER": "0",  # the sampler is the other one's
            "VLLM_NO_USAGE_STATS": "1",
            **(env or {}),
        }
        python = python or sys.executable
        if os.path.dirname(python):  # it is started in another folder than this one
            python = os.path.abspath(python)
        command = [python, "-m", "trainers.engines.vllm.server", str(self.folder / "server.json")]
        try:
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,  # closes when this process is gone, whatever became of it
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    cwd=self.folder,
                    start_new_session=True,  # so that all it starts can be ended at once
                )
        except OSError as error:
            shutil.rmtree(self.folder)
            raise EngineDeadError(
                f"cannot start {command[0]}: {error.strerror}. engine.vllm.python must name a Python with vLLM "
                "(`make venv-vllm` makes .venv-vllm/bin/python)"
            ) from error
        self._stop = weakref.finalize(self, _end, self._process, self.folder)

    @property
    def pid(self) -> int:
        """Of the server itself; its process group has the same number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    async def ready(self, timeout: float) -> None:
        """Wait until it can be connected to.

        Raises:
            EngineDeadError: It ended instead, or was not ready in time and was stopped; with the end of its log.
        """
        until = time.monotonic() + timeout
        while not self.socket.exists():
            if not self.running:
                raise EngineDeadError(f"the vLLM server did not start: it {self.ending()}\n{self._said()}")
            if time.monotonic() > until:
                said = self._said()
                self.stop()
                raise EngineDeadError(f"the vLLM server was not ready after {timeout:g} s and was stopped\n{said}")
            await asyncio.sleep(0.1)

    def ending(self) -> str:
        """How it ended, in words: ``was killed by SIGKILL``."""
        code = self._process.poll()
        if code is None:
            return "is still running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    def obituary(self, patience: float = 3.0) -> str:
        """Why it cannot be talked to any more; waits for its end, and makes sure that nothing of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        words = f"the vLLM server {self.ending()}"
        said = self._said()
        self.stop()
        return f"{words}\n{said}"

    def stop(self) -> None:
        """End it and all it started, and remove its folder. Safe to call again."""
        self._stop()

    def _said(self) -> str:
        try:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            return "(its log is gone)"
        # Others' errors follow upon the first one, so the end alone may not show it.
        errors = list(dict.fromkeys(found[0] for line in lines if (found := _ERROR.search(line))))
        told = ["Errors in its log:", *errors[:_ERRORS]] if errors else []
        told += ["The end of its log:", *lines[-_TAIL:]]
        if any("No module named 'vllm'" in error for error in errors):
            told.append(
                "That Python has no vLLM; see engine.vllm.python (`make venv-vllm` makes .venv-vllm/bin/python)"
            )
        return "\n    ".join(told)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # there is nothing to save
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
