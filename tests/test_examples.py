"""Every example runs and shows what it says that it shows; those without torch in a process of their own."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from itertools import groupby
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
WITHOUT = "import runpy, sys; sys.modules[sys.argv[2]] = None; runpy.run_path(sys.argv[1], run_name='__main__')"


def output_of(name: str, tmp_path: Path) -> str:
    # From another folder, which may not matter.
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=tmp_path, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "WARN" not in done.stderr
    return done.stdout


@pytest.fixture
def output_here(tmp_path, monkeypatch, capsys):
    """Runs an example in this process, which has imported torch already."""
    threads = torch.get_num_threads()

    def output_here(name):
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(ROOT / "examples")
        monkeypatch.setattr(sys, "argv", [name])
        with warnings.catch_warnings():
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        out, err = capsys.readouterr()
        assert "Warning" not in err
        return out

    with monkeypatch.context() as patch:
        for name, value in os.environ.items():
            patch.setenv(name, value)  # put back after it
        yield output_here
    torch.set_num_threads(threads)


def test_each_example_has_its_test():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} <= tested


def test_play_gsm8k(tmp_path):
    printed = output_of("play_gsm8k", tmp_path)
    assert "stop: solved, turn rewards [0.0, 0.65], return 0.65" in printed
    steps = re.findall(r"^step \d: rewards \[(.*)\], over \[(.*)\]", printed, re.MULTILINE)
    assert len(steps) == 4
    assert steps[0][0].startswith("1.0,")  # environment 0 knows,
    assert steps[1][1].startswith("False,")  # and then begins anew


def test_remote(tmp_path):
    """Remote and local episodes are the same."""
    printed = output_of("remote", tmp_path)
    assert "the same as here: True" in printed
    assert "the fork said something else: reward +1.0, stop solved" in printed
    assert re.search(r"^32 episodes, 0 failed", printed, re.MULTILINE)
    assert "refused: " in printed
    assert "TEXTENVS_TOKEN" in printed
    assert "the server has ended with status 0" in printed


def test_own_environment(tmp_path):
    printed = output_of("own_environment", tmp_path)
    assert "check_env: passed" in printed
    assert "'4': Higher. reward +0.0" in printed
    assert "fork '5': reward +1.0, terminated=True, truncated=False, stop solved" in printed
    assert "fork '2': reward -0.2, terminated=False, truncated=True, stop max_assistant_turns" in printed
    assert "the original has had 2 turns" in printed


def test_own_training_loop(output_here):
    """The rewards of the tokens printed are those of their turns, and each turn's tokens share its advantage."""
    printed = output_here("own_training_loop")
    iterations = printed.split("\nversion ")[1:]
    assert [iteration[0] for iteration in iterations] == ["0", "1", "2"]
    differences = 0
    for iteration in iterations:
        siblings, tokens = iteration.split("the first of them")
        turn = r"reward ([+-]\d\.\d) advantage ([+-]\d\.\d\d)"
        first = next(line for line in siblings.splitlines() if line.startswith("    "))
        per_turn = re.findall(turn, first)
        per_token = re.findall(rf"turn (\d) token \d+: {turn}", tokens)
        by_turn = [list(group) for _, group in groupby(per_token, key=lambda token: token[0])]
        assert len(by_turn) == len(per_turn) > 0
        for (reward, advantage), group in zip(per_turn, by_turn, strict=True):
            assert [float(token[1]) for token in group] == [0.0] * (len(group) - 1) + [float(reward)]
            assert {token[2] for token in group} == {advantage}
        differences += len(set(re.findall(turn, siblings))) > 1
    assert differences > 0  # siblings were rewarded differently, so there was something to learn


def test_torchrl_rollout(output_here):
    printed = output_here("torchrl_rollout")
    turns = re.findall(r"reward ([+-]\d\.\d\d), terminated (\w+), stop (\w+)", printed)
    assert [turn[1:] for turn in turns] == [("False", "None"), ("True", "wrong")]
    assert len(re.findall(r"^batch \d: 8 turns, \d ends, mean turn reward", printed, re.MULTILINE)) == 2


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_example_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")


@pytest.mark.slow  # the adapter in TRL's trainer is in tests/trainers/test_trl_rollout.py and test_trl_credit.py
def test_trl_gsm8k_interact(output_here):
    """TRL's trainer, through the adapter, improves the tiny model's reward on held-out problems."""
    printed = output_here("trl_gsm8k_interact")
    before, after = map(float, re.search(r"^  reward +(\S+) -> +(\S+)$", printed, re.MULTILINE).groups())
    assert after > before + 0.1


@pytest.mark.parametrize(
    ("example", "library", "advice"),
    [
        ("openenv/play.py", "openenv", "pip install openenv\n"),
        ("verifiers/evaluate.py", "verifiers", "pip install 'verifiers>=0.4'\n"),
        (
            "collabllm/best_of_n.py",
            "torch",
            "python examples/collabllm/build_data.py plays with it and writes the data\n",
        ),
    ],
)
def test_example_names_missing_requirement(example, library, advice):
    command = [sys.executable, "-c", WITHOUT, str(ROOT / "examples" / example), library]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith(advice)
    assert done.stderr.count("\n") == 1
