"""Commands that mean harm to what lasts of a shell: each is stopped, said in words, and ends with its command."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from shells import SMALL, Session, shell_of

from textenvs.sandbox import SandboxFailure, shell_server
from textenvs.sandbox.result import ShellLimits
from textenvs.sandbox.shell import DEEPEST, ShellState
from textenvs.sandbox.tree import Tree
from textenvs.sandbox.worker import WorkerDied


@pytest.fixture
def session():
    return Session({"a": "one"})


def test_processes_end_with_their_command(session):
    result = session(
        "(trap '' TERM HUP; while :; do sleep 0.02; echo x >> grows; done) & setsid sleep 60 & disown -a; :"
    )
    assert "left in the background were ended" in result.describe()
    size = len(session.state.project.text("grows") or "")
    assert session("sleep 0.05; ls /proc 2>/dev/null | grep -c '^[0-9]' ").status in ("ok", "error")
    assert len(session.state.project.text("grows") or "") == size


def test_links_out_of_the_folder_stay_links(session):
    secret = Path(__file__)
    result = session(
        f"ln -s {secret} s; ln -s / root; ln -s ../../etc up; ln {secret} h; ln /etc/passwd p; cat s; cat root/root/x"
    )
    assert "No such file" in result.output
    project = session.state.project
    assert {path: project[path].kind for path in ("s", "root", "up")} == dict.fromkeys(("s", "root", "up"), "link")
    assert project["s"].content == os.fsencode(secret)
    assert "h" not in project
    session("ls root/ > /dev/null")
    assert session.state.project == project


def test_episodes_share_no_file(session):
    session(
        "echo mine > /tmp/t; echo mine > /dev/shm/u; mkdir /box/x 2>&1; echo x > /proc/x; touch /project/../y /usr/z"
    )
    other = Session()
    result = other("ls -A / /project /tmp /box /dev/shm")
    assert not {"t", "u", "x", "y", "z"} & set(result.output.split())


def test_what_belongs_to_others_is_out_of_reach(session):
    code = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    try:
        print(name, attempt())
    except OSError as error:
        print(name, 'refused')
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno())
tried('ptrace', lambda: call('ptrace', 16, 1, 0, 0))
tried('unshare', lambda: call('unshare', 0x10000000))
tried('umount', lambda: call('umount2', b'/project', 2))
tried('chroot', lambda: call('chroot', b'/project'))
tried('device', lambda: os.mknod('/project/disk', 0o60600, os.makedev(254, 0)))
tried('network', lambda: socket.socket(socket.AF_INET))
tried('memory', lambda: open('/proc/1/mem', 'rb'))
tried('files', lambda: os.listdir('/proc/1/fd'))
tried('root', lambda: os.setuid(0))
print(len([name for name in os.listdir('/proc') if name.isdigit()]) < 8 if os.path.exists('/proc') else True)
"""
    names = ("ptrace", "unshare", "umount", "chroot", "device", "network", "memory", "files", "root")
    refused = [f"{name} refused" for name in names]
    assert session(f'python3 -c "{code}"').output.splitlines() == [*refused, "True"]
    assert session("kill -9 1; kill -STOP 1; echo alive").output.endswith("alive\n")


def test_paths_of_the_host_are_not_seen():
    """Neither of process 1, whatever user the host process is, nor of what is mounted."""
    session = Session(limits=ShellLimits())
    own = "/proc/self/{cmdline,environ,maps,mounts,mountinfo,mountstats,cgroup}"
    result = session(f"ls /proc/1; cat /proc/1/* /proc/[0-9]*/cmdline {own} | tr '\\0' ' '; cat /etc/passwd")
    assert result.omitted == 0
    assert "user:x:1000" in result.output
    package = Path(shell_server.__file__).parent
    for folder in (package, package.parents[1], Path(__file__).parent):
        assert str(folder) not in result.output
    groups = [line for line in result.output.splitlines() if re.fullmatch(r"\d+:[\w=,]*:.*", line)]
    assert all(group.endswith(":/") for group in groups)


def test_packages_of_this_process_are_not_there(session):
    result = session("python3 -c 'import textenvs'; python3 -c 'import yaml'; ls /root /home /srv; printenv | sort")
    assert result.output.count("ModuleNotFoundError") == 2
    own = {name for name in os.environ if name.startswith(("TEXTENVS", "HF_", "PYTEST"))}
    assert not own & {line.partition("=")[0] for line in result.output.splitlines()}


def test_fork_bomb_ends_with_its_time(session):
    result = session("bomb() { bomb | bomb & }; bomb; sleep 30", timeout_s=0.5)
    assert result.status in ("timeout", "killed", "error")
    assert session("echo after").output == "after\n"


def test_endless_computing_ends(session):
    result = session("while :; do :; done")
    assert result.status == "timeout"
    assert "1 s of CPU time" in result.describe()


def test_cpu_time_is_named_if_it_ran_out(session):
    for command, status in [("exit 152", "error"), ("bash -c 'kill -XCPU $$'", "error"), ("kill -XCPU $$", "killed")]:
        result = session(command)
        assert (result.status, result.exit_code) == (status, -24 if status == "killed" else 152)
        assert "s of CPU time" not in result.describe()
    result = session("bash -c 'while :; do :; done'")
    assert result.exit_code == 152
    assert "1 s of CPU time" in result.describe()


def test_memory_hog_is_refused(session):
    code = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    assert session(f"python3 -c '{code}'").output.endswith("MemoryError\n")
    assert session("echo after").output == "after\n"


def test_memory_of_all_processes_ends_the_command(session):
    code = "x = bytearray(b'1') * (100 << 20); import time; time.sleep(30)"
    result = session(f'for n in 1 2 3; do python3 -c "{code}" & done; wait')
    assert (result.status, result.exit_code) == ("memory", None)
    assert session("cat a").output == "one"


def test_flood_is_stopped(session):
    result = session("yes")
    assert (result.status, result.head[:4]) == ("output", b"y\ny\n")
    assert "printed more than" in result.describe()


def test_big_and_sparse_files_do_not_fit(session):
    result = session("head -c 3000000 /dev/zero > big; stat -c %s big")
    assert result.output.split()[-1] == str((SMALL.disk_mb << 20) - 4096)  # the other file has a block
    session("rm big; for n in 1 2 3 4; do truncate -s 2M s$n; done; echo kept > t")
    result = session("ls")
    assert result.output.split() == ["a", "s1", "t"] or "s2" not in result.output.split()
    assert session.state.tree.size <= SMALL.disk_mb << 20
    assert session("cat a").output == "one"


def test_full_disk_keeps_the_state(session):
    result = session("x=$(seq 20000); f() { echo ${#x}; }; mkdir d; cd d; cat /dev/zero > full; cat /dev/zero > fuller")
    assert "No space left" in result.output
    assert result.notes == ()
    assert session.state.tree.size <= SMALL.disk_mb << 20
    full = session.state.tree
    assert session("f; pwd").output == "108893\n/project/d\n"
    assert session.state.tree == full


def test_flood_of_the_state_is_stopped(session):
    result = session("x=1; cat /dev/zero >&250")
    assert result.status == "output"
    result = session("x=2; head -c 300000 /dev/zero >&250")
    assert "as they were before the command" in result.describe()
    assert session("echo ${x-none}").output == "none\n"


def test_many_files_are_refused(session):
    session("mkdir m; python3 -c \"for n in range(6000): open(f'm/{n}', 'w').close()\" 2>/dev/null")
    assert len(session.state.tree) <= 4096
    assert session("cat a").output == "one"


def test_deep_folders_are_kept_up_to_a_limit(session):
    code = "import os\nfor n in range(3000):\n    os.mkdir('dd'); os.chdir('dd')"
    result = session(f'python3 -c "{code}"')
    assert "Not kept: /project/dd" in result.describe()
    assert max(path.count("/") + 1 for path in session.state.tree) == DEEPEST
    state = session.state
    assert session(":").notes == ()
    assert session.state.tree == state.tree
    assert session("cat a; rm -rf dd; ls").output == "onea\n"


def test_tree_that_is_too_deep_is_refused():
    folders = "/".join("d" * (DEEPEST - 1))
    assert len(ShellState.of(Tree.of({}, folders=(folders,))).project) == DEEPEST - 1
    with pytest.raises(ValueError, match="at most 128 parts"):
        ShellState.of(Tree.of({f"{folders}/f": ""}))


@pytest.mark.parametrize(
    "poison", ["rm -rf /project", "rm -rf /project/* /project/.[a-z]* .", "chmod 000 /project", "mv /project /tmp/w"]
)
def test_folder_itself_stays(session, poison):
    session(poison)
    assert session.state.tree["project"].kind == "folder"
    assert session("chmod 755 /project; cd /project && echo there > f; cat f").output.endswith("there\n")


def test_missing_working_directory_is_said(session):
    session("mkdir d; cd d")
    session("rmdir /project/d")
    result = session("pwd")
    assert result.output == "bash: the working directory /project/d is not there any more\n/project\n"


def test_special_files_are_not_kept(session):
    code = "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
    result = session(f'mkfifo pipe; python3 -c "{code}"; echo x > file')
    assert "Not kept: /project/pipe, /project/sock." in result.describe()
    assert set(session.state.project) == {"a", "file"}


@pytest.mark.parametrize(
    "poison",
    [
        "PATH=/nowhere; export PATH",
        "PROMPT_COMMAND='exit 9'; BASH_ENV=/project/evil; ENV=/project/evil; echo 'exit 9' > evil; export BASH_ENV ENV",
        "trap 'exit 9' EXIT; trap 'echo dirty' DEBUG; trap 'echo dirty' ERR",
        "set() { exit 9; }; eval() { exit 9; }; trap() { exit 9; }; cd() { exit 9; }; printf() { exit 9; }",
        "__shell_save() { echo 'exit 9' >&250; }; __shell_status=x; __shell_options='exit 9;'",
        "exec 250>&-",
        "printf 'exit 9\\0\\0\\0/project\\0END\\0' >&250; exec true",
        "readonly PATH HOME IFS",
        "IFS=0123456789abcdef; set -fCu; shopt -s nocasematch failglob; set -o posix",
        "head -c 300000 /dev/zero | tr '\\0' x > big; v=$(cat big)",
        "declare -n _loop=_loop; declare -n PATHREF=PATH",
        "alias echo='exit 9' printf='exit 9'; shopt -s expand_aliases; unalias echo",
    ],
)  # fmt: skip
def test_poison_in_the_shell_stays_in_its_episode(session, poison):
    session(poison)
    result = session("echo still here")  # or what the policy made of its own shell, but no failure
    assert result.exit_code is not None
    other = Session()
    assert other("echo clean").output == "clean\n"


def test_poison_that_ends_commands_is_a_result(session):
    session("printf '\\0exit 9\\0\\0/project\\0END\\0' >&250; exec true")
    assert session("echo not reached").exit_code == 9


def test_box_that_cannot_be_made_is_a_failure(monkeypatch):
    shell = shell_of(ShellLimits(disk_mb=1))
    too_large = ShellState.of(Tree.of({"big": b"x" * (12 << 20)}))
    with pytest.raises(SandboxFailure, match="No space left"):
        shell.run_now(too_large, "echo")
    assert shell.run_now(ShellState.of(), "echo fine")[1].output == "fine\n"


def test_transient_failure_does_not_take_proc_away(monkeypatch):
    failures = ["[Errno 12] Cannot allocate memory: 'mount(/proc)'", "it ended at once", "[Errno 1] no: 'mount(/proc)'"]

    class Server:
        def __init__(self, limits, folders, *, proc):
            if failures:
                raise SandboxFailure(failures.pop(0))

        def close(self):
            pass

    monkeypatch.setattr(shell_server, "ShellServer", Server)
    permitted = functools.cache(shell_server._proc_permitted.__wrapped__)
    for _ in range(2):
        with pytest.raises(SandboxFailure):
            permitted()
    assert not permitted()
    assert not permitted(), "a refusal is remembered"


def test_ended_server_runs_no_command():
    shell_of()
    server = shell_server.start(SMALL, ("/tmp",))
    server.kill()
    with pytest.raises(WorkerDied):
        server.ask({"files": []}, 1)
    server.close()


def test_box_that_ends_early_is_a_result(session):
    """Otherwise a command that breaks its box would escape its score."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(session, "exec -a breaks-its-box sleep 60")
        _wait_for(lambda: _named("breaks-its-box"))
        init = Path(f"/proc/{_named('breaks-its-box')}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(init), signal.SIGKILL)
        result = ended.result()
    assert (result.status, result.exit_code) == ("killed", None)
    assert "the sandbox ended before the program did" in result.describe()
    assert session("cat a").output == "one"


def test_times_that_no_clock_has_are_kept(session):
    session("touch -d @-99999999999 early; touch -d @99999999999 late; touch -d @4000000000 later")
    tree = session.state.project
    assert [tree[path].mtime_ns // 10**9 for path in ("early", "late", "later")] == [
        -(10**11) + 1,
        10**11 - 1,
        4 * 10**9,
    ]
    session("echo after")
    assert session.state.project == tree


def test_nothing_outlives_a_killed_host(tmp_path):
    shell_of()
    code = (
        "from textenvs.sandbox.shell import Shell, ShellState\n"
        "import threading, time\n"
        "run = lambda: Shell().run_now(ShellState.of(), 'exec -a outlives-its-host sleep 60')\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(60)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", code])
    try:
        _wait_for(lambda: _named("outlives-its-host"))
    finally:
        host.kill()
        host.wait()
    _wait_for(lambda: not _named("outlives-its-host"))


def _named(name: str) -> int:
    """Return the process that was started under this name, or 0."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(name.encode()):
                return int(path.parent.name)
    return 0


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
