"""`textenvs prompts` as a whole: what it finds and writes, the commands it prints, resuming, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_service import FakeService
from fake_service import status as status_of

from textenvs.cli import main
from textenvs.evaluate.records import read_folder

pytest.importorskip("gepa", reason="needs the extra 'prompts'")
pytest.importorskip("openai", reason="needs the extra 'chat'")

MODULE = '''
import re
from pathlib import Path

from textenvs import Task, TextEnv, Turn
from textenvs.messages import system, user, visible_text


class Tasks:
    name, size = "sums", 60

    def __getitem__(self, index):
        return Task(f"sum-{index}", "sums", (user(f"What is {index} + {index}?"),), ground_truth=f"<{2 * index}>")


class Sums(TextEnv):
    def __init__(self, broken=False, **options):
        super().__init__(Tasks(), max_assistant_turns=1, **options)
        self.broken = broken

    def respond(self, reply):
        if self.broken:
            raise RuntimeError("it broke")
        right = f"<{visible_text(reply)}>" == self.task.ground_truth
        return Turn(messages=[], terms={"correct": float(right)}, terminated=True, stop="solved" if right else "wrong")


class Owned(Sums):
    def opening(self, task):
        return (system("Mine."), *task.prompt)


class Plain(TextEnv):
    def __init__(self):
        super().__init__(Tasks())


def reply(conversation):
    """Plays, right where the system prompt asks for digits, and writes prompts when it is asked to."""
    with Path("calls").open("a") as file:
        file.write("x")
    text = conversation[-1]["content"]
    if text.startswith("I provided an assistant"):
        return "```\\nAnswer in digits: {1}\\n```"
    instructions = conversation[0]["content"] if conversation[0]["role"] == "system" else ""
    number = int(re.search(r"\\d+", text)[0])
    return str(2 * number) if "digits" in instructions else "no idea"
'''
SMALL = ("--train-tasks", "4", "--val-tasks", "4", "--test-tasks", "10", "--budget", "40", "--out", "out")


@pytest.fixture(autouse=True)
def workdir(tmp_path, monkeypatch):
    (tmp_path / "prompt_sums.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "prompt_sums", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def command(capsys, *words, env="prompt_sums:Sums"):
    try:
        status = main(["prompts", env, *words])
    except SystemExit as exit:
        status = exit.code
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    return status, out, err


def play(capsys, *words, policy="prompt_sums:reply", **options):
    return command(capsys, "--policy", policy, *SMALL, *words, **options)


def calls():
    return len(Path("calls").read_text())


def test_better_prompt_is_found(capsys):
    status, out, err = play(capsys, "--seed-prompt", write("start.txt", "Be kind."))
    assert status == 0
    assert "at most 40 episodes, on 4 training tasks and 4 validation tasks; then both prompts on 10 others" in err
    assert "proposal 1: +1.000 on the validation tasks, the best so far" in err
    assert "difference +1.000 +1.000 to +1.000" in " ".join(out.split())
    assert "The found prompt is better:\nAnswer in digits: {1}\n" in out
    assert Path("out/prompt.txt").read_text() == "Answer in digits: {1}"
    found = json.loads(Path("out/candidates.json").read_text())
    assert (found["better"], found["held_out"]["difference"]["value"]) == (True, 1.0)
    manifest, records = read_folder("out/" + found["proposals"][1]["episodes"])
    assert manifest["environment"]["options"] == {"system_prompt": "Answer in digits: {1}"}
    assert {record.success for record in records} == {True}
    # Three disjoint sets of tasks.
    held_out = [read_folder(folder)[1] for folder in Path("out/held-out").iterdir()]
    assert [len(records) for records in held_out] == [10, 10]
    searched = {record.task_index for record in records}
    assert not searched & {record.task_index for records in held_out for record in records}

    line = next(line for line in out.splitlines() if line.startswith("evaluate it:")).partition(":")[2]
    options = subprocess.run(["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    words = options.stdout.splitlines()
    assert words[:2] == ["textenvs", "evaluate"]
    assert main([*words[1:], "--num-tasks", "5", "--quiet"]) == 0
    assert re.search(r"^success +100\.0%", capsys.readouterr().out, re.MULTILINE)


def write(name, text):
    Path(name).write_text(text)
    return name


def test_same_command_plays_nothing_again(capsys):
    first = play(capsys)
    before = calls()
    assert play(capsys)[:2] == first[:2]
    assert calls() == before
    status, _, err = play(capsys, "--seed", "1")
    assert status == 1
    assert "out/reflections belongs to another evaluation" in err
    assert "seed: it has 0, the command 1" in err


def test_nothing_better_keeps_the_prompt(capsys):
    status, out, _ = play(capsys, "system_prompt=Answer in digits.", "--quiet")
    assert status == 0
    assert "Nothing better was found on the validation tasks: the prompt stays as it was." in out
    assert re.search(r"\n\nout: the prompt \(prompt.txt, .*\(candidates.json\)\n$", out)  # and no command to use it
    assert Path("out/prompt.txt").read_text() == "Answer in digits."
    assert not Path("out/held-out").exists()


def test_services_play_and_reflect(capsys):
    def answer(body):
        first, *_, last = (message["content"] for message in [*body["messages"], body["messages"][-1]])
        return str(2 * int(last.split()[2])) if "digits" in first else "no"

    with FakeService(answer) as policy, FakeService("```\nUse digits.\n```") as reflection:
        status, out, _ = command(
            capsys, *SMALL, "--model", "small", "--base-url", policy.url, "--max-response-length", "9",
            "--reflection-model", "large", "--reflection-base-url", reflection.url, "--reflection-length", "77",
            "--privileged", "answer",
        )  # fmt: skip
    assert status == 0
    assert "Use digits." in out
    assert {body["model"] for body in policy.requests} == {"small"}
    (kinds,) = {(body["model"], body["max_completion_tokens"], body["temperature"]) for body in reflection.requests}
    assert kinds == ("large", 77, 1.0)
    assert all("Not known to the assistant: <" in body["messages"][0]["content"] for body in reflection.requests)
    assert not any("<" in message["content"] for body in policy.requests for message in body["messages"])


def test_failing_reflection_model_is_named(capsys):
    with FakeService(status_of(400)) as service:
        words = ("--reflection-model", "m", "--reflection-base-url", service.url)
        status, _, err = play(capsys, *words)
        assert status == 1
        assert "the reflection model failed: policy_failed" in err
        assert "what was played is kept in out; run the same command again to resume" in err
        played = calls()
        service.answer = "  "
        status, _, err = play(capsys, *words)
    assert status == 1
    assert "no usable prompt in 6 replies (the last one: an empty reply)" in err
    assert calls() - played == 4 - 3  # of the training tasks, those that the first reflection did not read


def test_failing_environment_stops_the_search(capsys):
    status, _, err = play(capsys, "broken=True")
    assert status == 1
    assert "episodes failed; the last one: env_failed: RuntimeError: it broke" in err


SUMS = "prompt_sums:Sums"
REPLY = ("--policy", "prompt_sums:reply")


@pytest.mark.parametrize(
    ("env", "words", "status", "message"),
    [
        ("prompt_sums:Plain", REPLY, 2, "has no option system_prompt: no prompt to search for"),
        ("prompt_sums:Owned", REPLY, 2, "its tasks open with a system message of their own"),
        (SUMS, (), 2, "who plays?"),
        (SUMS, ("--policy", "expert"), 2, "--policy expert reads no system prompt"),
        (SUMS, (*REPLY, "--budget", "13"), 2, "too small for one proposal; it takes 14"),
        (SUMS, (*REPLY, "--val-tasks", "99"), 2, "and sums has 60 different tasks"),
        (SUMS, (*REPLY, "--reflection-tasks", "5"), 2, "--reflection-tasks is more than --train-tasks"),
        (SUMS, (*REPLY, "--privileged", "goal"), 2, "no privileged context of the kind 'goal'"),
        (SUMS, (*REPLY, "--seed-prompt", "absent"), 1, "absent: no such file"),
        (SUMS, (*REPLY, "--seed-prompt", "f", "system_prompt=x"), 2, "are the same; give one of them"),
        (SUMS, (*REPLY, "--reflection-base-url", "x"), 2, "--reflection-base-url goes with --reflection-model"),
        (SUMS, (*REPLY, "--reflection-length", "9"), 2, "takes no temperature or length"),
        (SUMS, (*REPLY, "--reflection-model", "a", "--reflection-local", "b"), 2, "not both"),
    ],
)
def test_mistakes(env, words, status, message, capsys):
    got, out, err = command(capsys, *SMALL, *words, env=env)
    assert (got, out) == (status, "")
    assert message in err


def test_missing_library_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gepa", None)
    status, _, err = play(capsys)
    assert status == 1
    assert "pip install 'textenvs[prompts]'" in err
