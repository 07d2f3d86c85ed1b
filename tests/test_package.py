"""The installed package: a wheel has both packages and the registry, and works outside the repository."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import textenvs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this tree, built offline."""
    pytest.importorskip("hatchling", reason="needs the extra 'dev'")
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_has_exactly_packages_and_registry(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    plugin = "textenvs_verifiers.py"  # verifiers finds top-level modules only
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"textenvs", "trainers", plugin}
    assert "textenvs/envs_registry.yaml" in names
    assert {"textenvs/py.typed", "trainers/py.typed"} <= set(names)
    folders = ("textenvs/", "trainers/")
    inside = {name for name in names if name.startswith(folders)}
    made = {path.relative_to(ROOT).as_posix() for top in folders for path in (ROOT / top).rglob("*") if path.is_file()}
    expected = {name for name in made if "__pycache__" not in name}
    assert inside - {"textenvs/envs_registry.yaml"} == expected, "modules, and what they read: YAML, texts, py.typed"


def test_installed_wheel_makes_environments_anywhere(wheel, tmp_path):
    """Install as a user, from another folder, with the repository out of reach."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import sys; sys.path.insert(0, 'site')\n"
        "import warnings; warnings.simplefilter('error')\n"
        "import gymnasium, textenvs, trainers.config\n"
        "print(textenvs.__file__, trainers.config.__file__)\n"
        "env = gymnasium.make('textenvs:textenv/gsm8k-interact')\n"
        "conversation, info = env.reset(seed=0)\n"
        "print(conversation[-1]['role'], *textenvs.list_environments())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, env={"PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    places, made = done.stdout.splitlines()
    assert all(place.startswith("site/") or str(tmp_path) in place for place in places.split())
    assert made.split() == ["user", *textenvs.list_environments()]


@pytest.mark.parametrize("command", ["ppo", "sft"])
def test_without_torch_training_names_extra(command):
    code = (
        "import runpy, sys\n"
        "sys.modules['torch'] = None  # as if it were not installed\n"
        f"runpy.run_module('trainers.{command}', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("training needs torch: pip install 'textenvs[train]'")
