"""Make the box, then become its first process, and start the code in it.

A separate program, started by :mod:`.process` without site packages; it imports only modules that load fast. The job
has the mounts, the limits and the refused system calls. The processes, from the outside in:

* the *launcher* (backend ``namespaces`` only) leaves the host's namespaces and waits for the next one;
* the *init* is process 1 of its own PID namespace: when it ends, the kernel kills whatever is left of the code;
* the *code* runs as an unprivileged user, with limits, without capabilities, and with a system call filter.

Under bubblewrap the launcher is bubblewrap itself.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without enumerations: they take longer than a box
import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NAMESPACES = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000  # mnt, uts, ipc, user, pid, net
_CGROUP_NAMESPACE = 0x2000000  # where the kernel has these, so that the box does not see its place on the host
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_DUMPABLE, _MS_NOEXEC = 4, 8
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 24, 38, 22
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_ADDR_NO_RANDOMIZE = 0x0040000
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), what)


def _say(status_fd: int, line: str) -> None:
    os.write(status_fd, line.replace("\n", " ").encode() + b"\n")


def main() -> NoReturn:
    """Read the job from a file descriptor, and run it; ``argv`` has the descriptors of job, status and pid line."""
    job_fd, status_fd, pid_fd = map(int, sys.argv[1:4])
    os.set_inheritable(status_fd, False)
    try:
        with os.fdopen(job_fd, "rb") as file:
            file.seek(0)
            job = marshal.load(file)
        if job["group"] is not None:  # before anything is started: what is below comes along
            os.write(job["group"], b"0")
            os.close(job["group"])
        if job["mode"] == "namespaces":
            os.set_inheritable(pid_fd, False)
            if job["shell"]:
                import shell_init  # type: ignore[import-not-found]  # before the files of the host are gone
            _launch(job, pid_fd)
        if job["shell"]:
            shell_init.serve(job)
        _init(job, status_fd)
    except (OSError, ValueError) as error:
        _say(status_fd, f"failed {error}")
    os._exit(1)


# ------------------------------------------------------------------ the launcher


def _launch(job: dict[str, Any], pid_fd: int) -> None:
    """Leave the host's namespaces; return in process 1 of the new ones."""
    request_pipe, reply_pipe = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(request_pipe[1])  # so that a launcher that gives up ends the waiting here
        os.close(reply_pipe[0])
        _map_users(os.getppid(), job, request_pipe[0], reply_pipe[1])
    os.close(reply_pipe[1])
    if os.geteuid() == 0:
        os.setgroups([])
    namespaces = _NAMESPACES | (_CGROUP_NAMESPACE if os.path.exists("/proc/self/ns/cgroup") else 0)
    _call("unshare(user, mount, pid, net, ipc, uts, cgroup namespaces)", _libc.unshare(namespaces))
    os.write(request_pipe[1], b"!")
    problem = os.read(reply_pipe[0], 4096)
    os.waitpid(helper, 0)
    if problem != b"ok":
        raise OSError(problem.decode())
    _die_with_parent()
    if os.getppid() != job["host"]:
        os._exit(1)  # the host died before the line above
    init = os.fork()
    if init:
        os.write(pid_fd, b'{"child-pid": %d}' % init)
        os.close(pid_fd)
        os.waitpid(init, 0)
        os._exit(0)
    _die_with_parent()
    for fd in (*request_pipe, reply_pipe[0], pid_fd):
        os.close(fd)
    _mount(job)
    _call("sethostname", _libc.sethostname(b"sandbox", 7))


def _map_users(pid: int, job: dict[str, Any], request_fd: int, reply_fd: int) -> NoReturn:
    """Map the users of the new user namespace, from outside.

    The user's own id suffices where it is not root's. Root maps a second, unprivileged one for the code: the kernel
    does not hold root to a limit of processes.
    """
    try:
        if not os.read(request_fd, 1):
            os._exit(0)
        uid, gid, (inside_uid, inside_gid) = os.geteuid(), os.getegid(), job["user"]
        second = job["outside_user"]
        maps = {"uid_map": f"{inside_uid} {uid} 1\n", "gid_map": f"{inside_gid} {gid} 1\n"}
        if second is not None:
            maps["uid_map"] = f"0 {uid} 1\n{inside_uid} {second[0]} 1\n"
            maps["gid_map"] = f"0 {gid} 1\n{inside_gid} {second[1]} 1\n"
        for name, text in (("setgroups", "deny"), *maps.items()):
            try:
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write(text)
            except OSError as error:
                os.write(reply_fd, f"writing {name} of the user namespace: {error}".encode())
                os._exit(0)
        os.write(reply_fd, b"ok")
    finally:
        os._exit(0)


def _die_with_parent() -> None:
    _call("prctl(PR_SET_PDEATHSIG)", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


# ------------------------------------------------------------------ mounts


def _mount(job: dict[str, Any]) -> None:
    """Make a root that holds only the job's paths, and unmount the host's."""
    _call("mount(/, private)", _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
    base = next((path for path in ("/tmp", "/mnt", "/var", "/run") if os.path.isdir(path)), None)
    if base is None:
        raise OSError("none of /tmp, /mnt, /var, /run exists to mount the box on")
    _tmpfs(base, "mode=0755,size=1m,nr_inodes=1k")
    os.chdir(base)
    os.mkdir(".host")
    _call("pivot_root", _libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b".host"))
    os.chdir("/")
    size = f"size={job['disk']},nr_inodes={job['inodes']}"
    for target in job["writable"]:
        os.makedirs(target, exist_ok=True)
        _tmpfs(target, f"mode=1777,{size}")
    for source, target in job["binds"]:
        _bind(source, target)
        _read_only(target, _AT_RECURSIVE)
    for target in job["hidden"]:
        _tmpfs(target, "mode=0755,size=4k,nr_inodes=8")
        _read_only(target)
    for path, content in job["files"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o444)
        os.utime(path, (0, 0))
    for device in job["devices"]:
        _bind(device, device)
    if job["proc"]:
        os.makedirs("/proc", exist_ok=True)
        _mount_proc("hidepid=2" if job["shell"] else "")
    for target, path in job["links"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    uid, gid = job["user"]
    os.makedirs(job["folder"], exist_ok=True)
    _tmpfs(job["folder"], f"mode=0700,uid={uid},gid={gid},{size}")
    _call("umount2(host)", _libc.umount2(b"/.host", _MNT_DETACH))
    os.rmdir("/.host")
    _read_only("/")


def _bind(source: str, target: str) -> None:
    source = "/.host" + source
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    done = _libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None)
    _call(f"mount({target}, bind)", done)


def _tmpfs(target: str, options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV
    done = _libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options.encode())
    _call(f"mount({target}, tmpfs)", done)


def _mount_proc(options: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _call("mount(/proc)", _libc.mount(b"proc", b"/proc", b"proc", flags, options.encode() or None))


def _read_only(target: str, recursive: int = 0) -> None:
    # struct mount_attr: attributes to set, to clear, propagation, user namespace.
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), recursive, attributes, size)
    _call(f"mount_setattr({target}, read-only)", done)


# ------------------------------------------------------------------ the first process


def _init(job: dict[str, Any], status_fd: int) -> NoReturn:
    """Start the code, wait for it, report how it ended, and exit; the kernel kills the remaining processes."""
    # Process 1 gets no signal it has no handler for, and Python has one for SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    unsafe = job["mode"] == "unsafe"
    if unsafe:
        _die_with_parent()
    if job["channel"] is not None:
        _exchange(job)
    trouble = os.pipe()  # closed by exec: what comes through it is why there was none
    code = os.fork()
    if code == 0:
        try:
            _become_code(job)
        except BaseException as error:  # no Python around this process: nothing else would report it
            os.write(trouble[1], f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    if job["proc"]:  # the code may be the same user, and must not open the files of this process there
        _call("prctl(PR_SET_DUMPABLE)", _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    os.close(trouble[1])
    for fd in (0, 1, 2):
        os.close(fd)
    if not unsafe:
        _drop_bounding_set()
        _drop_capabilities()
    if problem := os.read(trouble[0], 4096):
        raise OSError(problem.decode(errors="replace"))
    _say(status_fd, "started")
    while (child := os.wait4(-1, 0))[0] != code:
        pass
    _, ended, usage = child
    _say(status_fd, f"ended {os.waitstatus_to_exitcode(ended)} {usage.ru_utime + usage.ru_stime:.6f}")
    if unsafe:  # ends this process, too
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _exchange(job: dict[str, Any]) -> None:
    """Send the host the code's folder and a socket that listens here, and wait until it has filled the folder.

    The namespace of the network has the loopback device alone; so that socket is the only way out of the box.
    """
    import _socket
    import fcntl

    channel = _socket.socket(fileno=job["channel"])
    channel.setblocking(True)
    os.set_inheritable(channel.fileno(), False)
    device = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    if job["mode"] == "namespaces":  # bubblewrap did
        up = _IFF_UP.to_bytes(2, sys.byteorder)
        fcntl.ioctl(device.fileno(), _SIOCSIFFLAGS, b"lo".ljust(16, b"\0") + up.ljust(24, b"\0"))
    for _, name in _socket.if_nameindex():
        flags = fcntl.ioctl(device.fileno(), _SIOCGIFFLAGS, name.encode().ljust(40, b"\0"))[16:18]
        if name != "lo" and int.from_bytes(flags, sys.byteorder) & _IFF_UP:
            raise OSError(f"the box has a network: {name}")
    device.close()
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", job["port"]))
    listener.listen(128)
    folder = os.open(job["folder"], os.O_RDONLY | os.O_DIRECTORY)
    passed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (folder, listener.fileno()))
    channel.sendmsg([b"ready"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
    listener.close()
    os.close(folder)
    if channel.recv(1) != b"!":
        os._exit(1)  # the host has given up
    channel.close()


def _become_code(job: dict[str, Any]) -> NoReturn:
    """Set the code's user, folder, standard input, limits and filter, and execute it."""
    confined = job["mode"] != "unsafe"
    if confined:
        os.setsid()
        uid, gid = job["user"]
        if os.getuid() != uid:
            if job["mode"] == "bubblewrap":  # the launcher of the other backend did
                os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
    os.umask(0o077)
    os.chdir(job["folder"])
    if job["stdin"] is not None:  # without one, it is the pipe that the host holds
        _take_stdin(job["stdin"])
    if job["program"] is not None:
        with open(job["argv"][2], "wb") as file:
            file.write(job["program"])
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    _libc.personality(_ADDR_NO_RANDOMIZE)  # the same addresses every time; a refusal costs only that
    for name, (soft, hard) in job["rlimits"].items():
        _limit(getattr(resource, name), soft, hard)
    if confined:
        _drop_bounding_set()
        _confine(job)
    os.execve(job["argv"][0], job["argv"], job["environment"])


def _take_stdin(content: bytes) -> None:
    """Make ``content`` the standard input: an unnamed file, so that no process has to write to a pipe."""
    if content:
        with open(".stdin", "xb") as file:
            file.write(content)
    fd = os.open(".stdin" if content else "/dev/null", os.O_RDONLY)
    if content:
        os.unlink(".stdin")
    os.dup2(fd, 0)


def _limit(which: int, soft: int, hard: int) -> None:
    """Set a limit, or keep a lower existing one: limits can only be lowered."""
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(which, (soft, hard))


def _confine(job: dict[str, Any]) -> None:
    """Give up what this thread must not have when it starts the code; the kernel holds all of it by thread."""
    _call("prctl(PR_SET_NO_NEW_PRIVS)", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _drop_capabilities()
    _filter_calls(job["filter"])


def _drop_bounding_set() -> None:
    """Let no program that this process executes have capabilities; its own stay."""
    for number in range(64):
        # Refused where there is none to drop; then there is none in the other sets either.
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _call("capset", _libc.capset(header, nothing))


def _filter_calls(instructions: bytes) -> None:
    held = ctypes.create_string_buffer(instructions, len(instructions))
    # struct sock_fprog: a short (and padding), a pointer; both machines are little-endian.
    program = (ctypes.c_uint64 * 2)(len(instructions) // 8, ctypes.addressof(held))
    _call("prctl(PR_SET_SECCOMP)", _libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0))
