"""Commands of a shell, each in a box of its own, started by a process that stays: the inner part of :mod:`.shell`.

Imported by :mod:`.container_init` before it makes the outer box, which has the system's programs and no writable file.
The process below, the *server*, is process 1 of that box and runs no code of a command. For each request it starts the
*init*: process 1 of new namespaces of processes, mounts and IPC, with a new file system in memory for the folders
``/project`` and ``/tmp``. The init writes the files, starts bash as an unprivileged user under limits and the filter of
system calls, reads its output, kills whatever it left, and then, when nothing else runs, reads the files that changed.
The server and the init are two processes, and not one, so that nothing of a command is left for the next.

It follows no link in these folders, and holds to its own limits what it reads there.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import ctypes
import fcntl
import gc
import json
import marshal
import os
import resource
import select
import stat
import time
from contextlib import suppress

import container_init as box  # type: ignore[import-not-found]  # the folder of these files is on the path; here they are in no package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

#: Descriptors of bash: it writes its state to the first, reads the state and the command from the second, and waits for
#: a line from the third.
_SAVE_FD, _LOAD_FD, _GATE_FD = 250, 251, 252
#: A command is stopped when it has written this many times the output that is kept.
_FLOOD = 256
_CHUNK = 1 << 16
_REAP_S = 0.05  # between two looks at processes that have ended
_PAGE = 4096
_LONGEST = 4095 - 256  # bytes of a path, so that the path of what is in a folder is none that the kernel refuses
_DEEPEST = 128  # parts of a path: the kernel walks all of them for each of a file's system calls
_NEW_NAMESPACES, _NEW_PROCESSES = 0x20000 | 0x8000000, 0x20000000  # mounts and IPC; processes
_CLOCK_REALTIME_COARSE = 5  # the clock of file times
_SIGKILL, _F_SETPIPE_SZ = 9, 1031
_SYS_SETRES = {"x86_64": (117, 119), "aarch64": (147, 149)}  # setresuid, setresgid

_libc = ctypes.CDLL(None, use_errno=True)


def serve(job: dict[str, Any]) -> NoReturn:
    """Answer requests until there are no more; each is 8 bytes of length and a marshalled mapping.

    An answer is ``s`` as soon as bash runs, then ``r``, the lengths of two parts (8 bytes each), a JSON mapping and the
    contents that it speaks of. Where there is no box, it is ``f``, a length, and the reason. Paths in a request are
    bytes, and those in an answer are text.
    """
    for folder in (job["folder"], *job["writable"]):
        box._read_only(folder)  # these are seen through a command's own, or covered by them
    job["limits"] = [_lowest(getattr(resource, name), *bounds) for name, bounds in job["rlimits"].items()]
    box._drop_bounding_set()
    myself = os.pidfd_open(os.getpid())
    # A page that a child or this process writes is copied: the collector writes into all objects that it looks at.
    gc.disable()
    gc.freeze()
    os.write(1, b"ready\n")
    while len(size := _exactly(8)) == 8:
        received = [_exactly(int.from_bytes(size, "little"))]
        try:
            box._call("unshare(pid namespace)", _libc.unshare(_NEW_PROCESSES))  # of the next child
            init = os.fork()
        except OSError as error:
            init = -1
            _answer(b"f", str(error).encode())
        if init == 0:
            code = 1
            try:
                code = _run(job, received)
            finally:
                os._exit(code)
        received.clear()
        box._call("setns(own pid namespace)", _libc.setns(myself, _NEW_PROCESSES))
        if init > 0 and os.waitpid(init, 0)[1]:
            os._exit(1)  # there was no answer, and the host sees that none comes
    os._exit(0)


def _lowest(which: int, soft: int, hard: int) -> tuple[int, tuple[int, int]]:
    """Return a limit, or a lower existing one: limits can only be lowered."""
    _, most = resource.getrlimit(which)
    return which, (soft, hard) if most == resource.RLIM_INFINITY else (min(soft, most), min(hard, most))


def _exactly(size: int) -> bytes:
    """Read so many bytes of the requests; fewer at their end."""
    parts = []
    while size and (chunk := os.read(0, min(size, 1 << 20))):
        parts.append(chunk)
        size -= len(chunk)
    return b"".join(parts)


def _answer(kind: bytes, *parts: bytes) -> None:
    rest = memoryview(kind + b"".join(len(part).to_bytes(8, "little") for part in parts) + b"".join(parts))
    while rest:
        rest = rest[os.write(1, rest) :]


# ------------------------------------------------------------------ one command


def _run(job: dict[str, Any], received: list[bytes]) -> int:
    """Answer the only request in ``received``, as process 1 of a new namespace; return 0 where there is an answer."""
    try:
        box._die_with_parent()
        box._call("unshare(mount, ipc namespaces)", _libc.unshare(_NEW_NAMESPACES))
        request = marshal.loads(received.pop())  # one copy of the files is enough
        # Process 1 gets no signal it has no handler for, and Python has one for SIGINT.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        root = _mount_files(job, request["files"], request["read_only"])
        load = os.memfd_create("state")  # in no file system that the command can fill
        os.write(load, b"".join(request[name] + b"\0" for name in ("script", "options", "cwd", "status", "command")))
        os.lseek(load, 0, os.SEEK_SET)
        began = time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)  # what changes from here on has at least this time
        (output, far_output), (save, far_save) = os.pipe(), os.pipe()
        os.set_blocking(save, False)
        # Refused beyond the user's share of the kernel's memory: then bash waits for the next look at it.
        with suppress(OSError):
            fcntl.fcntl(save, _F_SETPIPE_SZ, 2 * request["state_bytes"])
        bash = _start(job, request["environment"], {_LOAD_FD: load, _SAVE_FD: far_save, 1: far_output, 2: far_output})
    except (OSError, ValueError) as error:
        _answer(b"f", str(error).encode())
        return 0
    for fd in (load, far_output, far_save):
        os.close(fd)
    os.write(1, b"s")
    # An exception from here on ends the server without an answer: no command escapes its result by causing one.
    ends, saved = Output(request["output_bytes"]), Saved(save, request["state_bytes"])
    stopped = _watch(bash, output, ends, saved, request["wall_s"])
    code, cpu_s, survivors = _end_all(bash)
    while chunk := os.read(output, _CHUNK):  # nobody is left to write to it
        ends.add(chunk)
    saved.look()
    os.chdir(root)
    changed, contents, dropped, missing = _read_files(job, request, began)
    head, tail = ends.parts()
    result = {
        "code": code,
        "cpu_s": cpu_s,
        "stopped": stopped,
        "survivors": survivors,
        "omitted": ends.omitted,
        "sizes": [len(head), len(tail), len(saved.content)],
        "files": changed,
        "removed": missing,
        "dropped": dropped,
    }
    _answer(b"r", json.dumps(result).encode(), b"".join((head, tail, saved.content, *contents)))
    return 0


def _mount_files(job: dict[str, Any], files: Sequence[Any], read_only: Sequence[str]) -> int:
    """Mount the file system, write the files, and bind its folders to their places; return it as an open folder.

    The command cannot write in the folders of ``read_only``.
    """
    uid, gid = job["user"]
    inodes = job["inodes"] + 1  # its own folder
    box._tmpfs(job["folder"], f"mode=0755,uid={uid},gid={gid},size={job['disk']},nr_inodes={inodes}")
    root = os.open(job["folder"], os.O_RDONLY | os.O_DIRECTORY)
    os.chdir(root)
    os.umask(0)
    privileged = os.getuid() != uid
    if privileged:  # so that the files are the command's
        os.setegid(gid)
        os.seteuid(uid)
    try:
        _write_files(files)
    finally:
        if privileged:
            os.seteuid(0)
            os.setegid(0)
    for folder in job["writable"]:
        source = (job["folder"] + folder).encode()
        box._call(f"mount({folder}, bind)", _libc.mount(source, folder.encode(), None, box._MS_BIND, None))
        if folder in read_only:
            box._read_only(folder)
    box._call("umount2(box)", _libc.umount2(job["folder"].encode(), box._MNT_DETACH))
    if job["proc"]:
        # Without the processes that the command may not trace, as this one: its command line has paths of the host.
        box._mount_proc("hidepid=2")
    return root


def _write_files(files: Sequence[Any]) -> None:
    folders = []
    for path, kind, mode, mtime_ns, content in files:
        if kind == "folder":
            os.mkdir(path, 0o700)
            folders.append((path, mode, mtime_ns))
        elif kind == "link":
            os.symlink(content, path)
            os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        else:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
            if (done := os.write(fd, content)) < len(content):
                os.write(fd, content[done:])  # which fails: it is full
            os.utime(fd, ns=(mtime_ns, mtime_ns))
            os.close(fd)
    for path, mode, mtime_ns in reversed(folders):
        os.utime(path, ns=(mtime_ns, mtime_ns))
        os.chmod(path, mode)


def _start(job: dict[str, Any], environment: dict[str, str], descriptors: dict[int, int]) -> int:
    """Start bash, as an unprivileged user under the filter and the limits; return its process id.

    The kernel holds users, capabilities and filters by thread, and a new program has those of the thread that started
    it. So a thread of this process takes the command's, and starts bash without a copy of this process, which would
    cost more than all else here. Limits hold for whole processes: bash has them before it reads from ``_GATE_FD``.
    """
    gate, opener = os.pipe()
    ended = _thread.allocate_lock()
    ended.acquire()
    results: list[int | BaseException] = []

    def spawn() -> None:
        try:
            _take_user(*job["user"])
            _libc.personality(box._ADDR_NO_RANDOMIZE)  # the same addresses every time; a refusal costs only that
            box._confine(job)
            targets = {**descriptors, _GATE_FD: gate}
            results.append(
                os.posix_spawn(
                    job["argv"][0],
                    job["argv"],
                    environment,
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                        *((os.POSIX_SPAWN_DUP2, fd, target) for target, fd in targets.items()),
                    ],
                    setsid=True,
                    setsigdef=(signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ),
                )
            )
        except BaseException as error:
            results.append(error)
        ended.release()

    os.chdir("/")
    _thread.start_new_thread(spawn, ())
    ended.acquire()
    bash = results[0]
    if not isinstance(bash, int):
        raise OSError(f"{type(bash).__name__}: {bash}")
    for which, bounds in job["limits"]:
        resource.prlimit(bash, which, bounds)
    # The change of the thread's user may have made the memory of this process readable again.
    box._call("prctl(PR_SET_DUMPABLE)", _libc.prctl(box._PR_SET_DUMPABLE, 0, 0, 0, 0))
    os.write(opener, b"\n")
    os.close(opener)
    os.close(gate)
    return bash


def _take_user(uid: int, gid: int) -> None:
    """Become another user in this thread alone; the functions of the C library would change all threads."""
    if os.getuid() != uid:
        users, groups = _SYS_SETRES[os.uname().machine]
        box._call("setresgid", _libc.syscall(groups, gid, gid, gid))
        box._call("setresuid", _libc.syscall(users, uid, uid, uid))


class Output:
    """The beginning and the end of the output, half of ``most`` bytes each, and how many were omitted between them."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most // 2, 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        room = self.most - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 4 * self.most:
            del self._tail[: -self.most]

    def parts(self) -> tuple[bytes, bytes]:
        return bytes(self._head), bytes(self._tail[-self.most :])

    @property
    def omitted(self) -> int:
        return self.size - len(self._head) - min(len(self._tail), self.most)


class Saved:
    """The state that bash wrote: at most one byte more than ``most``, by which it is seen to be too much.

    It is read now and then: bash writes a line at a time, and each would wake this process.
    """

    def __init__(self, fd: int, most: int) -> None:
        self.fd, self.most, self.size, self.content = fd, most, 0, b""

    def look(self) -> None:
        """Read what is there."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.fd, _CHUNK):
                self.size += len(chunk)
                self.content += chunk[: self.most + 1 - len(self.content)]
                if self.size > _FLOOD * self.most:
                    return


def _watch(bash: int, output: int, ends: Output, saved: Saved, wall_s: float) -> str:
    """Read what bash writes until it has ended or is to be stopped; return the limit that it met, or an empty text."""
    deadline = time.monotonic() + wall_s
    ended = os.pidfd_open(bash)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(output, select.POLLIN)
    while (remaining := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(min(remaining, _REAP_S) * 1000))
        _reap(bash)
        if ended in ready:
            return ""
        saved.look()
        if output in ready:
            if chunk := os.read(output, _CHUNK):
                ends.add(chunk)
            else:
                poll.unregister(output)
        if ends.size > _FLOOD * 2 * ends.most or saved.size > _FLOOD * saved.most:
            return "output"
    return "wall"


def _reap(bash: int) -> None:
    """Collect the processes that have ended, but bash: until then they count against the limit of processes."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid != bash:
        os.waitpid(ended.si_pid, 0)


def _end_all(bash: int) -> tuple[int, float, int]:
    """Kill all other processes; return bash's exit code, its CPU seconds, and how many of the others ran still.

    The CPU seconds are of bash and of all that it waited for.
    """
    code, cpu_s, survivors = 0, 0.0, 0
    ended = os.wait4(bash, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.kill(-1, _SIGKILL)  # all of these namespaces but this process
    while True:
        pid, status, usage = ended
        if pid == bash:
            code, cpu_s = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        elif pid and os.WIFSIGNALED(status) and os.WTERMSIG(status) == _SIGKILL:
            survivors += 1
        try:
            ended = os.wait4(-1, 0)
        except ChildProcessError:
            return code, cpu_s, survivors


def _read_files(
    job: dict[str, Any], request: dict[str, Any], began: int
) -> tuple[list[Any], list[bytes], list[str], list[str]]:
    """Read what is in the current folder and differs from the request's ``files``.

    Every file is read: one that was written through a mapping may have an old time of change.

    Returns the entries that differ as ``[path, kind, mode, mtime_ns, size]``, their contents, the paths that cannot be
    kept (special files, paths too long or too deep, what is beyond the limits), and those of ``files`` that are gone.
    """
    before = {file[0]: file[1:] for file in request["files"]}
    changed: list[Any] = []
    contents: list[bytes] = []
    dropped: list[str] = []
    present = set()
    waiting = [folder[1:].encode() for folder in reversed(job["writable"])]
    roots = set(waiting)
    room, names, now = job["disk"], job["inodes"], time.time_ns()
    while waiting:
        path = waiting.pop()
        status = os.lstat(path)
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        # A sparse file has more bytes than it has blocks now, and would need these blocks the next time.
        needs = 0 if kind == "folder" else -(-status.st_size // _PAGE) * _PAGE
        if (
            kind is None
            or (names <= len(roots) and path not in roots)
            or needs > room
            or len(path) > _LONGEST
            or path.count(b"/") >= _DEEPEST
        ):
            dropped.append(_text(path))
            continue
        room, names = room - needs, names - 1
        present.add(path)
        if kind == "folder":
            waiting += [path + b"/" + name for name in sorted(os.listdir(path), reverse=True)]
        content = b"" if kind == "folder" else os.readlink(path) if kind == "link" else _content(path, status.st_size)
        # The clock is the host's: what was changed now gets the time of this command.
        mtime_ns = request["now_ns"] if began <= status.st_mtime_ns <= now else status.st_mtime_ns
        entry = (kind, stat.S_IMODE(status.st_mode) & 0o777, mtime_ns, content)
        if entry != before.get(path):
            changed.append([_text(path), *entry[:3], len(content)])
            contents.append(content)
    return changed, contents, dropped, [_text(path) for path in before if path not in present]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")  # as tree.py does


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def _content(path: bytes, size: int) -> bytes:
    """Read a file; no process can change it any more, and the kernel reads all of it at once, up to 2 GiB."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)
