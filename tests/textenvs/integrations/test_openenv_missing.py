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
try:
    from textenvs.integrations.openenv import create_app
except ImportError as error:
    print(error)
runpy.run_module("textenvs.integrations.openenv", run_name="__main__")
"""
NEEDED = "this needs OpenEnv and what its server imports: pip install openenv\n"


def test_missing_package_is_named_for_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (2, NEEDED)
    assert done.stderr == f"python -m textenvs.integrations.openenv: {NEEDED}"
