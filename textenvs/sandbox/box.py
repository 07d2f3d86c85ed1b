"""The sandbox that tools, scorers and environments use."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import layout
from .backends import BACKENDS, Backend, Box, choose
from .limits import Limits
from .process import Run, launch, launcher_environment
from .result import SandboxFailure, SandboxResult, SandboxUnavailable
from .worker import CORES, Worker

#: How many runs there are at once in one process. More would only slow each other into their limits of wall time; a
#: run that waits for its turn has not begun.
CONCURRENCY = 2 * CORES

_MOST_FILES = 256
# Room in the box's folder for what the kernel itself keeps there.
_SPARE = 1 << 16


class Sandbox:
    """Runs Python programs that nobody has read.

    Every run is a new process in a new box: nothing of one run is there in the next, so an environment that forks, or
    moves to another process, has nothing to carry along. (A model that wants to build on what it did before says it
    again, or prints it.) Results are the same every time as far as that goes: hashes, unseeded random numbers and
    addresses are; the clock is not.

    A sandbox holds settings only: it is cheap to make, to copy and to pickle, and serves any number of runs at once.

    Args:
        limits: What a run may use.
        packages: What code can import besides the standard library: ``None`` for nothing, ``"installed"`` for the
            packages of this interpreter, or a folder (filled with ``pip install --target``).
        seed: What ``random`` and ``numpy.random`` are seeded with as they are imported; ``None`` for not at all.
        backend: ``"bubblewrap"`` or ``"namespaces"``; ``None`` for the first of these that holds on this machine.
        allow_unsafe: Where no backend holds, run with limits only: **no isolation**. The code then has the files, the
            network and the rights of this process, and may outlive its run.

    Raises:
        SandboxUnavailable: No backend holds here, and ``allow_unsafe`` is not set. The message says what to do.
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
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32):
            raise ValueError(f"seed must be None or an integer from 0 to 2**32 - 1, not {seed!r}")
        self.limits = limits if limits is not None else Limits()
        self.packages = packages
        self.seed = seed
        self.allow_unsafe = bool(allow_unsafe)
        self._asked = backend
        self._folders = layout.package_folders(packages)
        self._box: Box | None = None
        self._box = self._find_box()

    @classmethod
    def of(cls, given: Sandbox | Mapping[str, Any] | None) -> Sandbox:
        """The sandbox that an option of an environment stands for; plain options travel as JSON.

        Args:
            given: A sandbox, a mapping of its options (``packages``, ``allow_unsafe``, ...) and of those of its limits
                (``cpu_s``, ``memory_mb``, ...), or ``None`` for the defaults.

        Raises:
            ValueError: An unknown option, or a value that is not allowed.
            SandboxUnavailable: No sandbox holds on this machine.
        """
        if isinstance(given, Sandbox):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"sandbox must be a Sandbox, a mapping of its options or None, not {given!r}")
        options = dict(given or {})
        limits = {name: options.pop(name) for name in Limits.__dataclass_fields__ if name in options}
        known = ("packages", "seed", "backend", "allow_unsafe")
        if unknown := sorted(set(options) - set(known)):
            raise ValueError(
                f"sandbox has no option {unknown[0]!r}; it has {', '.join((*known, *Limits.__dataclass_fields__))}"
            )
        return cls(limits=Limits(**limits), **options)

    @property
    def backend(self) -> Backend:
        """What confines the code: ``"bubblewrap"``, ``"namespaces"``, or ``"unsafe"`` for nothing but limits."""
        return self._find_box().backend

    async def run(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """Run a program.

        A cancelled call kills the run.

        Args:
            code: Its source text; it runs as ``main.py`` in the box's folder.
            stdin: What it reads from standard input.
            files: Further files for the folder, by their names, as ``"data/table.csv"``.
            limits: What this run may use, where that is not what the sandbox's runs may.

        Returns:
            How it ended. Whatever the code does ends here, and not in an exception.

        Raises:
            SandboxFailure: The box could not be made.
            ValueError: Files with names that are not allowed, or more than ``limits.disk_mb`` holds.
        """
        limits = limits or self.limits
        job = self._job(code, stdin, files, limits)
        waiting = _Waiting()
        try:
            return await asyncio.get_running_loop().run_in_executor(_executor(), self._work, job, limits, waiting)
        except asyncio.CancelledError:
            waiting.cancel()
            raise

    def run_now(
        self,
        code: str,
        *,
        stdin: str = "",
        files: Mapping[str, str | bytes] | None = None,
        limits: Limits | None = None,
    ) -> SandboxResult:
        """:meth:`run`, waited for in this thread."""
        limits = limits or self.limits
        return self._work(self._job(code, stdin, files, limits), limits, _Waiting())

    def start(self, code: str) -> Worker:
        """Start a program that stays, and answers questions; the caller closes it.

        Of the limits, ``wall_s`` and ``cpu_s`` are the caller's to keep, question by question: ``cpu_s`` is that of one
        process from its start to its end.

        Args:
            code: Its source text; it runs as ``main.py`` in the box's folder.

        Raises:
            SandboxUnavailable: There is no isolation (``allow_unsafe``): such a program is not started.
            SandboxFailure: The box could not be made, or the program did not start.
        """
        if self.backend == "unsafe":
            raise SandboxUnavailable("a program that stays is started only in a sandbox that isolates it")
        box, job = self._find_box(), self._job(code, "", None, self.limits)
        if isinstance(job, SandboxResult):
            raise SandboxFailure(job.stderr)
        job["stdin"] = None
        process, lines = launch(box.command(job), job, launcher_environment(), stdin=subprocess.PIPE)
        memory = self.limits.memory_mb
        return Worker(process, max_bytes=self.limits.output_bytes, lines=lines, memory_mb=memory)

    def __repr__(self) -> str:
        """The settings."""
        return f"Sandbox(backend={self.backend!r}, limits={self.limits!r}, packages={self.packages!r})"

    def __getstate__(self) -> dict[str, Any]:
        """The settings; another machine looks for its own box."""
        return {**self.__dict__, "_box": None}

    # ------------------------------------------------------------------ inside

    def _find_box(self) -> Box:
        if self._box is None:
            if self.allow_unsafe and self._asked is None:
                try:
                    self._box = choose(self._folders, None)
                except SandboxUnavailable as refusal:
                    warnings.warn(
                        "NO SANDBOX: programs of the model run with the files, the network and the rights of this "
                        f"process (allow_unsafe=True). {refusal}",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                    self._box = Box("unsafe", self._folders)
            else:
                self._box = choose(self._folders, self._asked)
        return self._box

    def _job(
        self, code: str, stdin: str, files: Mapping[str, str | bytes] | None, limits: Limits
    ) -> dict[str, Any] | SandboxResult:
        contents = {layout.PROGRAM: _bytes(code)}
        for name, content in (files or {}).items():
            _check_name(name)
            contents[name] = content if isinstance(content, bytes) else _bytes(content)
        if len(contents) > _MOST_FILES:
            raise ValueError(f"files: {len(contents)} files; a run takes at most {_MOST_FILES}")
        given = _bytes(stdin)
        room = (limits.disk_mb << 20) - _SPARE - sum(len(name) + 8192 for name in contents)
        size = len(given) + sum(map(len, contents.values()))
        if size > room:
            if len(contents[layout.PROGRAM]) > room // 2:  # whoever wrote the program is to hear of it
                text = f"The program is too long: {len(contents[layout.PROGRAM])} bytes."
                return SandboxResult("error", "", text, None)
            raise ValueError(f"files and stdin have {size} bytes; limits.disk_mb={limits.disk_mb} has no room")
        job = self._find_box().job(limits)
        if self.seed is not None:
            job["environment"] = {**job["environment"], "SANDBOX_SEED": str(self.seed)}
        return {**job, "files": contents, "stdin": given, "argv": [*job["argv"], "-s", layout.PROGRAM]}

    def _work(self, job: dict[str, Any] | SandboxResult, limits: Limits, waiting: _Waiting) -> SandboxResult:
        if isinstance(job, SandboxResult):
            return job
        with _turns:
            if job["mode"] != "unsafe":
                return waiting.start(self._find_box(), job, limits)
            folder = tempfile.mkdtemp(prefix="textenvs-unsafe-")
            environment = {**job["environment"], "HOME": folder, "TMPDIR": folder}
            try:
                return waiting.start(self._find_box(), {**job, "folder": folder, "environment": environment}, limits)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


class _Waiting:
    """The link between one who waits for a run (and may give up) and the thread that does it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._cancelled = False

    def start(self, box: Box, job: dict[str, Any], limits: Limits) -> SandboxResult:
        with self._lock:
            if self._cancelled:
                return SandboxResult("killed", "", "", None, "Cancelled before it began.")
            self._run = box.run(job, limits)
        return self._run.finish()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._run is not None:
                self._run.cancel()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _check_name(name: str) -> None:
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or "\0" in name or len(name) > 200 or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"files: {name!r} must be a relative path without '..', as 'data/table.csv'")
    if name == layout.PROGRAM:
        raise ValueError(f"files: {name!r} is the program's own file; give the file another name")


# ------------------------------------------------------------------ turns

_turns = threading.BoundedSemaphore(CONCURRENCY)
_threads: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def _executor() -> ThreadPoolExecutor:
    """Threads that wait for runs, apart from asyncio's own: a hundred runs must not hold up everything else."""
    global _threads
    with _lock:
        if _threads is None:
            _threads = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="textenvs-sandbox")
        return _threads


def _forget_after_fork() -> None:
    """A forked child has none of the threads, and perhaps a lock that nobody will release."""
    global _threads, _turns, _lock
    _threads, _turns, _lock = None, threading.BoundedSemaphore(CONCURRENCY), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
