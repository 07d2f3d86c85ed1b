"""The sandbox as a library: input, output, and the error where there is no backend."""

import asyncio
import copy
import functools
import gc
import importlib
import os
import pickle
import platform
import struct
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandbox_boxes import HASTY, SMALL, box_of, box_or_refusal, check_refusal

from textenvs.sandbox import Limits, Sandbox, SandboxFailure, SandboxResult, SandboxUnavailable, cgroup, seccomp, usage
from textenvs.sandbox.backends import BACKENDS
from textenvs.sandbox.process import Run


@pytest.fixture
def box():
    return box_of()


# ------------------------------------------------------------------ in and out


def test_output_errors_and_exit_codes(box):
    assert box.run_now("print(6 * 7)") == SandboxResult("ok", "42\n", "", 0)
    result = box.run_now("import sys\nprint('so far')\nsys.exit(3)")
    assert (result.status, result.exit_code, result.ok) == ("error", 3, False)
    assert result.describe() == "so far\n[The program ended with exit code 3.]"
    result = box.run_now("def f(x):\n    return 1 / x\nf(0)")
    assert result.describe() == result.stderr.rstrip()
    assert 'File "/tmp/main.py", line 2, in f\n    return 1 / x' in result.stderr
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "Use print()" in box.run_now("1 + 1").describe()
    assert "\ufffd" in box.run_now("import sys; sys.stdout.buffer.write(bytes([255]))").stdout


@pytest.mark.parametrize(
    ("ended", "status"),
    [("-24 0.6", "timeout"), ("-9 0.6", "timeout"), ("-24 0.01", "killed"), ("-9 0.01", "killed"), ("0 0.9", "ok")],
)
def test_killed_after_half_cpu_limit_is_timeout(ended, status):
    """The kernel's ticks and the time that it reports differ on a loaded machine."""
    run = Run({}, SMALL)
    run._started, run._read["status"] = True, f"started\nended {ended}\n".encode()
    assert run._conclude().status == status


@pytest.mark.parametrize(
    "code", ["", "x = ", "\0", "print('\ud800')", "(" * 5000, "é = 1\nprint(é)", "\ufeffprint(1)", "\r\n\t"]
)
def test_any_text_is_a_program(box, code):
    assert box.run_now(code).status in ("ok", "error")


def test_too_long_program_is_its_error(box):
    result = box.run_now("#" * (5 << 20))
    assert result.status == "error"
    assert "too long" in result.describe()


def test_standard_input(box):
    code = "import sys; print(repr(sys.stdin.read()))"
    assert box.run_now(code, stdin="line é\n" * 3).stdout == "'line é\\nline é\\nline é\\n'\n"
    assert box.run_now(code).stdout == "''\n"
    big = "x" * (2 << 20)  # more than a pipe holds
    assert box.run_now("import sys; print(len(sys.stdin.read()))", stdin=big).stdout == f"{2 << 20}\n"
    with pytest.raises(ValueError, match="stdin has .*disk_mb=4"):
        box.run_now("pass", stdin="x" * (5 << 20))


def test_useful_modules_work_in_every_box():
    code = """
import bz2, ctypes, decimal, hashlib, lzma, sqlite3, ssl, subprocess, sys, tempfile, zlib
from multiprocessing import get_context
if __name__ == "__main__":
    with get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, 2]))
    print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout)
    print(tempfile.NamedTemporaryFile().name.startswith("/tmp/"))
"""
    for backend in BACKENDS:
        sandbox = box_or_refusal(backend, SMALL)
        if isinstance(sandbox, Sandbox):
            assert sandbox.run_now(code).describe() == "[1, 2]\n1\n\nTrue"


def test_packages_only_where_asked_for(tmp_path):
    plain = box_of()
    assert "ModuleNotFoundError" in plain.run_now("import numpy").stderr
    (tmp_path / "mine.py").write_text("x = 'mine'")
    tmp_path.chmod(0o755)
    with_folder = Sandbox(backend=plain.backend, limits=SMALL, packages=tmp_path)
    assert with_folder.run_now("import mine; print(mine.x)").stdout == "mine\n"
    installed = Sandbox(backend=plain.backend, packages="installed")
    code = "import numpy; print(numpy.arange(3).sum(), numpy.random.rand() == numpy.random.RandomState(0).rand())"
    expected = "3 True\n" if Path(sysconfig.get_path("platlib"), "numpy").exists() else ""
    assert installed.run_now(code).stdout == expected


def test_runs_are_deterministic(box):
    code = "import random, os\nprint(random.random(), random.sample(range(99), 5), {*'abcdefgh'}, hash('x'), object())"
    first = box.run_now(code)
    assert first.ok
    assert [box.run_now(code), box.run_now(code)] == [first, first]
    other_seeds = [
        Sandbox(backend=box.backend, seed=seed).run_now("import random; print(random.random())") for seed in (1, None)
    ]
    assert len({first.stdout.split()[0], *(other.stdout.strip() for other in other_seeds)}) == 3


# ------------------------------------------------------------------ many, asynchronous, cancelled


async def test_runs_side_by_side_keep_apart(box):
    async def square(i):
        return await box.run("x = int(input()); open('mine', 'x').write(str(x)); print(x * x)", stdin=str(i))

    results = await asyncio.gather(*map(square, range(12)))
    assert [result.stdout for result in results] == [f"{i * i}\n" for i in range(12)]


async def test_cancelled_run_is_killed(box, tmp_path):
    hasty = Sandbox(backend=box.backend, limits=Limits(cpu_s=60, wall_s=60))
    before = children()
    task = asyncio.create_task(hasty.run("import time; time.sleep(50)"))
    while not children() - before:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(3000):
        if not children() - before:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the run outlived its cancellation")


def children() -> set[str]:
    pids: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            pids.update((task / "children").read_text().split())
    return pids


def test_a_run_dies_with_its_host(tmp_path):
    """Even when the host has no time to say so."""
    box = box_of()
    code = (
        "import os, sys\nfrom textenvs.sandbox import Sandbox\n"
        f"box = Sandbox(backend={box.backend!r})\n"
        "print('ready', flush=True)\n"
        "box.run_now('import ctypes, time; ctypes.CDLL(None).prctl(15, b\"%s\"); time.sleep(60)' % sys.argv[1])\n"
    )
    name = f"d{os.getpid()}x{time.monotonic_ns() % 10**6}"[:15]
    host = subprocess.Popen([sys.executable, "-c", code, name], stdout=subprocess.PIPE, text=True)
    assert host.stdout.readline() == "ready\n"
    while not named(name):
        assert host.poll() is None
        time.sleep(0.02)
    host.kill()
    host.wait()
    host.stdout.close()
    for _ in range(3000):
        if not named(name):
            return
        time.sleep(0.02)
    pytest.fail("the run outlived its host")


def named(name: str) -> list[str]:
    pids = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                pids.append(comm.parent.name)
        except OSError:
            continue
    return pids


def test_no_descriptor_is_left_open(box):
    box.run_now("pass")
    gc.collect()  # what other tests left open
    before = set(os.listdir("/proc/self/fd"))
    box.run_now("pass")
    box_of(None, HASTY).run_now("import time; time.sleep(9)")
    assert set(os.listdir("/proc/self/fd")) == before


def test_sandbox_can_be_copied_and_pickled(box):
    for copied in (copy.deepcopy(box), pickle.loads(pickle.dumps(box))):
        assert copied.run_now("print(1)").stdout == "1\n"
        assert copied.limits == box.limits


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("cpu_s", 0), ("cpu_s", 1.5), ("wall_s", 0), ("wall_s", float("nan")), ("memory_mb", 10), ("processes", True)]
    + [("disk_mb", "1"), ("output_bytes", -1), ("open_files", 3), ("wall_s", float("inf"))],
)
def test_limits_out_of_range_are_named(name, value):
    with pytest.raises(ValueError, match=f"Limits: {name} must be"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    "option",
    [{"limits": {"cpu_s": 1}}, {"backend": "docker"}, {"backend": "unsafe"}, {"seed": -1}, {"packages": "/no/such"}],
)
def test_settings_out_of_range_are_named(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        Sandbox(**option)


# ------------------------------------------------------------------ no box

REFUSED = """
import ctypes, platform, sys
from textenvs.sandbox import Sandbox, SandboxUnavailable, container_init, seccomp
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
container_init._filter_calls(seccomp.build(platform.machine()))  # from here on there are no new namespaces
"""


def in_a_place_without_namespaces(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", REFUSED + code], capture_output=True, text=True, timeout=60)


needs_filter = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.MACHINES, reason="the filter is for Linux"
)


@needs_filter
def test_missing_backend_error_names_remedy():
    done = in_a_place_without_namespaces("try: Sandbox()\nexcept SandboxUnavailable as refusal: print(refusal)")
    check_refusal(done.stdout)
    assert "unshare" in done.stdout
    assert "Operation not permitted" in done.stdout


@needs_filter
def test_without_isolation_only_by_name():
    code = "box = Sandbox(allow_unsafe=True)\nprint(box.backend)\nprint(box.run_now('import os; print(os.listdir())'))"
    done = in_a_place_without_namespaces(code)
    assert done.stdout == (
        "unsafe\nSandboxResult(status='ok', stdout=\"['main.py']\\n\", stderr='', exit_code=0, reason='')\n"
    ), done.stderr
    assert (
        "RuntimeWarning: NO SANDBOX: programs of the model run with the files, the network and the rights"
        in done.stderr
    )


def test_backend_is_preferred_to_unsafe(box):
    assert Sandbox(allow_unsafe=True).backend == box.backend


@needs_filter
def test_limits_hold_without_isolation_too(tmp_path):
    code = """
from textenvs.sandbox import Limits
for wall_s, code in (
    (0.5, "import time; time.sleep(99)"), (30, "x = bytearray(1 << 28)"), (30, "while True: print('x')"),
    (30, "import os, time\\nif os.fork() == 0:\\n    time.sleep(99)"),
):
    limits = Limits(cpu_s=1, wall_s=wall_s, memory_mb=128, output_bytes=1000)
    print(Sandbox(allow_unsafe=True, limits=limits).run_now(code).status)
"""
    done = in_a_place_without_namespaces(code)
    assert done.stdout.split() == ["timeout", "memory", "output", "ok"], done.stderr


def test_unsupported_machine_is_refused(monkeypatch):
    from textenvs.sandbox import backends

    monkeypatch.setattr(backends.sys, "platform", "darwin")
    monkeypatch.setattr(backends, "_problem_with", backends._problem_with.__wrapped__)
    with pytest.raises(SandboxUnavailable, match="needs Linux"):
        Sandbox()


def test_leaky_box_is_refused(box, monkeypatch):
    """Forget the limit on processes: the proof must notice what code can do."""
    from textenvs.sandbox import backends

    monkeypatch.setattr(backends, "_problem_with", backends._problem_with.__wrapped__)
    make_job = backends.make_job

    def without_that_limit(*arguments):
        made = make_job(*arguments)
        return made | {"rlimits": {name: pair for name, pair in made["rlimits"].items() if name != "RLIMIT_NPROC"}}

    monkeypatch.setattr(backends, "make_job", without_that_limit)
    monkeypatch.setattr(backends, "_PROOF", backends._PROOF.replace("most = resource", "most = 9 or resource"))
    with pytest.raises(SandboxUnavailable, match="can start more processes than it may"):
        Sandbox()


# ------------------------------------------------------------------ the filter, by an interpreter of its own


def verdict(program: bytes, number: int, architecture: int, arguments: tuple[int, int, int]) -> int:
    """Return the verdict of a classic BPF program, by the rules of bpf(4)."""
    data = struct.pack("=IIQ3Q", number, architecture, 0, *arguments) + bytes(24)
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        operation, yes, no, k = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif operation == 0x06:
            return k
        else:
            test = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[operation]
            at += yes if test else no


ALLOW, EPERM, NO_FAMILY, NO_CALL, KILL = 0x7FFF0000, 0x50001, 0x50000 | 97, 0x50000 | 38, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
@given(data=st.data())
def test_filter_refuses_exactly_listed_calls(machine, data):
    column = seccomp.MACHINES.index(machine)
    refused = {pair[column] for pair in seccomp._REFUSED.values()} - {None}
    special = {seccomp._CLONE, seccomp._CLONE3, seccomp._SOCKET, seccomp._SETSOCKOPT, seccomp._PRLIMIT64}
    clone, clone3, socket, setsockopt, prlimit = (
        pair[column]
        for pair in (seccomp._CLONE, seccomp._CLONE3, seccomp._SOCKET, seccomp._SETSOCKOPT, seccomp._PRLIMIT64)
    )
    number = data.draw(
        st.sampled_from(sorted(refused | {pair[column] for pair in special})) | st.integers(0, 460), label="call"
    )
    some = st.sampled_from([0, 1, 2, 7, 8, 10, 16, 32, 33, 40, 0x10000011, 0x1200011]) | st.integers(0, 2**32 - 1)
    arguments = data.draw(st.tuples(some, some, some), label="arguments")
    first, second, third = arguments
    expected = EPERM if number in refused else ALLOW
    if number == clone:
        expected = EPERM if first & 0x7E020000 else ALLOW
    elif number == clone3:
        expected = NO_CALL
    elif number == socket:
        expected = ALLOW if first == 1 else NO_FAMILY
    elif number == setsockopt:
        expected = EPERM if second == 1 and third in (7, 8, 32, 33) else ALLOW
    elif number == prlimit:
        expected = ALLOW if first == 0 else EPERM
    program = seccomp.build(machine)
    assert verdict(program, number, ARCHITECTURES[machine], arguments) == expected
    assert verdict(program, number, 0x40000003, arguments) == KILL  # 32-bit
    if machine == "x86_64":
        assert verdict(program, number | 0x40000000, ARCHITECTURES[machine], arguments) == NO_CALL


# ------------------------------------------------------------------ control groups, on a file system made of files


@pytest.fixture
def unified(tmp_path):
    """Write ``/proc/self`` and a mounted cgroup2: two levels above this process's group delegate controllers."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    own = root / "user.slice" / "user-1000.slice" / "run.scope"
    own.mkdir(parents=True)
    proc.mkdir()
    (proc / "mountinfo").write_text(
        f"30 1 0:26 / {root} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n36 1 0:32 / /x rw - ext4 x rw\n"
    )
    (proc / "cgroup").write_text("4:memory:/old\n0::/user.slice/user-1000.slice/run.scope\n")
    for folder, controllers in (
        (root, "cpu memory pids"),
        (root / "user.slice", "memory pids"),
        (own.parent, "memory"),
    ):
        (folder / "cgroup.subtree_control").write_text(controllers + "\n")
    return root, proc


def test_control_groups_need_both_controllers(unified):
    root, proc = unified
    assert cgroup.candidates(proc) == [root / "user.slice", root]
    (proc / "cgroup").write_text("4:memory:/old\n")
    assert cgroup.candidates(proc) == []
    assert cgroup.candidates(proc / "missing") == []


def test_control_group_sets_limits_reports_memory(unified, monkeypatch):
    """Simulate the kernel, which makes a group's files with its folder."""
    root, _ = unified
    make = Path.mkdir

    def mkdir(self, *args, **options):
        make(self, *args, **options)
        for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cgroup.procs", "cgroup.kill"):
            (self / name).touch()
        (self / "memory.events").write_text("low 0\nmax 7\noom 0\noom_kill 0\noom_group_kill 0\n")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = cgroup.Group(root, Limits(memory_mb=100, disk_mb=10, processes=5))
    assert 110 << 20 < int((group.path / "memory.max").read_text()) < 300 << 20
    assert int((group.path / "pids.max").read_text()) >= 5
    assert (group.path / "memory.swap.max").read_text() == "0"
    assert not group.ran_out()
    (group.path / "memory.events").write_text("low 0\noom 1\noom_kill 1\noom_group_kill 1\n")
    assert group.ran_out()
    os.write(group.entry, b"0")
    group.close()
    assert (group.path / "cgroup.kill").read_text() == "1"
    assert (group.path / "cgroup.procs").read_text() == "0"


def test_process_with_binary_name_is_counted():
    """Read parents from all processes, where the kernel does not list children."""
    naming = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xff) R 1 (', 0, 0, 0); print('named', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", naming], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"named\n"
        assert child.pid in usage._children_of_all()[os.getpid()]
        child.stdin.close()


def test_stale_control_groups_are_ignored(tmp_path, monkeypatch):
    make = Path.mkdir

    def mkdir(self, *args, **options):
        make(self, *args, **options)
        (self / "cgroup.procs").touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    for _ in range(2):  # the numbers of a process begin anew
        importlib.reload(cgroup).Group(tmp_path, Limits()).close()  # not empty, so it stays
    assert len(list(tmp_path.iterdir())) == 2


def test_failed_control_group_leaves_nothing(unified):
    root, _ = unified
    (root / "file").touch()
    with pytest.raises(SandboxFailure, match="could not be made in .*file: .*Not a directory.* look whether"):
        cgroup.Group(root / "file", Limits())


def test_transient_failure_is_not_remembered(monkeypatch):
    from textenvs.sandbox import backends

    answers = [
        SandboxFailure("[Errno 11] Resource temporarily unavailable: 'fork'"),
        OSError(11, "again"),
        None,
        "leaks",
    ]

    def prove(backend):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(backends, "_prove", prove)
    monkeypatch.setattr(backends, "_problem_with", functools.cache(backends._problem_with.__wrapped__))
    for _ in range(2):
        with pytest.raises(SandboxUnavailable, match=r"namespaces: it could not be tested now: .*Errno 11"):
            backends.choose("namespaces")
    assert [backends.choose("namespaces") for _ in range(2)] == ["namespaces", "namespaces"]
    assert answers == ["leaks"], "success is remembered"


def test_transient_failure_of_control_group_is_forgotten(unified, monkeypatch):
    root, _ = unified
    monkeypatch.setattr(cgroup, "candidates", lambda: [root])
    monkeypatch.setattr(cgroup, "parent", functools.cache(cgroup.parent.__wrapped__))
    monkeypatch.setattr(Path, "mkdir", lambda self: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    with pytest.raises(SandboxFailure, match="Too many open files"):
        cgroup.parent()
    monkeypatch.setattr(Path, "mkdir", lambda self: (_ for _ in ()).throw(OSError(13, "Permission denied")))
    assert cgroup.parent() is None
