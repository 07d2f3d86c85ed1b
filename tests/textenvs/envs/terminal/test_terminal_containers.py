"""Tasks of folders in containers of a fake docker, whose containers are folders: nothing here ran a real one."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from folder_tasks import EXAMPLES, FINISH, SOLVED, harbor_task, make, play, run

from textenvs.env import EnvironmentFailure
from textenvs.envs.terminal.folders import ATTACKS, containers
from textenvs.messages import assistant, user
from textenvs.sandbox import SandboxUnavailable
from textenvs.sandbox.result import ShellLimits
from textenvs.tools.formats import Hermes
from textenvs.tools.jsontext import read_object

FAKE = Path(__file__).with_name("fake_docker.py")
MAY_NOT = "this machine has no namespaces of users, or no layers of folders in them"


def _permitted() -> bool:
    layer = "mount -t overlay o -o lowerdir=/usr,upperdir=$0/up,workdir=$0/work $0/usr && ls $0/usr/bin"
    script = f"d=$(mktemp -d); mkdir $d/up $d/work $d/usr; unshare -r -m sh -c '{layer}' $d; s=$?; rm -rf $d; exit $s"
    return subprocess.run(["sh", "-c", script], capture_output=True).returncode == 0


permitted = pytest.mark.skipif(not _permitted(), reason=MAY_NOT)


class Fake:
    """The fake's containers and calls, and the faults that it shall have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fails(self, *faults: str) -> None:
        (self.folder / "faults").write_text(" ".join(faults))

    def calls(self, command: str) -> list[list[str]]:
        calls = map(json.loads, (self.folder / "calls").read_text().splitlines())
        return [arguments for name, *arguments in calls if name == command]

    def containers(self) -> list[str]:
        return sorted(os.listdir(self.folder / "containers"))


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put the fake docker and podman on the PATH, with nothing in them."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("docker", "podman"):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{FAKE}" "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(tmp_path / "state"))
    return Fake(tmp_path / "state")


def docker(folder, **options):
    return make(folder, runtime="docker", **options)


def expert(env):
    return env.demonstration(np.random.default_rng(0))


# ------------------------------------------------------------------ episodes


@permitted
@pytest.mark.parametrize(
    ("name", "program"), [("harbor/merge-settings", "podman"), ("terminal-bench/pack-notes", "docker")]
)
def test_expert_solves_in_a_container(fake, name, program):
    env = make(EXAMPLES / name, runtime=program)
    env.reset(seed=0)
    *_, info = env.step(run("cd /tmp; x=3; f() { echo $x; }; export A='b c'; umask 077"))
    conversation, *_ = env.step(run("f; pwd; echo $A; umask; echo no >&2; (exit 4)"))
    assert conversation[-1]["content"] == "3\n/tmp\nb c\n0077\nno\n[exit code 4, in /tmp]"
    env.step(run("umask 022; cd /app"))
    _, reward, terminated, _, info = env.step(expert(env))
    assert (reward, terminated, info["stop"]) == (1.5, True, "solved")
    started = fake.calls("run")
    assert len(started) == 2
    assert all("none" in arguments for arguments in started)
    played, tested = (arguments[arguments.index("--name") + 1] for arguments in started)
    assert {arguments[1] for arguments in fake.calls("cp") if arguments[0] == "-"} == {f"{tested}:/"}
    assert [played] in fake.calls("kill")
    assert fake.containers() == []


@permitted
def test_attacks_earn_nothing_in_a_container(fake):
    commands = []
    for attack in ATTACKS:
        if attack.name in ("write-reward", "write-tests", "left-running", "link-to-tests", "changed-shell"):
            reply = attack.start(np.random.default_rng(0), ())((user("Write /app/tally.csv."),))
            calls = Hermes().parse(assistant(reply)).calls
            commands += [read_object(one["function"]["arguments"])["command"] for one in calls[:1]]
    assert len(commands) == 5
    env = docker(EXAMPLES / "harbor" / "tally-visits")
    reward, info = play(env, *(run(f"cd /app\n{command}") for command in commands), FINISH)
    assert (reward, info["stop"], info["failed"]) == (0.0, "unsolved", False)
    env = docker(EXAMPLES / "harbor" / "tally-visits", clean_tests=False)
    env.folder._proven.add("tally-visits")
    assert play(env, run(commands[-1]), FINISH)[1]["stop"] == "solved"  # what clean_tests is for


@permitted
def test_copy_of_an_episode_runs_it_again(fake, tmp_path):
    env = docker(harbor_task(tmp_path / "tasks"))
    env.reset(seed=0)
    env.step(run("x=1; echo a > note"))
    fork, moved = env.fork(), pickle.loads(pickle.dumps(env))
    last = run("echo $x; x=2; cat note; rm note; touch done")
    first = env.step(last)
    assert [fork.step(last), moved.step(last)] == [first, first]
    assert len(fake.calls("run")) == 3
    moved.close()
    env.step(run("date +%N"))
    copied = env.fork()
    assert not env.step(run("ls"))[-1]["failed"]
    *_, info = copied.step(run("ls"))
    assert (info["stop"], info["failed"]) == ("tool_failed", True)
    assert "gave another result" in info["failure"]
    env.close()
    assert fake.containers() == []


@permitted
def test_command_out_of_time_ends_alone(fake, tmp_path):
    env = docker(harbor_task(tmp_path / "tasks"), limits={"wall_s": 30, "output_bytes": 4096})
    env.reset(seed=0)
    env.step(run("x=1"))
    conversation, *_ = env.step(run("touch here; sleep 60", timeout_s=1.5))
    assert "ran for more than 1.5 s" in conversation[-1]["content"]
    assert len(fake.calls("restart")) == 1
    conversation, *_ = env.step(run("echo $x; ls; head -c 100000 /dev/zero | tr '\\0' a"))
    assert conversation[-1]["content"].startswith("1\nhere\naaaa")
    assert "bytes left out" in conversation[-1]["content"]


@permitted
def test_policy_that_breaks_its_container_has_lost(fake, tmp_path):
    env = docker(harbor_task(tmp_path / "tasks"))
    env.folder._proven.add("one")
    env.reset(seed=0)
    env.step(run("touch done; rm -f /usr/bin/bash /usr/bin/sh"))
    *_, info = env.step(run("ls"))
    assert not info["failed"]
    *_, info = env.step(FINISH)
    assert info["stop"] == "solved"  # its files are as they should be
    reward, info = play(env, run("rm -rf /app /tests /logs; echo 1 > /tests"), FINISH)
    assert (reward, info["stop"]) == (0.0, "unsolved")


# ------------------------------------------------------------------ what fails is no reward


@pytest.mark.parametrize("line", ["A /./y", "A //usr", "A /../x", "A /app/./b", "x", "B /a", ""])
def test_line_of_a_strange_name_is_no_path(line):
    """A file's name may hold a line break; what follows it must not be read as a folder to copy."""
    assert not containers._DIFF_LINE.fullmatch(line)


@pytest.mark.parametrize("line", ["A /app", "C /app/..b/.c", "D /a b", "A /tmp/\r"])
def test_line_of_a_path_is_one(line):
    assert containers._DIFF_LINE.fullmatch(line)


def test_no_daemon_is_said_when_made(fake, tmp_path):
    fake.fails("info")
    with pytest.raises(
        SandboxUnavailable, match=r"`docker info` failed: .*Start its daemon, or give runtime='sandbox'"
    ):
        docker(EXAMPLES / "harbor")


def test_no_program_is_said_when_made(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="no program podman on the PATH"):
        make(EXAMPLES / "harbor", runtime="podman")


@permitted
@pytest.mark.parametrize("fault", ["build", "run", "exec", "build-hangs"])
def test_environment_that_cannot_begin_is_a_failure(fake, tmp_path, fault):
    seconds = 1.0 if fault == "build-hangs" else 60.0
    env = docker(harbor_task(tmp_path / "tasks", toml=f"[environment]\nbuild_timeout_sec = {seconds}\n"))
    fake.fails(fault)
    with pytest.raises(EnvironmentFailure, match=f"tool_failed: `docker {fault.partition('-')[0]}"):
        env.reset(seed=0)
    fake.fails()
    env.close()
    assert fake.containers() == []


@permitted
@pytest.mark.parametrize(("faults", "stop"), [(("exec", "inspect"), "tool_failed"), (("run", "cp"), "judge_failed")])
def test_daemon_that_is_gone_fails_the_episode(fake, tmp_path, faults, stop):
    env = docker(harbor_task(tmp_path / "tasks"))
    env.reset(seed=0)
    fake.fails(*faults)
    _, reward, *_, info = env.step(run(SOLVED) if stop == "tool_failed" else FINISH)
    assert (reward, info["stop"], info["failed"]) == (0.0, stop, True)
    fake.fails()
    env.close()
    assert fake.containers() == []


def test_image_that_cannot_be_fetched_is_a_failure(fake, tmp_path):
    env = docker(harbor_task(tmp_path / "tasks", toml='[environment]\ndocker_image = "no/image"\n'))
    with pytest.raises(EnvironmentFailure, match="no registry has no/image"):
        env.reset(seed=0)


@permitted
def test_options_and_keys_reach_the_program(fake, tmp_path):
    toml = '[agent]\nuser = "ana"\n[verifier]\nuser = 7\nenv = { K = "v w" }\n'
    toml += "[environment]\nmemory_mb = 300\ncpus = 2\n"
    tests = '#!/bin/bash\n[ "$K" = "v w" ] && [ -e done ] && echo 1 > /logs/verifier/reward.txt\n'
    env = docker(harbor_task(tmp_path / "tasks", toml=toml, tests=tests), network=True, limits={"processes": 50})
    assert play(env, run(SOLVED), FINISH)[1]["stop"] == "solved"
    for started in fake.calls("run"):
        assert "--network" not in started
        assert [*started[3:9]] == ["--memory", "300m", "--cpus", "2", "--pids-limit", "50"]
    users = [call[call.index("-u") + 1] for call in fake.calls("exec") if "-u" in call]
    assert {"ana", "7", "0"} == {*users}


@pytest.mark.parametrize("limits", [ShellLimits(), {"disk_mb": 3}, {"wall_s": -1}])
def test_limit_that_containers_lack_is_refused(fake, limits):
    with pytest.raises(ValueError, match="limits of a container are|wall_s"):
        docker(EXAMPLES / "harbor", limits=limits)


@permitted
def test_containers_of_dead_processes_are_removed(fake, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    env = docker(harbor_task(tmp_path / "tasks"))
    env.reset(seed=0)
    (own,) = fake.containers()
    orphan = own.replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    (fake.folder / "containers" / orphan).mkdir()
    docker(tmp_path / "tasks")
    assert fake.containers() == [own]
    env.close()
