"""OpenEnv is not there: its adapter's command and names say what to install."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: As ``python -m textenvs.integrations.openenv``, where OpenEnv cannot be imported.
WITHOUT = """
import runpy, sys
sys.modules["openenv"] = None
sys.argv = ["openenv", "textenv/clarify"]
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_the_command_says_in_one_line_what_to_install():
    done = python(WITHOUT + 'runpy.run_module("textenvs.integrations.openenv", run_name="__main__")')
    assert done.returncode == 2
    assert done.stderr == (
        "python -m textenvs.integrations.openenv: this needs OpenEnv and what its server imports: pip install openenv\n"
    )


def test_a_name_of_the_adapter_says_what_to_install():
    done = python(WITHOUT + "from textenvs.integrations.openenv import create_app")
    assert done.stderr.endswith("ImportError: this needs OpenEnv and what its server imports: pip install openenv\n")
