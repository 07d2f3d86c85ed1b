"""Adapters whose host library pins versions of its own: their tests, run in that library's virtual environment."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: Folder of tests/hosts, and the virtual environment (and `make` target) it belongs to.
HOSTS = {"verl": "venv-verl", "others": "venv-hosts", "agents": "venv-agents"}


def test_every_folder_has_an_environment():
    folders = {folder.name for folder in (ROOT / "tests/hosts").iterdir() if folder.is_dir() and folder.name[0] != "_"}
    assert folders == set(HOSTS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("folder", "which"),
    [
        pytest.param("verl", "not slow", marks=pytest.mark.hosts),
        pytest.param("others", "not slow", marks=pytest.mark.hosts),
        pytest.param("others", "slow", marks=[pytest.mark.hosts, pytest.mark.slow]),
        pytest.param("agents", "not slow", marks=pytest.mark.agents),
    ],
)
def test_in_its_own_environment(folder, which):
    python = ROOT / f".{HOSTS[folder]}" / "bin" / "python"
    assert python.exists(), f"there is no {python}: `make {HOSTS[folder]}` makes it; `make test-light` does without"
    inside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", which]
    done = subprocess.run(
        [str(python), "-m", "pytest", *options, f"tests/hosts/{folder}"],
        cwd=ROOT,
        env={**inside, "TEXTENVS_HOST": folder},
        capture_output=True,
        text=True,
    )
    print(done.stdout[-8000:], done.stderr[-4000:])
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, last
    assert re.search(r"\b[1-9]\d* passed", last), last
    assert "skipped" not in last, last
