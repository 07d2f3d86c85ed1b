"""The backends, the description of a run for each, and the proof that one isolates on this machine.

Before the first run, :func:`choose` runs code in a backend that tries everything it must not be able to do.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from . import layout, seccomp
from .process import Run
from .result import CommandLimits, Limits, SandboxFailure, SandboxUnavailable, ShellLimits, transient

Backend = Literal["bubblewrap", "namespaces", "unsafe"]

#: The backends that isolate, in the order in which they are tried.
BACKENDS: tuple[Backend, ...] = ("bubblewrap", "namespaces")

_INODES = 4096
_USER = (1000, 1000)

_WITHOUT = "To run code without isolation, on a machine that holds nothing of worth: Sandbox(allow_unsafe=True)."
_REMEDY = Path(__file__).with_name("remedy.txt").read_text("utf-8").rstrip()


def make_job(
    backend: Backend, packages: tuple[str, ...], limits: Limits, program: bytes, stdin: bytes | None
) -> dict[str, Any]:
    """Build the job of a run for :mod:`.container_init`; without ``stdin``, the code has the launcher's."""
    rlimits = limits.rlimits()
    job: dict[str, Any] = {"mode": backend, "rlimits": rlimits, "program": program, "stdin": stdin}
    job |= {"channel": None, "proc": False, "shell": False}
    if backend == "unsafe":
        start = str(Path(__file__).resolve().parent / "start")
        environment = layout.environment("", packages, start=start) | {"PATH": "/usr/bin:/bin"}
        environment["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")
        job["user"] = _USER
        return job | {"argv": [layout.interpreter(), "-s", layout.PROGRAM], "environment": environment}
    job |= {"argv": [layout.PYTHON, "-s", layout.PROGRAM], "disk": limits.disk_mb << 20}
    return job | layout.layout(packages) | _confined(backend, limits, rlimits)


def make_command_job(
    backend: Backend,
    argv: Sequence[str],
    environment: Mapping[str, str],
    limits: CommandLimits,
    paths: Sequence[str],
    port: int,
    *,
    proc: bool,
) -> dict[str, Any]:
    """Build the job of a command: it has the system's programs, loopback, and a listening socket at ``port``.

    ``proc`` is whether it has ``/proc``, with its own processes.
    """
    rlimits = limits.rlimits()
    job: dict[str, Any] = {"mode": backend, "rlimits": rlimits, "program": None, "stdin": b"", "port": port}
    job |= {"proc": proc, "shell": False}
    job |= layout.command_layout(paths) | _confined(backend, limits, rlimits, sockets=True)
    return job | {"argv": list(argv), "environment": dict(environment), "disk": limits.disk_mb << 20}


def make_shell_job(argv: Sequence[str], limits: ShellLimits, folders: Sequence[str], *, proc: bool) -> dict[str, Any]:
    """Build the job of the process that runs a shell's commands (:mod:`.shell_init`), with ``argv`` for each.

    ``folders`` are those that they may write. ``proc`` is whether they have ``/proc``, with their own processes.
    """
    rlimits = limits.rlimits()
    job: dict[str, Any] = {"mode": "namespaces", "rlimits": rlimits, "program": None, "stdin": b"", "channel": None}
    job |= {"proc": proc, "shell": True, "argv": list(argv), "disk": limits.disk_mb << 20}
    return job | layout.shell_layout(folders) | _confined("namespaces", limits, rlimits) | {"inodes": limits.files}


def _confined(
    backend: Backend, limits: Limits | CommandLimits, rlimits: dict[str, tuple[int, int]], *, sockets: bool = False
) -> dict[str, Any]:
    """Return the entries of a job for users and system calls; it lowers the limit of processes where it must."""
    job: dict[str, Any] = {"user": _USER, "inodes": _INODES}
    outside = None
    if os.geteuid() == 0:
        outside = _unprivileged()
        if backend == "bubblewrap" and outside is not None:
            job["user"] = outside
    else:  # what makes the box is the same user's, and counts: its first process, and the launcher
        most = limits.processes + (1 if backend == "bubblewrap" else 2)
        rlimits["RLIMIT_NPROC"] = (most, most)
    return job | {"filter": seccomp.build(platform.machine(), sockets=sockets), "outside_user": outside}


_runs = itertools.count()


def _unprivileged() -> tuple[int, int] | None:
    """Return a user and a group of the host for one run of root's code; ``None`` where root is the only one.

    Concurrent runs have different ones, because the kernel counts a user's processes over all boxes. Neither needs
    a name; the upper half of the numbers mostly has none.
    """
    turn = os.getpid() * 257 + next(_runs)
    ids = []
    for name in ("uid_map", "gid_map"):
        extents = [tuple(map(int, line.split())) for line in Path(f"/proc/self/{name}").read_text().splitlines()]
        first, _, count = max(extents, key=lambda extent: extent[2])
        count = min(count, 1 << 31)
        ids.append(first + count // 2 + turn % (count - count // 2))
    return (ids[0], ids[1]) if all(ids) else None


# ------------------------------------------------------------------ proof


def choose(backend: Backend | None, order: Sequence[Backend] = BACKENDS, without: str = _WITHOUT) -> Backend:
    """Return the first backend in ``order`` that isolates on this machine, or the requested one if it does.

    ``SandboxUnavailable`` says why there is none, what to do, and with ``without`` how to do without.
    """
    reasons = []
    for name in order if backend is None else (backend,):
        try:
            problem = _problem_with(name, os.geteuid())
        except SandboxFailure as failure:  # not remembered
            problem = str(failure)
        if problem is None:
            return name
        reasons.append(f"- {name}: {problem}")
    raise SandboxUnavailable("\n".join(["No sandbox holds on this machine:", *reasons, _REMEDY, without]))


@functools.cache
def _problem_with(backend: Backend, user: int) -> str | None:
    if sys.platform != "linux":
        return f"needs Linux, and this is {platform.system()}"
    if platform.machine() not in seccomp.MACHINES:
        return f"needs one of {', '.join(seccomp.MACHINES)}, and this is {platform.machine()}"
    if backend == "bubblewrap" and shutil.which("bwrap") is None:
        return "not installed (no bwrap on the PATH)"
    try:
        return _prove(backend)
    except (SandboxFailure, OSError) as error:
        if transient(error):
            raise SandboxFailure(f"it could not be tested now: {error}") from error
        return str(error)


_PROOF = """
import ctypes, os, resource, signal, socket, sys
problems = []
def must_fail(what, attempt, errors=(OSError, MemoryError)):
    try:
        attempt()
    except errors:
        return
    problems.append(what)
os.environ.pop("LC_CTYPE", None)
if unknown := set(os.environ) - set(sys.argv[2].split(",")):
    problems.append(f"sees the host's environment variables {sorted(unknown)}")
for path in ("/proc/self", "/sys/kernel", "/etc/passwd", "/root", "/home", "/var", "/usr/bin"):
    if os.path.exists(path):
        problems.append(f"sees {path} of the host")
if 0 in (os.getuid(), os.geteuid(), os.getgid()):
    problems.append("runs as root")
if os.getpid() > 9:
    problems.append("has no process ids of its own")
must_fail("can ask the kernel about networks", lambda: socket.socket(socket.AF_NETLINK))
for family in (socket.AF_INET, socket.AF_INET6):
    must_fail("can open a network", lambda: socket.socket(family, socket.SOCK_DGRAM))
must_fail("can set limits of other processes", lambda: resource.prlimit(1, resource.RLIMIT_CORE), (OSError, ValueError))
must_fail("can write outside its folder", lambda: open("/python/x", "w"))
must_fail("can write the root folder", lambda: os.mkdir("/x"))
must_fail("can make anonymous files in memory", lambda: os.memfd_create("x"))
must_fail("can use more memory than it may", lambda: bytearray(2 * int(sys.argv[1]) << 20))
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000) == 0:
    problems.append("can make new namespaces")
if libc.prctl(39, 0, 0, 0, 0) != 1:
    problems.append("can gain privileges (no_new_privs is not set)")
most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
children = []
try:
    while len(children) <= most:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
    problems.append("can start more processes than it may")
except OSError:
    pass
print("; ".join(problems) or "it holds")
"""


def _prove(backend: Backend) -> str | None:
    limits = Limits(processes=4, memory_mb=256)
    job = make_job(backend, (), limits, _PROOF.encode(), b"")
    job["argv"] += [str(limits.memory_mb), ",".join(job["environment"])]
    result = Run(job, limits).finish()
    if result.stdout.strip() == "it holds":
        return None
    if result.status == "ok":
        return f"it is not tight here: code in it {result.stdout.strip()}"
    return f"the interpreter does not run in it: {result.describe(400)}"
