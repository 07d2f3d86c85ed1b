"""Contents of the box: the interpreter in ``/python``, the system's shared libraries, five devices, ``/tmp``.

The paths are the same on every machine, so that a traceback reads the same everywhere and tells nothing about the host.
There is no ``/proc``, ``/sys``, ``/etc`` (but for the cache of the dynamic linker), ``/home`` and so on.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Where code may write, and where it starts: in a file of this name.
_FOLDER, PROGRAM = "/tmp", "main.py"
#: The folder of a command, which is its home, too.
COMMAND_FOLDER = "/sandbox"
#: Where the file system of a shell's command is mounted first.
SHELL_ROOT = "/box"
#: Names in the root of a shell's box that no folder of the shell may have: the system's, and those of this package.
RESERVED: frozenset[str] = frozenset(
    ("usr", "bin", "sbin", "lib", "lib32", "lib64", "nix", "gnu", "etc", "dev", "proc", "sys", "python", "box")
)
#: The interpreter inside.
PYTHON = "/python/bin/python3"
#: The shared libraries of the interpreter inside.
LIBRARIES = "/python/lib"
#: Where this package lies inside, for the program that becomes process 1.
TOOLS = "/python/sandbox"

_DEVICES: tuple[str, ...] = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
#: What a command finds of the host's system.
_SYSTEM: tuple[str, ...] = (
    *(f"/{name}" for name in ("usr", "bin", "sbin", "lib", "lib32", "lib64", "opt", "nix/store", "gnu/store")),
    *(f"/etc/{name}" for name in ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl", "pki")),
)
#: Files of ``/etc`` that are this package's, in its folder ``etc``.
_ETC: tuple[str, ...] = ("group", "hosts", "passwd")
_PACKAGES = "/python/packages"


def interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def package_folders(packages: str | Path | None) -> tuple[str, ...]:
    """Return the host's folders for the option ``packages`` of :class:`~.box.Sandbox`."""
    if packages is None:
        return ()
    if packages == "installed":
        paths = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
        return tuple(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.isdir(path)))
    folder = os.path.realpath(os.path.expanduser(packages))
    if not os.path.isdir(folder):
        raise ValueError(f"packages must be None, 'installed' or a folder, and {str(packages)!r} is no folder")
    if os.geteuid() == 0 and not os.stat(folder).st_mode & 0o005 == 0o005:
        raise ValueError(f"packages: {folder} may be read by its owner alone, and code in the box is another user")
    return (folder,)


def layout(packages: Sequence[str]) -> dict[str, Any]:
    """Return the root of the box, for this machine's interpreter.

    ``binds`` are mounted read-only: (path on the host, path inside); ``files`` are written: (path inside, bytes), by
    the backend ``namespaces`` alone; ``hidden`` are folders in the former that are covered by an empty one; ``links``
    are (target, path inside); ``writable`` are folders beside the code's own, in memory, in which binds may lie.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix, library = os.path.realpath(sys.base_prefix), sys.platlibdir
    binds = [(interpreter(), PYTHON), (str(Path(__file__).resolve().parent), TOOLS)]
    if prefix == "/usr":  # what else is there is the system's, and is mounted as such below
        folders = {f"{prefix}/{name}/{version}": f"/python/{name}/{version}" for name in ("lib", library)}
    else:  # shared libraries that belong to the interpreter lie beside its library
        folders = {f"{prefix}/{name}": f"/python/{name}" for name in ("lib", library)}
    binds += [(os.path.realpath(source), inside) for source, inside in folders.items() if os.path.isdir(source)]
    links = [(_FOLDER, "/dev/shm")]  # POSIX semaphores live there
    for path in _library_folders():
        top = path[: path.index("/", 1)] if path.count("/") > 1 else path
        if os.path.islink(top):  # /lib -> usr/lib, and the like
            links.append((os.readlink(top), top))
        elif os.path.isdir(path):
            binds.append((path, path))
    binds += [(path, path) for path in ("/etc/ld.so.cache", "/nix/store", "/gnu/store") if os.path.exists(path)]
    hidden = [
        inside + folder.removeprefix(source)
        for source, inside in binds
        for pattern in ("*-packages", "python*/*-packages")
        for folder in sorted(glob.glob(f"{glob.escape(source)}/{pattern}"))
        if os.path.isdir(folder) and not os.path.islink(folder)
    ]
    inside_packages = [f"{_PACKAGES}{number or ''}" for number in range(len(packages))]
    binds += zip(packages, inside_packages, strict=True)
    return {
        "binds": tuple(dict.fromkeys(binds)),
        "files": (),
        "hidden": tuple(dict.fromkeys(hidden)),
        "links": tuple(dict.fromkeys(links)),
        "devices": _DEVICES,
        "folder": _FOLDER,
        "writable": (),
        "environment": environment(_FOLDER, inside_packages),
    }


def command_layout(paths: Sequence[str]) -> dict[str, Any]:
    """Return the root of a command's box: the system's programs and libraries, this Python, and ``paths``.

    All are where they are on the host, and read-only. Of ``/etc`` there is what programs need to start.
    """
    own = [(source, inside) for source, inside in layout(())["binds"] if inside.startswith("/python/")]
    system: list[str] = []
    links = [(COMMAND_FOLDER, "/dev/shm")]
    for path in _SYSTEM:
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.exists(path):
            system.append(path)
    prefixes = [os.path.abspath(path) for path in (sys.base_prefix, sys.prefix)]
    added = [path for path in dict.fromkeys((*prefixes, *paths)) if not within(path, system)]
    below = any(within(path, ["/tmp"]) for path in added)  # a link could hold none of these
    links += [] if below else [(COMMAND_FOLDER, "/tmp")]
    etc = Path(__file__).with_name("etc")
    binds = [(path, path) for path in (*system, *added)] + [(str(etc / name), f"/etc/{name}") for name in _ETC]
    return {
        "binds": (*binds, *own),
        "files": (),
        "hidden": (),
        "links": tuple(links),
        "devices": _DEVICES,
        "folder": COMMAND_FOLDER,
        "writable": ("/tmp",) if below else (),
    }


def shell_layout(folders: Sequence[str] = ()) -> dict[str, Any]:
    """Return the root of a shell's boxes: the system's programs and libraries, this Python without its packages.

    ``folders`` are those that a command may write, in the root.

    What is installed beside this process is not there: it may have the environment that is played, and its solutions.
    """
    base = layout(())
    own = [bind for bind in base["binds"] if bind[1].startswith("/python/") and bind[1] != TOOLS]
    names = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "nix/store", "gnu/store", "etc/alternatives")
    system: list[str] = []
    links = [("/tmp", "/dev/shm"), ("python3", "/python/bin/python"), ("/proc/self/fd", "/dev/fd")]
    for path in (*(f"/{name}" for name in names), "/etc/ld.so.cache"):
        if os.path.islink(path):
            links.append((os.readlink(path), path))
        elif os.path.exists(path):
            system.append(path)
    packages = [
        folder
        for pattern in (
            "/usr/lib/python*/*-packages",
            "/usr/local/lib/python*/*-packages",
            "/usr/lib64/python*/*-packages",
            "/usr/src",  # where images often have their program
            "/usr/local/src",
        )
        for folder in sorted(glob.glob(pattern))
        if os.path.isdir(folder) and not os.path.islink(folder)
    ]
    etc = Path(__file__).with_name("etc")
    return {
        "binds": (*((path, path) for path in system), *own),
        # Written, not mounted: /proc/self/mountinfo tells where a mounted file lies on the host.
        "files": tuple((f"/etc/{name}", (etc / name).read_bytes()) for name in _ETC),
        "hidden": (*base["hidden"], *packages),
        "links": tuple(links),
        "devices": _DEVICES,
        "folder": SHELL_ROOT,
        "writable": tuple(folders),
    }


def within(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _library_folders() -> list[str]:
    """List the folders of shared libraries: on Debian, on Fedora and openSUSE, on others."""
    machine = getattr(sys.implementation, "_multiarch", None) or f"{os.uname().machine}-linux-gnu"
    if os.path.isdir(f"/usr/lib/{machine}"):
        return [f"/lib/{machine}", "/lib64", f"/usr/lib/{machine}", "/usr/lib64"]
    if os.path.isdir("/usr/lib64") and not os.path.islink("/usr/lib64"):
        return ["/lib64", "/usr/lib64"]
    return ["/lib", "/lib64", "/usr/lib", "/usr/lib64"]


def environment(folder: str, packages: Sequence[str], *, start: str = TOOLS + "/start") -> dict[str, str]:
    """Return the code's environment variables, none of which are the host's; paths are those in the box."""
    return {
        "HOME": folder,
        "TMPDIR": folder,
        "PATH": "/python/bin",
        "LD_LIBRARY_PATH": LIBRARIES,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONPATH": os.pathsep.join([start, *packages]),
        "PYTHONHASHSEED": "0",  # sets in the same order every time
        "PYTHONUNBUFFERED": "1",  # what was printed before a limit struck is seen
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        # A thread counts as a process, and each takes address space.
        **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
    }
