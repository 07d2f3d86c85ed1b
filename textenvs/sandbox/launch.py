"""How a box is started: by bubblewrap, or by an interpreter that makes it itself."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import layout
from .result import SandboxFailure

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop()); import container_init; container_init.main()"


def launch(
    job: Mapping[str, Any], *, stdin: int = subprocess.DEVNULL
) -> tuple[subprocess.Popen[bytes], dict[str, int]]:
    """Start :mod:`.container_init` to read ``job``; the code has ``stdin`` where the job's is ``None``.

    Returns:
        The process, and the file descriptors of its ``status`` and ``pid`` lines; the caller closes them.

    Raises:
        SandboxFailure: The command could not be started.
    """
    # The code has an environment of its own; this is that of the host's interpreter.
    library_path = "LD_LIBRARY_PATH" if sys.platform == "linux" else "DYLD_LIBRARY_PATH"
    status_in, status_out = os.pipe()
    pid_in, pid_out = os.pipe()
    try:
        with tempfile.TemporaryFile() as file:
            marshal.dump({**job, "host": os.getpid()}, file)
            file.flush()
            passed = (file.fileno(), status_out, pid_out)
            process = subprocess.Popen(
                _bubblewrap(job, *passed) if job["mode"] == "bubblewrap" else _launcher(*passed),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=passed,
                env={library_path: os.environ[library_path]} if library_path in os.environ else {},
                cwd="/",
                start_new_session=True,
            )
    except OSError as error:
        os.close(status_in)
        os.close(pid_in)
        raise SandboxFailure(f"the sandbox could not be started: {error}") from error
    finally:
        os.close(status_out)
        os.close(pid_out)
    return process, {"status": status_in, "pid": pid_in}


def _launcher(job_fd: int, status_fd: int, pid_fd: int) -> list[str]:
    here = str(Path(__file__).resolve().parent)
    return [layout.interpreter(), "-I", "-S", "-c", _BOOT, str(job_fd), str(status_fd), str(pid_fd), here]


def _bubblewrap(job: Mapping[str, Any], job_fd: int, status_fd: int, pid_fd: int) -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise OSError("bwrap is not installed")
    argv = [program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # as root it needs no user namespace, and the code changes to an unprivileged user
        argv += ["--cap-drop", "ALL"]
        for name in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            argv += ["--cap-add", name]
    else:
        argv += ["--unshare-user", "--uid", str(job["user"][0]), "--gid", str(job["user"][1])]
    argv += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    targets = [*(inside for _, inside in job["binds"]), *job["devices"], *(path for _, path in job["links"])]
    # It would make the folders above a target for itself alone, and the code may be another user.
    for folder in sorted({str(parent) for target in targets for parent in Path(target).parents} - {"/"}):
        argv += ["--perms", "0755", "--dir", folder]
    for source, inside in job["binds"]:
        argv += ["--ro-bind", source, inside]
    for inside in job["hidden"]:
        argv += ["--size", "4096", "--tmpfs", inside, "--remount-ro", inside]
    for device in job["devices"]:
        argv += ["--dev-bind", device, device]
    for target, path in job["links"]:
        argv += ["--symlink", target, path]
    argv += ["--perms", "1777", "--size", str(job["disk"]), "--tmpfs", job["folder"], "--remount-ro", "/"]
    argv += ["--setenv", "LD_LIBRARY_PATH", job["environment"]["LD_LIBRARY_PATH"]]
    argv += ["--info-fd", str(pid_fd), "--chdir", "/", "--"]
    return [*argv, layout.PYTHON, "-I", "-S", "-c", _BOOT, str(job_fd), str(status_fd), "-1", layout.TOOLS]
