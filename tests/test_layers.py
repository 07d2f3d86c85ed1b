"""The layers that docs/architecture.md draws, kept by import-linter; and what importing costs."""

import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str) -> str:
    """Return the output of a fresh interpreter: imports of this one must not count."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def lint_imports(config: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports({config!r}, no_cache=True))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100)


def test_the_layers_hold():
    pytest.importorskip("importlinter", reason="needs the extra 'dev'")
    done = lint_imports("pyproject.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_layer_would_be_seen(tmp_path):
    """The linter really reads our packages: a contract that forbids an import that exists fails and names it."""
    pytest.importorskip("importlinter", reason="needs the extra 'dev'")
    config = tmp_path / "contracts.toml"
    config.write_text(
        '[tool.importlinter]\nroot_packages = ["textenvs", "trainers"]\n'
        '[[tool.importlinter.contracts]]\nname = "upside down"\ntype = "forbidden"\n'
        'source_modules = ["trainers.trajectory"]\nforbidden_modules = ["textenvs.messages"]\n'
    )
    done = lint_imports(str(config))
    assert done.returncode != 0
    assert "trainers.trajectory -> textenvs.messages" in done.stdout


@pytest.mark.parametrize("package", ["textenvs", "trainers"])
def test_no_circle_of_imports(package):
    """Imports under TYPE_CHECKING and in functions count, too; the error names the circle."""
    grimp = pytest.importorskip("grimp", reason="needs the extra 'dev'")
    graph = grimp.build_graph(package, cache_dir=None)
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_light_rooms_of_the_trainer_do_without_transformers():
    code = (
        "import sys, trainers.trajectory, trainers.config, trainers.algorithms\n"
        "print([n for n in ('transformers', 'tensorboard', 'matplotlib') if n in sys.modules])"
    )
    assert python(code) == "[]"


@pytest.mark.parametrize("package", ["textenvs", "trainers"])
def test_page_draws_the_layers(package):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == [package])
    page, drawn = (ROOT / "docs" / "architecture.md").read_text("utf-8"), list[set[str]]()
    for beside, names in re.findall(rf"^(\||) +{package}\.(\w+(?: \| \w+)*)", page, re.MULTILINE):
        rooms = set(names.split(" | "))
        drawn[-1:] = [drawn[-1] | rooms] if beside else [*drawn[-1:], rooms]
    assert drawn == [rooms for layer in layers if (rooms := set(re.findall(r"\w+", layer)) - {"__main__"})]
