"""Code that means harm: each attack is stopped, said in words, and leaves the host as it was.

Every attack runs in every backend of this machine; one that is not there must refuse (see ``sandbox_boxes``).
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sandbox_boxes import HASTY, SMALL, box_of

import textenvs.sandbox
from textenvs.sandbox.backends import BACKENDS
from textenvs.sandbox.process import Run


@pytest.fixture(params=BACKENDS)
def box(request):
    return box_of(request.param)


@pytest.fixture
def token():
    """A name for the attack's processes, and the check that none of them is left."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    survivors = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                survivors.append(comm.parent.name)
        except OSError:
            continue
    assert not survivors, f"processes {survivors} outlived their run"


def attack(box, token, code, **options):
    """Run ``code`` under the token's name; what it printed before is in the result."""
    name = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.prctl(15, b'{token}', 0, 0, 0)\n"
    return box.run_now(name + textwrap.dedent(code), **options)


def tried(attempts):
    """A program that makes attempts one after the other, and prints the error of each, or what it got."""
    lines = ["import os, socket"]
    for attempt in attempts:
        lines += ["try:", f"    print('got', {attempt})", "except Exception as error:", "    print(error)"]
    return "\n".join(lines)


# ------------------------------------------------------------------ more than its share


def test_endless_computing_ends(box, token):
    result = attack(box, token, "print('begun')\nwhile True: pass")
    assert (result.status, result.stdout) == ("timeout", "begun\n")
    assert result.describe().startswith("begun\n[Stopped: it used more than 1 s of CPU time. Look for an endless loop")


def test_program_ignoring_signals_is_stopped(token):
    """The soft limit of CPU time is a signal, and the hard one is not."""
    code = (
        "import signal\nfor n in {*range(1, 65)} - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass"
    )
    result = attack(box_of(), token, code)
    assert result.status == "timeout"
    assert "1 s of CPU time" in result.describe()


@pytest.mark.parametrize(
    "wait",
    [
        "import time; time.sleep(1000)",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",  # computes, in C, without a look at signals
        "import os, time; os.closerange(0, 1000); time.sleep(1000)",
    ],
)
def test_endless_waiting_ends(token, wait):
    result = attack(box_of(None, HASTY), token, wait)
    assert (result.status, result.exit_code) == ("timeout", None)
    assert "more than 0.5 s" in result.describe()


def test_fork_bomb_is_contained(box, token):
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert attack(box_of(box.backend, HASTY), token, bomb).status == "timeout"


def test_processes_and_threads_are_limited(box, token):
    result = attack(
        box,
        token,
        """
        import os, signal, threading
        children = 0
        try:
            while children < 100:
                if os.fork() == 0:
                    signal.pause()
                children += 1
        except OSError as error:
            print(children, type(error).__name__)
        try:
            threading.Thread(target=signal.pause).start()
            print("one more")
        except RuntimeError as error:
            print(error)
        """,
    )
    assert result.stdout == f"{SMALL.processes - 1} BlockingIOError\ncan't start new thread\n"


def test_fork_bomb_leaves_other_boxes_alone(box, token):
    """The limit is of each box, not of the user that all of them share."""
    code = """
        import os, time
        children = []
        for _ in range(5):
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(0.2)
                os._exit(0)
        print(len([os.waitpid(pid, 0) for pid in children]))
        """
    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(lambda _: attack(box, token, code), range(6)))
    assert [(result.status, result.stdout) for result in results] == [("ok", "5\n")] * 6


def test_a_memory_bomb_of_one_process(box, token):
    result = attack(box, token, "held = []\nwhile True: held.append(bytearray(1 << 20))")
    assert (result.status, result.exit_code) == ("memory", 1)
    assert "MemoryError" in result.describe()
    assert f"{SMALL.memory_mb} MiB" in result.describe()


def test_a_memory_bomb_of_many_processes(box, token):
    """Each keeps within its own limit; together they do not."""
    result = attack(
        box,
        token,
        """
        import os, time
        for _ in range(6):
            if os.fork() == 0:
                break
        held = bytearray(os.urandom(1)) * (60 << 20)
        time.sleep(100)
        """,
    )
    assert result.status == "memory"
    assert "together" in result.describe()


def test_pages_that_processes_share_count_once(box, token):
    result = attack(
        box,
        token,
        """
        import os, time
        held = bytearray(b"x") * (60 << 20)
        children = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                time.sleep(0.4)
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        print("fine")
        """,
    )
    assert (result.status, result.stdout) == ("ok", "fine\n")


def test_all_memory_is_counted(box, token):
    code = tried(["os.memfd_create('x')"]) + "\nfor call in (libc.shmget, libc.msgget, libc.semget):\n"
    result = attack(box, token, code + "    print(call(0, 4096, 0o1600), ctypes.get_errno())")
    assert result.stdout == "[Errno 1] Operation not permitted\n" + "-1 1\n" * 3
    result = attack(box, token, "import mmap\nm = mmap.mmap(-1, 200 << 20)")  # shared, between processes
    assert "Cannot allocate memory" in result.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_ends(box, token, stream):
    result = attack(box, token, f"import sys\nwhile True: sys.{stream}.write('x' * 1000)")
    assert result.status == "output"
    assert getattr(result, stream) == "x" * SMALL.output_bytes
    assert f"more than {SMALL.output_bytes} bytes" in result.describe()
    assert len(result.describe(max_chars=500)) < 700


def test_output_before_start_line_counts():
    run = Run({}, SMALL)
    run._take("stderr", b"x" * (SMALL.output_bytes + 1))
    assert run._conclude().status == "output", "or a program could leave its score out by writing quickly"


def test_files_and_descriptors_are_limited(box, token):
    result = attack(
        box,
        token,
        """
        import os
        size = 0
        try:
            for i in range(100):
                with open(f"f{i}", "wb", buffering=0) as file:
                    size += file.write(bytes(1 << 19))
        except OSError as error:
            print(error.strerror, size <= 4 << 20)
        held = []
        try:
            while True: held.append(open("/dev/null"))
        except OSError as error:
            print(error.strerror)
        with open("f0", "r+b") as file:
            file.truncate(1 << 40)
        """,
    )
    assert result.stdout == "No space left on device True\nToo many open files\n"
    assert "Too many open files" in result.stderr or "File too large" in result.stderr


def test_files_without_content_are_limited_too(token):
    result = attack(box_of("namespaces"), token, "import os\nfor i in range(10_000): os.mkdir(f'd{i}')")
    assert "No space left on device" in result.stderr


# ------------------------------------------------------------------ what is not its own


def test_host_files_are_absent(box, token, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret")
    paths = [
        "/etc/passwd",
        "/etc/shadow",
        "/etc/hostname",
        os.path.expanduser("~"),
        "/proc",
        "/sys",
        "/var",
        "/usr/bin",
    ]
    paths += [str(tmp_path), str(Path(__file__).parent), os.getcwd()]
    walk = "[f for _, _, files in os.walk('/') for f in files if f in ('secret.txt', 'pyproject.toml', 'bash')]"
    result = attack(box, token, tried([*(f"os.stat({path!r})" for path in paths), walk]))
    lines = [f"[Errno 2] No such file or directory: {path!r}\n" for path in paths]
    assert result.stdout == "".join(lines) + "got []\n"


def test_host_environment_is_absent(box, token, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = attack(box, token, "import os; print(dict(os.environ))")
    assert "sk-secret" not in result.stdout
    assert "'HOME': '/tmp'" in result.stdout


def test_host_descriptors_are_closed(box, token):
    """Neither those that the host has open, nor those by which the box is made and watched."""
    with open(os.devnull) as file:
        os.set_inheritable(file.fileno(), True)
        code = "import os\nfor fd in range(3, 256):\n    try: print(fd, os.fstat(fd))\n    except OSError: pass"
        assert attack(box, token, code).stdout == ""


def test_there_is_no_network(box, token):
    """TCP's buffers grow by themselves, in memory that no limit of a process counts."""
    kinds = [
        f"socket.{family}, socket.SOCK_{kind}"
        for family in ("AF_INET", "AF_INET6")
        for kind in ("STREAM", "DGRAM", "RAW")
    ]
    result = attack(box, token, tried([f"socket.socket({kind})" for kind in kinds]))
    assert result.stdout == "[Errno 97] Address family not supported by protocol\n" * 6


def test_buffers_of_sockets_stay_small(box, token):
    """Bound the memory of all sockets of a box by the limits of files and processes."""
    result = attack(
        box,
        token,
        """
        import resource, socket
        pair = socket.socketpair()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
            try:
                pair[0].setsockopt(socket.SOL_SOCKET, option, 64 << 20)
                print("grown", option)
            except PermissionError:
                pass
        pair[0].setblocking(False)
        held = 0
        try:
            while True:
                held += pair[0].send(bytes(4096))
        except BlockingIOError:
            print(held < 1 << 20)
        """,
    )
    assert result.stdout == "True\n"


def test_host_sockets_are_unreachable(box, token):
    address = f"\0{token}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        attempts = [f"socket.socket(socket.AF_UNIX).connect({address!r})"]
        attempts += [f"socket.socket(socket.{name}, 3)" for name in ("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "AF_ALG")]
        result = attack(box, token, tried(attempts))
    refusals = ["[Errno 97] Address family not supported by protocol"] * 4
    assert result.stdout.splitlines() == ["[Errno 111] Connection refused", *refusals]


def test_writes_outside_folder_fail(box, token):
    places = ("/x", "/python/x", "/python/lib/x", "/dev/x", "/etc/x", "/usr/lib/x", "/python/sandbox/container_init.py")
    attempts = [f"open({place!r}, 'w')" for place in places]
    attempts += ["os.chmod(os.__file__, 0o777)", "os.remove(os.__file__)", "os.rename('/python', '/tmp/python')"]
    result = attack(box, token, tried(attempts))
    for line in result.stdout.splitlines():
        assert re.match(
            r"\[Errno \d+\] (Read-only file system|Permission denied|Operation not permitted|Invalid cross-device)",
            line,
        )
    assert len(result.stdout.splitlines()) == len(attempts)


def test_symbolic_links_lead_nowhere(box, token, tmp_path):
    target = tmp_path / "target"
    target.write_text("as it was")
    result = attack(
        box,
        token,
        f"""
        import os
        places = ({str(target)!r}, "/.host{target}", "../../../../../..{target}", "/proc/1/root{target}")
        for number, place in enumerate(places):
            os.symlink(place, f"link{{number}}")
            for mode in "r", "a":
                try:
                    open(f"link{{number}}", mode).read()
                    print("opened")
                except OSError:
                    pass
        os.remove("main.py")
        os.symlink({str(target)!r}, "main.py")
        os.symlink("/", "root")
        print(os.path.exists("root/etc/passwd"))
        """,
    )
    assert result.stdout == "False\n"
    assert target.read_text() == "as it was"


def test_nothing_is_left_of_a_run(box, token):
    attack(box, token, f"open('/tmp/{token}', 'w').write('x')")
    assert attack(box, token, "import os; print(os.listdir())").stdout == "['main.py']\n"
    assert not Path("/tmp", token).exists()


# ------------------------------------------------------------------ others


def test_killing_the_parent_and_everybody(box, token):
    result = attack(
        box,
        token,
        f"""
        import os, signal
        for pid in (os.getppid(), 1, -1, {os.getpid()}):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError as error:
                    pass
        print("still here")
        """,
    )
    assert (result.status, result.stdout) == ("ok", "still here\n")


def test_killing_itself_is_told(box, token):
    result = attack(box, token, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.status, result.exit_code) == ("killed", -9)
    assert "signal 9" in result.describe()
    result = attack(box, token, "ctypes.string_at(0)")
    assert (result.status, result.exit_code) == ("killed", -11)
    assert "Segmentation fault" in result.describe()


def test_powers_are_refused(box, token):
    calls = (
        "ptrace(16, 1, 0, 0)",  # PTRACE_ATTACH to process 1
        "ptrace(0, 0, 0, 0)",  # PTRACE_TRACEME
        "process_vm_readv(1, 0, 0, 0, 0, 0)",
        "unshare(0x10000000)",  # a user namespace
        "unshare(0x40000000)",  # a network namespace
        "setns(0, 0)",
        "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "umount2(b'/python', 2)",
        "chroot(b'/tmp')",
        "sethostname(b'x', 1)",
        "personality(0)",
        f"syscall({250 if os.uname().machine == 'x86_64' else 219}, 0, 0, 0, 0, 0)",  # keyctl
        f"syscall({56 if os.uname().machine == 'x86_64' else 220}, 0x10000011, 0, 0, 0, 0)",  # clone, user namespace
    )
    code = "\n".join(f"print(libc.{call}, ctypes.get_errno())" for call in calls)
    assert attack(box, token, code).stdout == "-1 1\n" * len(calls)


def test_capabilities_cannot_be_gained(box, token):
    result = attack(
        box,
        token,
        """
        import os
        print(libc.prctl(39, 0, 0, 0, 0))  # PR_GET_NO_NEW_PRIVS
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        print(libc.capget(header, data), list(data))
        for become in (os.setuid, os.setgid):
            try:
                become(0)
                print("became root")
            except OSError:
                pass
        print(0 in os.getresuid() + os.getresgid())
        """,
    )
    assert result.stdout.splitlines() == ["1", "0 [0, 0, 0, 0, 0, 0]", "False"]


def test_limits_cannot_be_raised(box, token):
    result = attack(
        box,
        token,
        """
        import resource
        for name in ("CPU", "AS", "NPROC", "FSIZE", "NOFILE", "CORE", "MEMLOCK", "STACK"):
            which = getattr(resource, "RLIMIT_" + name)
            _, hard = resource.getrlimit(which)
            for more in (hard + 1, resource.RLIM_INFINITY):
                try:
                    resource.setrlimit(which, (more, more))
                    print("raised", name)
                except (ValueError, OSError):
                    pass
        print("done")
        """,
    )
    assert result.stdout == "done\n"


@pytest.mark.parametrize("daemon", ["", "os.setsid()\nif os.fork(): os._exit(0)\n"])
def test_background_processes_end_with_run(box, token, daemon):
    code = f"""
import os, signal, sys, time
if os.fork():
    print("done"); sys.stdout.flush(); os._exit(0)
{daemon}
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
time.sleep(1000)
"""
    result = attack(box, token, code)
    assert (result.status, result.stdout) == ("ok", "done\n")


def test_endless_threads_are_stopped(token):
    code = (
        "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()\nprint('main ends')"
    )
    result = attack(box_of(), token, code)
    assert (result.status, result.stdout) == ("timeout", "main ends\n")


# ------------------------------------------------------------------ not to be scored

VOID = """
import os, resource, time
for which in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU", "STACK"):
    for pid in (1, os.getppid()):
        try:
            resource.prlimit(pid, getattr(resource, "RLIMIT_" + which), (0, 0))
            print("limited", which)
        except OSError as error:
            assert error.errno == 1, error
print("scored")
"""


def test_init_process_limits_are_protected(box, token):
    result = attack(box, token, VOID)
    assert (result.status, result.stdout) == ("ok", "scored\n"), result


@pytest.mark.skipif(os.geteuid() != 0, reason="the test above is this one where the user is not root")
def test_init_limits_are_protected_without_root(tmp_path):
    """There process 1 is the same user's. The package alone: what root installed may be closed to others."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    for interpreter in (sys._base_executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if subprocess.run([interpreter, "-c", ""], **nobody, check=False).returncode == 0:
                break
    else:
        pytest.skip("no interpreter that another user may run")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        shutil.copytree(Path(textenvs.sandbox.__file__).parent, Path(folder, "sandbox"))
        code = f"import sys; sys.path.insert(0, {folder!r})\nfrom sandbox import *\nprint(Sandbox().run_now({VOID!r}))"
        done = subprocess.run([interpreter, "-I", "-c", code], **nobody, capture_output=True, text=True, timeout=60)
    assert "it is not tight here" not in done.stderr
    if "No Python sandbox holds" in done.stderr:
        pytest.skip("no sandbox for another user here")
    assert "status='ok', stdout='scored\\n'" in done.stdout, done.stdout + done.stderr


def test_code_that_breaks_box_is_scored(box, token, monkeypatch):
    """Process 1 is killed from outside, as a hole in the box would let the code do."""
    from textenvs.sandbox import process

    kill_soon = process.Run._take

    def take(self, line, chunk):
        kill_soon(self, line, chunk)
        if self._started and self._init is not None:
            signal.pidfd_send_signal(self._init, signal.SIGKILL)

    monkeypatch.setattr(process.Run, "_take", take)
    result = attack(box, token, "import time; time.sleep(20)")
    assert result.status == "killed"
    assert "sandbox ended before the program" in result.describe()
