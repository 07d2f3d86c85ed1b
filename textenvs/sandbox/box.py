"""The sandbox that tools, scorers and environments use."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import Any

from . import layout
from .backends import BACKENDS, Backend, choose, make_job
from .process import Run, launch
from .result import Limits, SandboxResult, SandboxUnavailable
from .worker import CORES, Worker, threads

#: Concurrent runs in one process. More would only slow each other into their limits of wall time; a run that waits for
#: its turn has not begun.
CONCURRENCY = 2 * CORES
# Room in the box's folder for the kernel's own records.
_SPARE = 9 << 13


class Sandbox:
    """A sandbox for untrusted Python programs.

    Every run is a new process in a new box, which finds nothing of an earlier one. Hashes, unseeded random numbers and
    addresses are the same in every run; the clock is not. A sandbox holds settings only: it is cheap to make, to copy
    and to pickle, and serves any number of runs at once.

    Args:
        limits: What a run may use.
        packages: What code can import besides the standard library: ``None`` for nothing, ``"installed"`` for the
            packages of this interpreter, or a folder (filled with ``pip install --target``).
        seed: What ``random`` and ``numpy.random`` are seeded with as they are imported; ``None`` for not at all.
        backend: ``"bubblewrap"`` or ``"namespaces"``; ``None`` for the first of these that holds on this machine.
        allow_unsafe: Where no backend holds, run with limits only: **no isolation**. The code then has the files, the
            network and the rights of this process, and may outlive its run.

    Raises:
        SandboxUnavailable: No backend works here, and ``allow_unsafe`` is not set. The message has the remedy.
        ValueError: A value outside the above.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        packages: str | Path | None = None,
        seed: int | None = 0,
        backend: Backend | None = None,
        allow_unsafe: bool = False,
    ) -> None:
        if limits is not None and not isinstance(limits, Limits):
            raise ValueError(f"limits must be a Limits, not {limits!r}; for example Limits(cpu_s=5)")
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"backend must be None or one of {', '.join(BACKENDS)}, not {backend!r}")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 32):
            raise ValueError(f"seed must be None or an integer from 0 to 2**32 - 1, not {seed!r}")
        self.limits = limits or Limits()
        self.packages = packages
        self.seed = seed
        self.allow_unsafe = bool(allow_unsafe)
        self._asked = backend
        self._folders = layout.package_folders(packages)
        self._found: Backend | None = None
        self._found = self.backend

    @classmethod
    def of(cls, value: Sandbox | Mapping[str, Any] | None) -> Sandbox:
        """Return the sandbox of an environment's option; plain options can be sent as JSON.

        Args:
            value: A sandbox, a mapping of its options (``packages``, ``allow_unsafe``, ...) and of those of its limits
                (``cpu_s``, ``memory_mb``, ...), or ``None`` for the defaults.
        """
        if isinstance(value, Sandbox):
            return value
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"sandbox must be a Sandbox, a mapping of its options or None, not {value!r}")
        own, of_limits = ("packages", "seed", "backend", "allow_unsafe"), [field.name for field in fields(Limits)]
        options = dict(value or {})
        if unknown := sorted(set(options) - {*own, *of_limits}):
            raise ValueError(f"sandbox has no option {unknown[0]!r}; it has {', '.join((*own, *of_limits))}")
        limits = Limits(**{name: options.pop(name) for name in of_limits if name in options})
        return cls(limits=limits, **options)

    @property
    def backend(self) -> Backend:
        """The backend: ``"bubblewrap"``, ``"namespaces"``, or ``"unsafe"`` for limits without isolation."""
        if self._found is None:
            try:
                self._found = choose(self._asked)
            except SandboxUnavailable as refusal:
                if not self.allow_unsafe or self._asked is not None:
                    raise
                warnings.warn(
                    "NO SANDBOX: programs of the model run with the files, the network and the rights of this "
                    f"process (allow_unsafe=True). {refusal}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._found = "unsafe"
        return self._found

    async def run(self, code: str, *, stdin: str = "", limits: Limits | None = None) -> SandboxResult:
        """Run a program; a cancelled call kills the run.

        Args:
            code: Its source text; it runs as ``main.py`` in the box's folder.
            stdin: What it reads from standard input.
            limits: What this run may use, where that is not what the sandbox's runs may.

        Returns:
            How it ended. Whatever the code does ends here, and not in an exception.

        Raises:
            SandboxFailure: The box could not be made.
            ValueError: More in ``stdin`` than ``limits.disk_mb`` holds.
        """
        run, result = self._start(code, stdin, limits or self.limits)
        try:
            return await asyncio.wrap_future(result)
        except asyncio.CancelledError:
            run.cancel()
            raise

    def run_now(self, code: str, *, stdin: str = "") -> SandboxResult:
        """Run a program like :meth:`run`, and wait for it in this thread."""
        run, result = self._start(code, stdin, self.limits)
        try:
            return result.result()
        except KeyboardInterrupt:
            run.cancel()
            raise

    def start(self, code: str) -> Worker:
        """Start a program that stays alive and answers questions; the caller closes it.

        The caller enforces the limits ``wall_s`` and ``cpu_s``, question by question: ``cpu_s`` is that of one
        process from its start to its end.

        Raises:
            SandboxUnavailable: There is no isolation (``allow_unsafe``): such a program is not started.
            SandboxFailure: The box could not be made, or the program did not start.
        """
        if self.backend == "unsafe":
            raise SandboxUnavailable("a program that stays is started only in a sandbox that isolates it")
        process, lines = launch(self._job(code, self.limits), stdin=subprocess.PIPE)
        return Worker(process, max_bytes=self.limits.output_bytes, lines=lines, memory_mb=self.limits.memory_mb)

    def __repr__(self) -> str:
        return f"Sandbox(backend={self.backend!r}, limits={self.limits!r}, packages={self.packages!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; another machine chooses its own backend."""
        return {**self.__dict__, "_found": None}

    def _job(self, code: str, limits: Limits, stdin: bytes | None = None) -> dict[str, Any]:
        job = make_job(self.backend, self._folders, limits, code.encode("utf-8", "replace"), stdin)
        if self.seed is not None:
            job["environment"] |= {"SANDBOX_SEED": str(self.seed)}
        return job

    def _start(self, code: str, stdin: str, limits: Limits) -> tuple[Run, Future[SandboxResult]]:
        run = Run(self._job(code, limits, stdin.encode("utf-8", "replace")), limits)
        room = (limits.disk_mb << 20) - _SPARE
        program_size, stdin_size = len(run.job["program"]), len(run.job["stdin"])
        if program_size + stdin_size > room >= 2 * program_size:
            raise ValueError(f"stdin has {stdin_size} bytes; limits.disk_mb={limits.disk_mb} has no room")
        return run, threads(CONCURRENCY, "textenvs-sandbox").submit(_finish, run, program_size + stdin_size > room)


def _finish(run: Run, too_long: bool) -> SandboxResult:
    if too_long:
        return SandboxResult("error", "", f"The program is too long: {len(run.job['program'])} bytes.", None)
    if run.job["mode"] != "unsafe":
        return run.finish()
    with tempfile.TemporaryDirectory(prefix="textenvs-unsafe-", ignore_cleanup_errors=True) as folder:
        run.job["environment"] |= {"HOME": folder, "TMPDIR": folder}
        run.job["folder"] = folder
        return run.finish()
