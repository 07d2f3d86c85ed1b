"""Every command: its help needs no torch, and a reader of its output may leave."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Where the machine has these, help must not have imported them: most of its seconds would go there.
BLOCKED = """
import contextlib, importlib.abc, io, json, runpy, sys, warnings

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "ray", "vllm", "sglang", "pyarrow", "openai", "aiohttp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
warnings.filterwarnings("ignore", message=".*found in sys.modules after import")
for line in json.loads(sys.argv[1]):
    sys.argv, said, status = line, io.StringIO(), None
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(line[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        status = repr(error)
    print(json.dumps([line, status, said.getvalue()]))
"""


def runs_as_program(text):
    """Tell a program from a module that has the text of one in a string."""
    if "__main__" not in text:
        return False
    conditions = [ast.unparse(node.test) for node in ast.parse(text).body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in conditions


def programs():
    """Everything that ``python -m`` runs and that a person calls."""
    internal = {  # started by us, with pipes or sockets in the place of a person
        "textenvs.scoring.math_worker",
        "textenvs.envs.agent.reaper",
        "textenvs.envs.awm.worker",
        "textenvs.envs.bfcl.worker",
        "textenvs.envs.reasoning_gym.worker",
        "trainers.engines.sglang.launcher",
        "trainers.rewards.function_worker",
    }
    for package in ("textenvs", "trainers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if runs_as_program(path.read_text("utf-8")):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                if name not in internal:
                    yield name


LINES = [[name, "--help"] for name in programs()]
LINES += [["textenvs", "evaluate", "--help"]]


def started(*words):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


def test_the_programs_are_found():
    assert {"textenvs", "trainers", "trainers.ppo", "trainers.sft", "trainers.generate"} <= set(programs())


def test_help_imports_no_training_library():
    """One after the other in one process: a library that is blocked stays so."""
    out, err = started("-c", BLOCKED, json.dumps(LINES)).communicate(timeout=110)
    assert err == ""
    results = [json.loads(line) for line in out.splitlines()]
    assert [line for line, *_ in results] == LINES
    assert [(line, status) for line, status, _ in results if status not in (None, 0)] == []
    assert [line for line, _, text in results if "usage" not in text.lower()] == []


def test_wrong_keys_need_no_training_library():
    """They are answered within the second that configuration takes to import."""
    wrong = [
        ["trainers.ppo", "actor.learning_rate=1", "model.path=Qwen/Qwen3-4B"],
        ["trainers.ppo", "rollout.n=0", "--dry-run"],
        ["trainers.sft", "sft.learning_rate=1"],
        ["trainers.generate", "rollout.max_new_tokens=1"],
        ["trainers", "ppo", "actor.learning_rate=1"],
    ]
    out, err = started("-c", BLOCKED, json.dumps(wrong)).communicate(timeout=110)
    assert [status for _, status, _ in map(json.loads, out.splitlines())] == [2] * len(wrong)
    for suggestion in (
        "here it is actor.lr",
        "rollout.n: 0 is not allowed",
        "here it is sft.lr",
        "rollout.max_response_length",
    ):
        assert suggestion in err
    assert "torch" not in err


@pytest.mark.parametrize("line", [["trainers.generate", "--help"], ["trainers"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(line):
    program = started("-m", *line)
    program.stdout.close()  # before anything is written: as head does, without the race
    program.stdout = None
    _, err = program.communicate(timeout=100)
    assert err == ""
    assert program.returncode in (0, 1)
