"""docs/tutorial.md is run as a reader would: its files are written, its commands typed, and what it shows compared."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from fake_service import FakeService

from textenvs.cli import main as textenvs_main
from trainers import ppo

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The reader's folder, as the one where programs run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in FILES:
        sys.modules.pop(name.removesuffix(".py"), None)
    gymnasium.registry.pop("my/coffee", None)


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Runs one of our programs, in this process, and gives what it prints."""

    def run(program, *words, stdin="", status=0):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            ended = {"textenvs": textenvs_main, "trainers.ppo": ppo.main}[program](list(words))
        except SystemExit as exit:
            ended = exit.code
        out, err = capsys.readouterr()
        assert ended == status, err
        return out

    return run


def test_forty_lines():
    assert set(FILES) == {"coffee.py", "coats.py", "check.py", "waiter.py"}
    assert len(FILES["coffee.py"].splitlines()) <= 40
    assert len(FILES["coats.py"].splitlines()) <= 45
    imported = re.findall(r"^(?:from|import) (\S+)", FILES["coats.py"], re.MULTILINE)
    assert imported == ["textenvs"]


@pytest.mark.parametrize(("command", "transcript"), COMMANDS)
def test_command_prints_documented_output(command, transcript, run):
    # What a reader types stands after a prompt; here it comes through a pipe, which does not show it.
    typed = re.findall(r"^(?:over)?> (.*)$", transcript, re.MULTILINE)
    expected = re.sub(r"^((?:over)?> ).*\n", r"\1", transcript, flags=re.MULTILINE)
    printed = run(*command.split(), stdin="".join(f"{line}\n" for line in typed))
    assert printed.strip() == expected.strip()


def audited(run, *words, status=0):
    """The verdicts of the page's command, by check."""
    (block,) = re.findall(r'^```sh title="audit"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
    command = [*block.split(), "--json", *words]
    return {verdict["check"]: verdict for verdict in json.loads(run(*command, status=status))}


def test_the_environment_with_tools_passes_the_audit(run):
    verdicts = audited(run, "--search", "10")  # fewer policies than the page's command tries
    assert verdicts.pop("twins")["status"] == "warning"  # as the page says
    assert {verdict["status"] for verdict in verdicts.values()} <= {"pass", "skipped"}
    assert {"copies", "attack all", "memorised answers", "search"} <= set(verdicts)


def test_the_audit_finds_what_the_page_says(folder, run):
    path = folder / "coats.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("right = answer == NUMBERS[colour, size]", "right = NUMBERS[colour, size] in answer"))
    assert path.read_text(encoding="utf-8") != text
    assert audited(run, "--search", "10", status=1)["attack all"]["status"] == "fail"


def test_the_model_of_a_service_plays(folder, run):
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    with FakeService(answer="small") as service:
        printed = run(*block.replace("http://localhost:8000/v1", service.url).split())
    assert "18 tasks x 4 = 72 episodes" in printed
    assert (folder / "results" / "results.parquet").is_file()


def test_the_environment_trains(folder, run):
    """Run the page's command with a smaller model and one iteration."""
    (block,) = re.findall(r'^```sh title="train"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
    tried, trained = (line.removeprefix("python -m ").split() for line in block.splitlines())
    printed = run(*tried)
    assert "the opening of training task 0 of env.id=coffee:my/coffee has " in printed
    assert "which are trained on, too" in printed
    small = [f"model.{shape}" for shape in ("hidden=32", "layers=1", "heads=2", "kv_heads=1", "vocab_size=300")]
    small += ["warm_start.demonstrations=32", "warm_start.steps=3", "warm_start.batch_size=8"]
    small += ["rollout.groups_per_batch=2", "rollout.n=2", "rollout.max_response_length=16"]
    printed = " ".join(run(*trained, *small, "trainer.total_iterations=1").split())
    assert "validation is on tasks 14 to 17, which data.train_size leaves out of training" in printed
    written = {path.name for path in (folder / "outputs/textenvs/run").iterdir()}
    assert written >= {"config.yaml", "metrics.jsonl", "conversations", "checkpoints"}


def test_gymnasium_accepts_the_environment(folder):
    """Run it in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error", "check.py"], check=True, cwd=folder, env=environment, timeout=100)


def test_the_environment_keeps_what_the_page_says(folder):
    """Failing first never pays, also not by a long way round."""
    import coffee

    for index in range(18):
        env = coffee.Coffee()
        env.reset(seed=0, options={"task_index": index})
        rewards = [env.step(reply)[1] for reply in ("?", "small", env.demonstration(None))]
        assert env.state.stop == "solved"
        assert sum(rewards) == pytest.approx(0.8)
