"""Every command: its help needs no torch, and a reader of its output may leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Where the machine has these, help must not have imported them: most of its seconds would go there.
BLOCKED = """
import importlib.abc, runpy, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "ray", "vllm", "sglang", "pyarrow", "openai", "aiohttp"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def programs():
    """Everything that ``python -m`` runs and that a person calls."""
    internal = {  # started by us, with pipes or sockets in the place of a person
        "textenvs.scoring.math_worker",
        "textenvs.envs.reasoning_gym.worker",
        "trainers.engines.sglang.launcher",
        "trainers.rewards.function_worker",
    }
    for package in ("textenvs", "trainers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if '\nif __name__ == "__main__":' in path.read_text("utf-8"):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
                if name not in internal:
                    yield name


LINES = [[name, "--help"] for name in programs()]
LINES += [["textenvs", "evaluate", "--help"]]
MORE = [["trainers"], ["textenvs", "list"]]


def started(line, *, blocked):
    code = ["-c", BLOCKED, *line] if blocked else ["-m", *line]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.Popen(
        [sys.executable, *code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


def test_the_programs_are_found():
    assert {"textenvs", "trainers", "trainers.ppo", "trainers.sft", "trainers.generate"} <= set(programs())


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_help_imports_no_training_library(line):
    program = started(line, blocked=True)
    out, err = program.communicate(timeout=100)
    assert (program.returncode, err) == (0, "")
    assert "usage" in out.lower()


@pytest.mark.parametrize("line", [LINES[-1], ["trainers.generate", "--help"], *MORE], ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(line):
    program = started(line, blocked=False)
    program.stdout.close()  # before anything is written: as head does, without the race
    program.stdout = None
    _, err = program.communicate(timeout=100)
    assert err == ""
    assert program.returncode in (0, 1)
