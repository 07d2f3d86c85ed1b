"""`textenvs evaluate` as a whole: what it stores, resuming after a kill, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import command

from textenvs.evaluate.records import Record

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

ROOT = Path(__file__).resolve().parents[3]
BASE = ("evaluate", "textenv/gsm8k-interact", "level=easy", "split=test")

POLICIES = '''
import asyncio
from pathlib import Path

async def careless(conversation):
    """Right for some, wrong for others; where a file `hold` is, twenty episodes are kept and no more begun."""
    while Path("hold").exists() and Path("run/episodes.jsonl").read_bytes().count(b"\\n") >= 20:
        await asyncio.sleep(0.01)
    return f"#### {len(conversation[0]['content']) % 7}"

def broken(conversation):
    raise RuntimeError("the policy broke")

def sometimes(conversation):
    question = conversation[0]["content"]
    if len(question) % 4 == 0:
        raise RuntimeError("no luck")
    return "#### 3"
'''


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    (tmp_path / "evaluate_policies.py").write_text(POLICIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "evaluate_policies", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the file is rewritten within a second, to the same size
    return tmp_path


def records_in(folder):
    return [Record.from_json(line) for line in (Path(folder) / "episodes.jsonl").read_text("utf-8").splitlines()]


def places(records):
    return sorted(record.place for record in records)


def everything(tasks, samples):
    return [(task, sample) for task in range(tasks) for sample in range(samples)]


def test_a_table_without_a_folder(capsys, workdir):
    before = {path.name for path in workdir.iterdir()}
    status, out, err = command(capsys, *BASE, "--policy", "expert", "--num-tasks", "20", "--samples", "2")
    assert (status, err) == (0, "")
    assert out.startswith(
        "textenv/gsm8k-interact (version 5) level=easy split=test\npolicy: script expert\n20 tasks x 2 = 40"
    )
    assert re.search(r"^success +100\.0% +8\d\.\d% to 100\.0%$", out, re.MULTILINE)
    assert re.search(r"^pass\^2 +100\.0%", out, re.MULTILINE)
    assert re.search(r"^solved +40$", out, re.MULTILINE)
    assert {path.name for path in workdir.iterdir()} == before


def test_a_folder_has_everything(capsys):
    from pyarrow import parquet

    words = (*BASE, "--policy", "evaluate_policies:careless", "--num-tasks", "10", "--samples", "3", "--out", "run")
    status, out, _ = command(capsys, *words)
    assert status == 0
    records = records_in("run")
    assert places(records) == everything(10, 3)
    rows = parquet.read_table("run/results.parquet").to_pylist()
    assert [(row["task"], row["sample"]) for row in rows] == everything(10, 3)
    assert sum(row["return"] for row in rows) == pytest.approx(sum(record.total for record in records))
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["all"]["success"]["value"] == pytest.approx(sum(record.success for record in records) / 30)
    assert f"{summary['all']['success']['value']:.1%}" in out
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["environment"]["options"] == {"level": "easy", "split": "test"}
    assert manifest["policy"] == {"function": "evaluate_policies:careless"}
    # Once more: nothing is played, and the same is said.
    status, again, err = command(capsys, *words)
    assert (status, again) == (0, out)
    assert "30 of 30 episodes are there already" in err
    assert len(records_in("run")) == 30


def test_another_command_is_refused_and_names_the_difference(capsys):
    words = [*BASE, "--policy", "expert", "--num-tasks", "4", "--out", "run"]
    assert command(capsys, *words)[0] == 0
    for changed, message in (
        ([*words, "--seed", "1"], "seed: it has 0, the command 1"),
        ([*words, "--samples", "2"], "samples: it has 1, the command 2"),
        ([*words, "method=flexible"], 'environment.options.method: it has null, the command "flexible"'),
        (
            [word.replace("expert", "careless") for word in words],
            'policy.script: it has "expert", the command "careless"',
        ),
        ([word.replace("split=test", "split=train") for word in words], "tasks.fingerprint"),
    ):
        status, out, err = command(capsys, *changed)
        assert (status, out) == (1, "")
        assert "run belongs to another evaluation:" in err
        assert message in err
    assert command(capsys, *words, "--concurrency", "3", "--quiet")[0] == 0  # how fast is not what


# ------------------------------------------------------------------ killed, interrupted, failed


def start(*words, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "textenvs", *words],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(program, path, count):
    """Wait until ``count`` episodes are kept; whether the program is still at it."""
    deadline = time.monotonic() + 100
    while lines_of(path) < count and program.poll() is None:
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.005)
    return program.poll() is None


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_resume_after_kill_repeats_no_episode(workdir, capsys):
    words = (
        *BASE,
        "--policy",
        "evaluate_policies:careless",
        "--num-tasks",
        "40",
        "--samples",
        "2",
        "--concurrency",
        "4",
    )
    path = workdir / "run" / "episodes.jsonl"
    (workdir / "hold").touch()
    program = start(*words, "--out", "run", cwd=workdir)
    assert until(program, path, 20), program.communicate()
    program.kill()
    program.communicate()
    (workdir / "hold").unlink()
    before = records_in("run") if path.read_bytes().endswith(b"\n") else []
    assert lines_of(path) < 80
    # A torn line, as a machine that lost power leaves it.
    with path.open("ab") as file:
        file.write(b'{"task":39,"sample":1,"se')
    status, out, err = command(capsys, *words, "--out", "run")
    assert status == 0
    assert "the last line of an earlier run was torn and is removed" in err
    records = records_in("run")
    assert places(records) == everything(40, 2)
    assert records[: len(before)] == before  # what was finished was not touched
    # And the whole is what a run in one piece gives.
    assert command(capsys, *words, "--out", "whole")[0] == 0
    assert sorted(records_in("whole"), key=lambda r: r.place) == sorted(records, key=lambda r: r.place)
    assert json.loads(Path("whole/summary.json").read_text()) == json.loads(Path("run/summary.json").read_text())


HANGING = """
import asyncio, time
from textenvs import Task, TextEnv, Turn
from textenvs.messages import user
import gymnasium

class Tasks:
    name, size = "tasks", 4
    def __getitem__(self, index):
        return Task(f"t/{index}", "t", (user(f"Say {index}."),), ground_truth=str(index))

def mark(where):
    open(f"hangs-{where}", "w").close()

class Base(TextEnv):
    def __init__(self, where="nowhere", render_mode=None):
        self.where = where
        if where == "making":
            self.hang()
        super().__init__(Tasks(), max_assistant_turns=1, render_mode=render_mode)

    def hang(self):
        mark(self.where)
        while True:
            try:
                time.sleep(0.05)
            except KeyboardInterrupt:
                if self.where != "swallowing":
                    raise

    def opening(self, task):
        return task.prompt

    def answer(self):
        if self.where in ("step", "swallowing") and self.state.task_index > 1:
            self.hang()
        return Turn([], terminated=True, stop="solved", reward=1.0)

    def cleanup(self):
        if self.where == "closing":
            self.hang()

class Plain(Base):
    def respond(self, reply):
        return self.answer()

class Waits(Base):
    async def respond(self, reply):
        return self.answer()

def policy(messages):
    return "x"

async def waiting_policy(messages):
    await asyncio.sleep(1000)

def hanging_policy(messages):
    mark("policy")
    while True:
        time.sleep(0.05)

gymnasium.register("hanging/plain", entry_point=Plain)
gymnasium.register("hanging/waits", entry_point=Waits)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to another process")
def test_signals_end_a_hang_with_resume_advice(workdir):
    (workdir / "hanging_envs.py").write_text(HANGING)
    cases = {
        "making": ("hanging_envs:hanging/plain", "no episode was played yet"),
        "step": ("hanging_envs:hanging/plain", "2 of 4 episodes are kept in"),
        "swallowing": ("hanging_envs:hanging/waits", "2 of 4 episodes are kept in"),
        "closing": ("hanging_envs:hanging/plain", None),
        "policy": ("hanging_envs:hanging/plain", "0 of 4 episodes are kept in"),
    }
    programs = {}
    for where, (env_id, _) in cases.items():
        policy = "hanging_policy" if where == "policy" else "policy"
        words = ("evaluate", env_id, f"where={where}", "--policy", f"hanging_envs:{policy}", "--concurrency", "1")
        programs[where] = start(*words, "--out", f"run {where}", cwd=workdir)
    deadline = time.monotonic() + 90
    for number, (where, program) in enumerate(programs.items()):
        while not (workdir / f"hangs-{where}").exists():
            assert program.poll() is None, (where, program.communicate())
            assert time.monotonic() < deadline, where
            time.sleep(0.02)
        program.send_signal((signal.SIGINT, signal.SIGTERM)[number % 2])
    for where, program in programs.items():
        out, err = program.communicate(timeout=60)
        assert (where, program.returncode, out) == (where, 130, "")
        assert "interrupted" in err
        assert "run the same command again" in err
        assert "Traceback" not in err
        if cases[where][1] is not None:
            assert cases[where][1] in err, (where, err)


#: Past the time limit at once.
SKIPPING = """
from threading import Event
from skip_time import skip

over = Event()

def policy(messages):
    global loop
    loop = asyncio.get_running_loop()
    return "x"

def hang(env):
    skip(loop, 60)
    over.wait(100)

Base.hang = hang
"""


def test_slow_step_or_episode_fails(workdir, capsys):
    (workdir / "hanging_envs.py").write_text(HANGING + SKIPPING)
    words = ("evaluate", "hanging_envs:hanging/plain", "--policy", "hanging_envs:policy", "--concurrency", "1")
    status, out, _ = command(capsys, *words, "where=step", "--step-timeout", "60", "--out", "run")
    sys.modules["hanging_envs"].over.set()
    assert status == 0
    assert "2 of 4 episodes FAILED" in out
    assert "2 x env_failed: the environment's step took longer than 60 s" in out
    words = ("evaluate", "hanging_envs:hanging/plain", "--policy", "hanging_envs:waiting_policy")
    status, out, _ = command(capsys, *words, "--episode-timeout", "0.2")
    assert status == 1
    assert "4 x timed_out: the episode took longer than 0.2 s" in out


def test_broken_policy_stops_without_a_record(capsys):
    words = (*BASE, "--policy", "evaluate_policies:broken", "--num-tasks", "30", "--out", "run", "--max-failures", "4")
    status, out, err = command(capsys, *words)
    assert (status, out) == (1, "")
    assert "4 episodes in a row failed; the last one: policy_failed: RuntimeError: the policy broke" in err
    assert "0 of 30 episodes are kept in run; run the same command again to resume" in err
    assert records_in("run") == []
    assert not Path("run/results.parquet").exists()
    status, _, err = command(capsys, *words[:-4], "--max-failures", "4")
    assert status == 1
    assert "none of the 30 episodes was finished; --out DIR keeps those that are" in err


def test_failed_episodes_are_retried_on_request_only(capsys, workdir):
    words = (
        *BASE,
        "--policy",
        "evaluate_policies:sometimes",
        "--num-tasks",
        "40",
        "--out",
        "run",
        "--max-failures",
        "20",
    )
    status, out, _ = command(capsys, *words)
    assert status == 0
    failed = [record.place for record in records_in("run") if record.failed]
    assert 0 < len(failed) < 40
    assert f"{len(failed)} of 40 episodes FAILED and are in none of the numbers above:" in out
    assert f"{len(failed)} x policy_failed: RuntimeError: no luck" in out
    (workdir / "evaluate_policies.py").write_text(POLICIES.replace("% 4 == 0", "% 4 == 5"))
    sys.modules.pop("evaluate_policies", None)
    assert command(capsys, *words)[1] == out
    status, out, _ = command(capsys, *words, "--retry-failed")
    assert status == 0
    assert "FAILED" not in out
    records = records_in("run")
    assert places(records) == everything(40, 1)
    assert not any(record.failed for record in records)


def test_a_full_disk_is_told(capsys, monkeypatch):
    from textenvs.evaluate.records import Folder

    real = Folder.add

    def add(self, record):
        if len(self.records) == 2:
            raise OSError("No space left on device")
        real(self, record)

    monkeypatch.setattr(Folder, "add", add)
    status, out, err = command(capsys, *BASE, "--policy", "expert", "--num-tasks", "5", "--out", "run")
    assert (status, out) == (1, "")
    assert "run: No space left on device; 2 episodes kept" in err


def test_without_pyarrow_there_are_json_lines(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = (*BASE, "--policy", "expert", "--num-tasks", "3", "--out", "run")
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert "run/episodes.jsonl\nA table, results.parquet, needs pyarrow: pip install 'textenvs[data]'" in out
    assert places(records_in("run")) == everything(3, 1)
    assert json.loads(Path("run/summary.json").read_text())["all"]["episodes"] == 3
    monkeypatch.undo()
    monkeypatch.chdir(Path("run").absolute().parent)


@pytest.mark.parametrize(("words", "extra"), [(("--model", "m"), "chat"), (("--local", "folder"), "train")])
def test_a_missing_extra_is_named_before_any_work(words, extra, capsys, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("textenvs.cli.evaluate.open_environment", lambda *args: pytest.fail("work was done"))
    status, out, err = command(capsys, *BASE, *words)
    assert (status, out) == (1, "")
    assert err.count("pip install") == 1
    assert f"pip install 'textenvs[{extra}]'" in err


# ------------------------------------------------------------------ a model behind a service


@pytest.fixture
def service():
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    sys.path.append(str(ROOT / "tests" / "textenvs" / "chat"))
    from fake_service import FakeService

    with FakeService(lambda request: f"#### {len(request['messages'][0]['content']) % 7}") as service:
        yield service


def test_a_model_behind_a_service(service, capsys):
    words = (*BASE, "--model", "tiny", "--base-url", service.url, "--temperature", "0.5", "--num-tasks", "10")
    words = (
        *words,
        "--chat",
        "max_retries=0",
        "--chat",
        'extra={"top_p": 0.5}',
        "--max-response-length",
        "32",
        "--out",
        "run",
    )
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert f"policy: model tiny, base_url {service.url}, temperature 0.5, max_tokens 32" in out
    assert re.search(r"^prompt tokens +\d", out, re.MULTILINE)
    assert {request["top_p"] for request in service.requests} == {0.5}
    assert {request["max_completion_tokens"] for request in service.requests} == {32}
    assert sum(record.assistant_turns for record in records_in("run")) == len(service.requests)
    manifest = Path("run/manifest.json").read_text()
    assert json.loads(manifest)["policy"] == {
        "model": "tiny",
        "base_url": service.url,
        "temperature": 0.5,
        "max_tokens": 32,
        "extra": {"top_p": 0.5},
        "request_seed": True,
    }
    status, _, err = command(capsys, *words, "--no-request-seed")
    assert status == 1
    assert "policy.request_seed: it has true, the command false" in err


def test_a_key_is_sent_and_never_written(service, capsys, monkeypatch, workdir):
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    words = (*BASE, "--model", "tiny", "--base-url", service.url, "--num-tasks", "3", "--api-key-env", "MY_KEY")
    status, out, err = command(capsys, *words, "--out", "run")
    assert status == 0
    assert service.headers[0]["authorization"] == "Bearer sk-very-secret"
    written = b"".join(path.read_bytes() for path in (workdir / "run").iterdir())
    assert "sk-very-secret" not in written.decode("latin-1") + out + err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--temperature", "9"), "temperature: Input should be less than or equal to 2"),
        (("--chat", "api_key=sk-1"), "a key never stands in a spec"),
        (("--max-tokens", "3"), "--max-tokens is called --max-response-length"),
        (("--max-response-length", "4", "--chat", "max_tokens=3"), "of its own: --max-response-length"),
        (("--temperature", "1", "--chat", "temperature=0"), "has an option of its own: --temperature"),
        (("--base-url", "http://x/v1", "--api-key-env", "NO_SUCH_KEY"), "NO_SUCH_KEY has no key in it"),
    ],
)
def test_options_of_the_service_that_are_refused(words, message, capsys):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    status, out, err = command(capsys, *BASE, "--model", "tiny", *words, "--num-tasks", "2", "--out", "run")
    assert (status, out) == (2, "")
    assert message in err
    assert "sk-1" not in err
    assert not Path("run").exists()
