"""Commands in a sandbox: what they reach, what they may use, and hostile ones that harm nobody else."""

import functools
import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from agent_kit import HEAD, TASKS, content, killed_run, wait_until

from textenvs.env import EnvironmentFailure
from textenvs.envs.agent import Agent
from textenvs.gateway.channel import Ended
from textenvs.gateway.model_call import ModelReply
from textenvs.gateway.server import gateway
from textenvs.gateway.session import Session
from textenvs.messages import assistant
from textenvs.sandbox import SandboxUnavailable, backends, command
from textenvs.sandbox.command import CommandSandbox

try:
    CommandSandbox.of(True)
except SandboxUnavailable as refusal:
    pytest.skip(f"refused on this machine: {refusal}", allow_module_level=True)

SMALL = {"memory_mb": 96, "processes": 12, "disk_mb": 4}


@pytest.fixture
def make(running):
    return functools.partial(running, sandbox=True)


def bystander():
    """Play an episode of another command while a hostile one runs; return its reward."""
    program = HEAD + "reply = ask('?')\npost('/rewards', {'reward': float(reply['content'])})"
    env = Agent(command=[sys.executable, "-I", "-S", "-c", program], tasks=TASKS, timeout=60.0)
    env.reset(seed=0)
    reward, terminated = env.step("0.5")[1:3]
    env.close()
    assert terminated
    return reward


def count_lines(task, messages, files):
    assert sorted(os.listdir(files)) == ["answer.txt", "folder", "program.py", "task.json"]
    assert os.listdir(files / "folder") == ["inner.txt"]
    return len((files / "answer.txt").read_text().splitlines())


def test_sandboxed_command_plays_and_is_scored(make):
    env = make(
        """
        assert json.load(open(os.environ["TEXTENVS_TASK_FILE"])) == json.loads(os.environ["TEXTENVS_TASK"])
        open("answer.txt", "w").write(ask("?")["content"])
        os.symlink("/etc/passwd", "link"), os.symlink("/", "root"), os.mkfifo("pipe")  # which a reader would follow
        os.mkdir("folder"), open("folder/inner.txt", "w").close()
        socket.socket(socket.AF_UNIX).bind("socket")
        """,
        scorer=count_lines,
    )
    assert env.step("a\nb\nc")[1:3] == (3.0, True)


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_proc_has_the_boxes_processes_alone(make, monkeypatch, backend):
    monkeypatch.setattr(command, "_ORDER", (backend,))
    if backends._problem_with(backend, os.geteuid()):
        pytest.skip(f"{backend} does not isolate here")
    program = """
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        ask(json.dumps({
            "pids": pids,
            "exe": os.readlink("/proc/self/exe") != "",
            "first": [attempt(os.listdir, "/proc/1/fd"), attempt(open, "/proc/1/environ")],
            "written": attempt(open, "/proc/sys/kernel/hostname", "w"),
        }))
    """
    try:
        env = make(program, sandbox={"proc": True})
    except EnvironmentFailure as failure:
        if "/proc" not in str(failure):
            raise
        pytest.skip(f"this machine hides parts of /proc: {failure}")
    answer = content(env)
    assert set(answer["pids"]) <= {1, 2, 3}
    assert answer["exe"]
    assert answer["first"] == ["EACCES", "EACCES"]
    assert answer["written"] != "it worked"


@pytest.mark.parametrize("backend", backends.BACKENDS)
def test_command_reaches_the_gateway_alone(make, monkeypatch, backend):
    monkeypatch.setattr(command, "_ORDER", (backend,))
    if backends._problem_with(backend, os.geteuid()):
        pytest.skip(f"{backend} does not isolate here")
    monkeypatch.setenv("SECRET", "of the host")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = make(f"""
            addresses = [("127.0.0.1", {port}), ("127.0.0.1", {gateway().port}), ("192.0.2.1", 80)]
            ask(json.dumps({{
                "connections": [attempt(socket.create_connection, address, 5) for address in addresses],
                "datagram": attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b"x", ("192.0.2.1", 53)),
                "netlink": attempt(socket.socket, socket.AF_NETLINK),
                "secret": os.environ.get("SECRET"),
            }}))
        """)
    refused, unreachable = "ECONNREFUSED", "ENETUNREACH"
    assert content(env) == {
        "connections": [refused, refused, unreachable],
        "datagram": unreachable,
        "netlink": "EAFNOSUPPORT",
        "secret": None,
    }


def test_command_writes_its_folder_alone(make, tmp_path):
    (tmp_path / "secret").write_text("of the host")
    env = make(f"""
        outside = ["/x", "/usr/x", "/etc/passwd", sys.prefix + "/x", "/proc/1/mem", "/dev/sda"]
        paths = [{str(tmp_path / "secret")!r}, "../../" + {str(tmp_path / "secret")!r}, "/proc/self/root", "/root/.ssh"]
        os.symlink({str(tmp_path)!r}, "up")
        ask(json.dumps({{
            "written": [path for path in outside if attempt(open, path, "w") == "it worked"],
            "read": [path for path in (*paths, "up/secret", "/etc/shadow") if os.path.exists(path)],
            "own": attempt(open, "own", "w"),
            "links": attempt(os.link, "/etc/hosts", "hosts"),
            "user": os.getuid(),
        }}))
    """)
    answer = content(env)
    assert (answer["written"], answer["read"], answer["own"]) == ([], [], "it worked")
    assert answer["links"] != "it worked"
    assert answer["user"] != 0


BOMB = """
import threading
children = 0
try:
    while True:
        if os.fork() == 0:
            while True: attempt(os.fork)
        children += 1
except OSError:
    pass
ask(json.dumps(children))
time.sleep(600)
"""


def test_fork_bomb_harms_nobody_else(make):
    env = make(BOMB, sandbox=SMALL)
    assert 0 < content(env) <= SMALL["processes"]
    box = env._live[2]._program._process.pid
    assert bystander() == 0.5
    env.close()
    wait_until(lambda: not Path(f"/proc/{box}").exists())


def test_memory_and_disk_have_limits(make):
    env = make(
        """
        ask(json.dumps({
            "memory": attempt(lambda: bytearray(200 << 20)),
            "disk": attempt(lambda: open("large", "wb").write(bytes(5 << 20))),
            "files": next(number for number in range(10**6) if attempt(open, f"f{number}", "x") != "it worked"),
        }))
        for _ in range(8):
            if os.fork() == 0:
                held = bytearray(60 << 20)
                time.sleep(600)
        time.sleep(600)
        """,
        sandbox=SMALL,
    )
    answer = content(env)
    assert (answer["memory"], answer["disk"]) in [("MemoryError", "EFBIG"), ("MemoryError", "ENOSPC")]
    assert answer["files"] < 5000
    info = env.step("x")[-1]
    assert info["stop"] == "program_error"
    assert "used more than 96 MiB of memory together" in info["reason"]


def list_files(task, messages, files):
    deepest = max(len(Path(folder).relative_to(files).parts) for folder, _, _ in os.walk(files))
    return {"sparse": sum(name.startswith("sparse") for name in os.listdir(files)), "levels": deepest}


def test_much_to_read_is_left_out(make):
    """Sparse files are small in the box, and large where they are copied: they are no way around the scorer."""
    env = make(
        """
        for number in range(3):
            os.truncate(os.open(f"sparse{number}", os.O_CREAT | os.O_RDWR), 3 << 20)
        os.makedirs("/".join("a" * 80))
        ask("?")
        """,
        sandbox=SMALL,
        scorer=list_files,
    )
    info = env.step("x")[-1]
    assert not info["failed"], info
    assert info["terms"] == {"sparse": 1.0, "levels": 64.0}


def test_box_that_cannot_begin_breaks_no_other(make, monkeypatch):
    def begin(box):
        raise OSError("it cannot begin")

    with monkeypatch.context() as patched:
        patched.setattr(command.CommandBox, "begin", begin)
        with pytest.raises(EnvironmentFailure, match="it cannot begin"):
            make('ask("?")', sandbox=SMALL)
    assert content(make('ask(json.dumps("here"))', sandbox=SMALL)) == "here"


def test_floods_and_stolen_keys_harm_nobody_else(make):
    channel = gateway().open(Session())
    answers = []

    def answer():
        while not isinstance(channel.observe(60), Ended):
            answers.append(1)
            channel.answer(ModelReply(assistant("x")))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        env = make("""
            body = {"messages": [{"role": "user", "content": "?"}]}
            large = {"messages": [{"role": "user", "content": "x" * 10_000_000}]}
            keys = [os.environ["OPENAI_API_KEY"] + "x", "sk-textenvs-", "", "*", "../x"]
            seen = [name for name in os.environ if "KEY" in name]
            ask(json.dumps({
                "stolen": [post("/chat/completions", body, key)["status"] for key in keys],
                "large": [post("/chat/completions", large)["status"] for _ in range(3)],
                "paths": [post(path, body)["status"] for path in ("/../../etc/passwd", "/sessions", "/rewards")],
                "keys": seen,
            }))
        """)
        assert bystander() == 0.5
    finally:
        gateway().close(channel.key)
        thread.join()
    assert content(env) == {
        "stolen": [401] * 5,
        "large": [413] * 3,
        "paths": [404, 404, 400],
        "keys": ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"],
    }
    assert not answers


def test_sandboxes_end_with_the_killed_run(tmp_path):
    """SIGKILL of the process that plays: the box with all that is in it, and the folder, are gone."""
    (tmp_path / "program.py").write_text(HEAD + "os.fork() and ask('?')\ntime.sleep(600)")
    run = f"""
        import json, sys, time
        from textenvs.envs.agent import Agent
        from textenvs.messages import user
        from textenvs.sandbox.usage import _tree
        from textenvs.task import Task
        env = Agent(command=[sys.executable, "-I", "-S", "program.py"], files={str(tmp_path)!r}, sandbox=True,
                    tasks=[Task("a", "test", (user("?"),), "4")])
        env.reset(seed=0)
        program = env._live[2]._program
        print(json.dumps([_tree(program._process.pid), str(program.folder)]), flush=True)
        time.sleep(600)
    """
    pids, folder = killed_run(run)
    assert len(pids) >= 4  # the launcher, the box's first process, the command and its child
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids) and not Path(folder).exists())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent": "textenvs.envs.agent.example:arithmetic", "sandbox": True}, "sandbox is for a command"),
        ({"command": "no-such-program", "sandbox": True}, "there is no such program"),
        ({"command": "sh", "sandbox": {"memory": 1}}, "it has no option 'memory'"),
        ({"command": "sh", "sandbox": {"memory_mb": 1}}, "memory_mb must be an integer of at least 64"),
        ({"command": "sh", "sandbox": {"paths": ["/no/such"]}}, "'/no/such' is no absolute path"),
        ({"command": "sh", "sandbox": {"paths": ["/tmp/"]}}, "'/tmp' is a command's own"),
        ({"command": "sh", "sandbox": "yes"}, "it must be true, false, or a mapping"),
    ],
)
def test_impossible_sandboxes_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Agent(tasks=TASKS, **options)


def test_program_elsewhere_needs_its_path(make, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ValueError, match="which the sandbox does not have; name its folder"):
        Agent(command=[str(program)], sandbox=True, tasks=TASKS)
    env = Agent(command=[str(program)], sandbox={"paths": [str(program)]}, tasks=TASKS)
    with pytest.raises(Exception, match="it exited with 3"):
        env.reset(seed=0)


@pytest.mark.parametrize("backend", backends.BACKENDS)
@pytest.mark.parametrize("below", [False, True])
def test_tmp_is_writable(make, monkeypatch, backend, below):
    """Also where the interpreter, or what the command reads, lies below it."""
    monkeypatch.setattr(command, "_ORDER", (backend,))
    if backends._problem_with(backend, os.geteuid()):
        pytest.skip(f"{backend} does not isolate here")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        Path(folder, "note").write_text("a note")
        program = f"""
            ask(json.dumps({{
                "tmp": attempt(open, "/tmp/x", "w"),
                "disk": attempt(lambda: open("/tmp/large", "wb").write(bytes(5 << 20))),
                "note": [attempt(open, {folder!r} + "/note", mode) for mode in ("r", "w")],
                "beside": [attempt(os.mkdir, {folder!r} + "/x"), attempt(os.rmdir, {folder!r})],
            }}))
        """
        answer = content(make(program, sandbox={**SMALL, "paths": [folder]} if below else SMALL))
    read, *rest = answer["note"]
    assert (answer["tmp"], read) == ("it worked", "it worked" if below else "ENOENT")
    assert answer["disk"] in ("ENOSPC", "EFBIG")
    assert "it worked" not in (*rest, *answer["beside"])


def test_machine_without_isolation_is_refused(monkeypatch):
    monkeypatch.setattr(backends, "_problem_with", lambda name, user: "not here")
    with pytest.raises(SandboxUnavailable, match=r"namespaces: not here(.|\n)*leave sandbox out"):
        Agent(command="sh", tasks=TASKS, sandbox=True)
