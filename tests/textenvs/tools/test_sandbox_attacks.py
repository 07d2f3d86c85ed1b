"""Code that means harm: each attack is stopped, said in words, and leaves the host as it was.

Every attack runs in every backend of this machine; one that is not there must refuse (see ``sandbox_boxes``).
"""

import os
import socket
import textwrap
import threading
import uuid
from pathlib import Path

import pytest
from sandbox_boxes import SMALL, box_of

from textenvs.tools.sandbox.backends import BACKENDS


@pytest.fixture(params=BACKENDS)
def box(request):
    return box_of(request.param)


@pytest.fixture
def token():
    """A name for the attack's processes, and the check that none of them is left."""
    name = f"t{uuid.uuid4().hex[:12]}"
    yield name
    left = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                left.append(comm.parent.name)
        except OSError:
            continue
    assert not left, f"processes {left} outlived their run"


def attack(box, token, code, **more):
    """Run ``code`` under the token's name; what it printed before is in the result."""
    name = f"import ctypes; ctypes.CDLL(None).prctl(15, b'{token}', 0, 0, 0)\n"
    return box.run_now(name + textwrap.dedent(code), **more)


# ------------------------------------------------------------------ more than its share


@pytest.mark.parametrize(
    "loop",
    [
        "while True: pass",
        "9**9**9",
        "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')",
        # who ignores the first signal meets the second
        "import signal\nfor n in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
    ],
)
def test_endless_computing_ends(box, token, loop):
    result = attack(box, token, "print('begun')\n" + loop)
    assert result.status == "timeout"
    assert result.stdout == "begun\n"
    assert "endless loop" in result.describe()


@pytest.mark.parametrize(
    "wait",
    [
        "import time; time.sleep(1000)",
        "import threading; threading.Event().wait()",
        "import signal\nwhile True: signal.pause()",
        "import os; os.close(0); os.close(1); os.close(2)\nimport time; time.sleep(1000)",
        "import os; os.closerange(0, 1000)\nwhile True: os.getppid(); __import__('time').sleep(0.1)",
    ],
)
def test_endless_waiting_ends(token, wait, monkeypatch):
    from textenvs.tools.sandbox import Limits, Sandbox

    box = box_of()
    hasty = Sandbox(backend=box.backend, limits=Limits(cpu_s=30, wall_s=0.4))
    result = attack(hasty, token, wait)
    assert (result.status, result.exit_code) == ("timeout", None)
    assert "more than 0.4 s" in result.describe()


def test_a_fork_bomb_stays_small_and_ends(box, token):
    result = attack(
        box,
        token,
        """
        import os
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
    )
    assert result.status == "timeout"


def test_the_number_of_processes_and_threads_is_limited(box, token):
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
        for _ in range(6):
            if os.fork() == 0:
                break
        time.sleep(0.5)
        print("fine")
        """,
    )
    assert (result.status, result.stdout) == ("ok", "fine\n" * 7)


@pytest.mark.parametrize(
    "hoard",
    [
        "import os; os.memfd_create('x')",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.shmget(0, 1 << 20, 0o1600) == -1: raise OSError(ctypes.get_errno(), 'shmget')",
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.msgget(0, 0o1600) == -1: raise OSError(ctypes.get_errno(), 'msgget')",
    ],
)
def test_there_is_no_memory_that_no_limit_counts(box, token, hoard):
    result = attack(box, token, hoard)
    assert result.status == "error"
    assert "Operation not permitted" in result.stderr or "PermissionError" in result.stderr


def test_shared_mappings_count(box, token):
    result = attack(box, token, "import mmap\nm = mmap.mmap(-1, 200 << 20)\nm[:] = b'x' * len(m)")
    assert result.status in ("error", "memory")
    assert "Cannot allocate memory" in result.stderr or "MemoryError" in result.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_endless_output_ends(box, token, stream):
    result = attack(box, token, f"import sys\nwhile True: sys.{stream}.write('x' * 1000)")
    assert result.status == "output"
    assert getattr(result, stream) == "x" * SMALL.output_bytes
    assert f"more than {SMALL.output_bytes} bytes" in result.describe()
    assert len(result.describe(max_chars=500)) < 700


def test_output_up_to_the_limit_is_whole(box, token):
    result = attack(box, token, f"print('y' * {SMALL.output_bytes - 1})")
    assert (result.status, len(result.stdout)) == ("ok", SMALL.output_bytes)


def test_a_huge_file(box, token):
    result = attack(box, token, "open('big', 'wb').write(b'x' * (64 << 20))")
    assert result.status == "error"
    assert "File too large" in result.describe() or "No space left" in result.describe()


def test_many_files_together(box, token):
    result = attack(
        box,
        token,
        """
        size = 0
        try:
            for i in range(100):
                with open(f"f{i}", "wb", buffering=0) as file:
                    size += file.write(bytes(1 << 19))
        except OSError as error:
            print(error.strerror, size)
        """,
    )
    words, _, size = result.stdout.rpartition(" ")
    assert words == "No space left on device"
    assert int(size) <= SMALL.disk_mb << 20


def test_files_without_content_are_limited_too(token):
    result = attack(
        box_of("namespaces"),
        token,
        """
        import os
        try:
            for i in range(10_000):
                os.mkdir(f"d{i}")
        except OSError as error:
            print(error.strerror)
        """,
    )
    assert result.stdout == "No space left on device\n"


def test_open_files_are_limited(box, token):
    result = attack(box, token, "held = []\nwhile True: held.append(open('/dev/null'))")
    assert "Too many open files" in result.stderr


# ------------------------------------------------------------------ what is not its own


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/etc/shadow", "/etc/hostname", "~", "/proc/self/environ", "/proc/1/root", "/sys", "/var", "/usr/bin"],
)
def test_files_of_the_host_are_not_there(box, token, path):
    path = os.path.expanduser(path)
    result = attack(box, token, f"import os; print(os.path.exists({path!r}))\nos.stat({path!r})")
    assert result.stdout == "False\n"
    assert "No such file or directory" in result.describe()


def test_this_file_cannot_be_found(box, token, tmp_path):
    (tmp_path / "secret.txt").write_text("the secret")
    code = f"""
        import os
        print([os.path.exists(path) for path in ({str(Path(__file__).parent)!r}, {str(tmp_path)!r}, {os.getcwd()!r})])
        print([path for path, _, files in os.walk("/") for file in files if file in ("secret.txt", "pyproject.toml")])
        """
    assert attack(box, token, code).stdout == "[False, False, False]\n[]\n"


def test_environment_variables_of_the_host_are_not_there(box, token, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = attack(box, token, "import os; print(dict(os.environ))")
    assert "sk-secret" not in result.stdout
    assert "'HOME': '/tmp'" in result.stdout


def test_the_parents_memory_and_files_are_out_of_reach(box, token):
    """Descriptors that the host has open do not come along."""
    result = attack(
        box,
        token,
        """
        import os
        for fd in range(3, 256):
            try:
                print(fd, os.fstat(fd))
            except OSError:
                pass
        """,
    )
    assert result.stdout == ""


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_the_host_cannot_be_reached_over_the_network(box, token, family):
    where = {"AF_INET": "127.0.0.1", "AF_INET6": "::1"}[family]
    try:
        server = socket.create_server((where, 0), family=getattr(socket, family))
    except OSError:
        pytest.skip(f"this machine has no {family}")
    with server:
        result = attack(
            box,
            token,
            f"""
            import socket
            for address in {(where, *server.getsockname()[1:])!r}, ("192.0.2.1", 80), ("2001:db8::1", 80):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    try:
                        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
                        with socket.socket(family, kind) as s:
                            s.settimeout(0.5)
                            s.connect(address)
                            print("reached", address)
                    except OSError as error:
                        print("refused")
            """,
        )
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert result.stdout == "refused\n" * 6


def test_unix_sockets_of_the_host_cannot_be_reached(box, token):
    address = f"\0{token}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        result = attack(box, token, f"import socket\nsocket.socket(socket.AF_UNIX).connect({address!r})")
    assert "ConnectionRefusedError" in result.stderr


@pytest.mark.parametrize("family", ["AF_NETLINK", "AF_VSOCK", "AF_PACKET", "AF_ALG"])
def test_other_families_of_sockets_are_refused(box, token, family):
    result = attack(box, token, f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)")
    assert "Address family not supported" in result.stderr or "not permitted" in result.stderr


@pytest.mark.parametrize("path", ["/x", "/python/lib/x", "/dev/x", "/etc/x", "/usr/lib/x", "/lib/x", "/python/sandbox/x"])
def test_nothing_can_be_written_outside_the_folder(box, token, path):
    result = attack(box, token, f"open({path!r}, 'w').write('x')")
    assert "Read-only file system" in result.stderr or "Permission denied" in result.stderr


def test_the_interpreter_cannot_be_changed(box, token):
    result = attack(box, token, "import os; os.chmod(os.__file__, 0o777)")
    assert "Read-only file system" in result.stderr or "Operation not permitted" in result.stderr


def test_symbolic_links_lead_nowhere(box, token, tmp_path):
    target = tmp_path / "target"
    target.write_text("as it was")
    result = attack(
        box,
        token,
        f"""
        import os
        for number, path in enumerate(({str(target)!r}, "/.host{target}", "../../../../../..{target}", "/proc/1/root{target}")):
            os.symlink(path, f"link{{number}}")
            try:
                open(f"link{{number}}").read()
                print("read")
            except OSError:
                pass
        os.remove("main.py")
        os.symlink("/etc/passwd", "main.py")
        os.symlink("/", "root")
        print(sorted(os.listdir("root")))
        """,
    )
    assert result.stdout == "['dev', 'etc', 'lib', 'lib64', 'python', 'tmp', 'usr']\n" or "read" not in result.stdout
    assert target.read_text() == "as it was"


def test_nothing_is_left_of_a_run(box, token):
    before = set(os.listdir("/tmp"))
    attack(box, token, "open('/tmp/left', 'w').write('x'); open('left2', 'w').write('x')")
    result = attack(box, token, "import os; print(sorted(os.listdir()))")
    assert result.stdout == "['main.py']\n"
    assert {"left", "left2"}.isdisjoint(set(os.listdir("/tmp")) - before)


# ------------------------------------------------------------------ others


def test_killing_the_parent_and_everybody(box, token):
    result = attack(
        box,
        token,
        """
        import os, signal
        for pid in (os.getppid(), 1, -1, -os.getppid()):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGSTOP, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError as error:
                    pass
        print("still here")
        """,
    )
    assert (result.status, result.stdout) == ("ok", "still here\n")


def test_pids_of_the_host_mean_nothing(box, token):
    victim = os.getpid()
    result = attack(box, token, f"import os, signal; os.kill({victim + 100_000}, 0) or os.kill({victim}, signal.SIGKILL)")
    assert "ProcessLookupError" in result.stderr


def test_killing_itself_is_told(box, token):
    result = attack(box, token, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert (result.status, result.exit_code) == ("killed", -9)
    assert "signal 9" in result.describe()
    result = attack(box, token, "import ctypes; ctypes.string_at(0)")
    assert (result.status, result.exit_code) == ("killed", -11)
    assert "Segmentation fault" in result.describe()


@pytest.mark.parametrize(
    "call",
    [
        "ptrace(16, 1, 0, 0)",  # PTRACE_ATTACH to process 1
        "ptrace(0, 0, 0, 0)",  # PTRACE_TRACEME
        "unshare(0x10000000)",
        "unshare(0x40000000)",
        "setns(0, 0)",
        "mount(b'none', b'/tmp', b'tmpfs', 0, None)",
        "umount2(b'/python', 2)",
        "chroot(b'/tmp')",
        "sethostname(b'x', 1)",
        "clone(ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0), ctypes.create_string_buffer(65536), 0x10000011, None)",
        "syscall(250, 0, 0, 0, 0, 0)" if os.uname().machine == "x86_64" else "syscall(219, 0, 0, 0, 0, 0)",  # keyctl
    ],
)
def test_powers_are_refused(box, token, call):
    code = f"libc = ctypes.CDLL(None, use_errno=True)\nprint(libc.{call}, ctypes.get_errno())"
    assert attack(box, token, code).stdout == "-1 1\n"


def test_there_are_no_capabilities_and_none_can_be_had(box, token):
    result = attack(
        box,
        token,
        """
        import os
        libc = ctypes.CDLL(None, use_errno=True)
        print([libc.prctl(23, number, 0, 0, 0) for number in range(41)].count(1))  # PR_CAPBSET_READ
        print(libc.prctl(39, 0, 0, 0, 0))  # PR_GET_NO_NEW_PRIVS
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        print(libc.capget(header, data), list(data))
        for become in (os.setuid, os.setgid):
            try:
                become(0)
                print("became root")
            except PermissionError:
                pass
        print(0 in os.getresuid() + os.getresgid() + tuple(os.getgroups()))
        """,
    )
    assert result.stdout.splitlines()[1:] == ["1", "0 [0, 0, 0, 0, 0, 0]", "False"]
    # Without a capability there is nothing that a bounding set could give back to a process with no_new_privs.
    assert result.stdout.splitlines()[0] in ("0", "41")


def test_limits_cannot_be_raised(box, token):
    result = attack(
        box,
        token,
        """
        import resource
        for name in ("CPU", "AS", "NPROC", "FSIZE", "NOFILE", "CORE", "MEMLOCK", "STACK"):
            which = getattr(resource, "RLIMIT_" + name)
            soft, hard = resource.getrlimit(which)
            try:
                resource.setrlimit(which, (hard + 1, hard + 1))
                print("raised", name)
            except (ValueError, OSError):
                pass
        resource.setrlimit(resource.RLIMIT_CPU, (resource.getrlimit(resource.RLIMIT_CPU)[1],) * 2)
        while True: pass
        """,
    )
    assert (result.status, result.stdout) == ("timeout", "")


@pytest.mark.parametrize("daemon", ["", "os.setsid()\nif os.fork(): os._exit(0)\n"])
def test_processes_left_in_the_background_end_with_the_run(box, token, daemon):
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


def test_threads_that_do_not_end_are_stopped(box, token):
    result = attack(
        box, token, "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()\nprint('main ends')"
    )
    assert (result.status, result.stdout) == ("timeout", "main ends\n")


def test_attacks_side_by_side_do_not_touch_each_other(box, token):
    """A bomb in one box is no limit of another's."""
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    results = {}

    def run(name, code):
        results[name] = attack(box, token, code)

    threads = [threading.Thread(target=run, args=("bomb", bomb))]
    threads += [
        threading.Thread(target=run, args=(i, "import os; pids = [os.fork() for _ in range(2)]; print(len(pids))"))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.pop("bomb").status == "timeout"
    assert all(result.stdout == "2\n" * 4 for result in results.values())
