"""Ctrl-C while a command still imports: it ends at once, with the exit code of an interrupt and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_help import ROOT, programs

# Runs before anything of ours: the first import of the module sends the signal, so nothing depends on timing.
INTERRUPTS = """
import importlib.abc, os, signal, sys
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


def interrupted(tmp_path, module, *words):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS, "utf-8")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "INTERRUPTED_AT": module}
    program = [sys.executable, *words]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=100, cwd=tmp_path)


@pytest.mark.parametrize("program", list(programs()))
def test_every_command_ends_at_first_import(program, tmp_path):
    ended = interrupted(tmp_path, "textenvs.attack", "-m", program, "x")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "stopped before anything was started\n")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("torch", ["trainers.ppo"]),
        pytest.param("torch", ["trainers.sft"], marks=pytest.mark.slow),  # by the same guard as the others
        pytest.param("torch", ["trainers", "ppo"], marks=pytest.mark.slow),
        ("transformers", ["trainers.replay", "x", "--iteration", "1"]),
        ("textenvs.cli.describe", ["textenvs", "describe", "x"]),
    ],
)
def test_commands_end_at_late_imports(module, words, tmp_path):
    ended = interrupted(tmp_path, module, "-m", *words)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert "Traceback" not in ended.stderr


def test_installed_script_ends_at_import(tmp_path):
    script = Path(tmp_path / "textenvs")
    script.write_text("import sys\nfrom textenvs.cli import main\nsys.exit(main())\n", "utf-8")
    ended = interrupted(tmp_path, "textenvs.attack", str(script), "list")
    assert (ended.returncode, "Traceback" in ended.stderr) == (130, False)


def test_importing_libraries_leaves_signals_alone(tmp_path):
    code = "import signal, textenvs, trainers; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    ended = interrupted(tmp_path, "nothing", "-c", code)
    assert (ended.returncode, ended.stdout) == (0, "True\n")


def test_ignored_interrupts_stay_ignored(tmp_path):
    """Signals are ignored under nohup, and in the background of a shell's script."""
    code = "import signal, subprocess, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    code += "sys.exit(subprocess.call([sys.executable, '-m', 'trainers']))"
    ended = interrupted(tmp_path, "textenvs.attack", "-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ppo" in ended.stdout
