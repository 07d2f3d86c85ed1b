"""`textenvs new`: what it writes passes its own test, and the commands that it names work."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import command

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path, monkeypatch):
    """Modules of one test's folder must not show in the next."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


def run_tests(folder):
    """Run the tests in a folder, which must pass; return how many there are."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return re.search(r"\d+ passed", done.stdout)[0]


def test_new_environment_passes_its_own_test(tmp_path, capsys, monkeypatch):
    status, out, _ = command(capsys, "new", "word-chain", "-o", "mine")
    assert status == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["test_word_chain.py", "word_chain.py"]
    assert 'entry_point: "textenvs.envs.word_chain:WordChain"' in out
    assert run_tests(tmp_path / "mine") == "16 passed"
    # And the commands that it names work from its folder.
    monkeypatch.chdir(tmp_path / "mine")
    out = command(capsys, "describe", "word_chain:word-chain", "--episodes", "20")[1]
    assert re.search(r"^expert +100\.0%", out, re.MULTILINE)
    assert re.search(r"^random +\d\.", out, re.MULTILINE)
    monkeypatch.setattr(sys, "stdin", io.StringIO(":hint\n:quit\n"))
    assert command(capsys, "play", "word_chain:word-chain")[0] == 0


def test_new_agent_passes_its_own_test(tmp_path, capsys, monkeypatch):
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    status, out, _ = command(capsys, "new", "stock-taker", "--agent", "-o", "mine")
    assert status == 0
    names = ["stock_taker.py", "stock_taker_train.jsonl", "stock_taker_val.jsonl", "test_stock_taker.py"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == names
    assert run_tests(tmp_path / "mine") == "9 passed"
    # And the options that it prints work.
    monkeypatch.chdir(tmp_path / "mine")
    options = next(line for line in out.splitlines() if "textenvs play" in line).split()[5:]
    status, out, _ = command(capsys, "evaluate", "textenv/agent", *options, "--policy", "expert", "--num-tasks", "4")
    assert (status, re.search(r"^success +100\.0%", out, re.MULTILINE) is not None) == (0, True)


def test_new_is_clean(tmp_path, capsys):
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True).returncode:
        pytest.skip("needs the extra 'dev'")
    command(capsys, "new", "word-chain")
    command(capsys, "new", "stock-taker", "--agent")
    for call in (
        ["check", "--isolated", "--line-length=120", "--select=E,F,W,I,B,UP"],
        ["format", "--isolated", "--line-length=120", "--check"],
    ):
        done = subprocess.run([*ruff, *call, str(tmp_path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_new_never_overwrites(tmp_path, capsys):
    (tmp_path / "test_word.py").write_text("mine")
    status, _, err = command(capsys, "new", "word")
    assert status == 1
    assert "test_word.py is there already" in err
    assert [path.name for path in tmp_path.iterdir()] == ["test_word.py"]
