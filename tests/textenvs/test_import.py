"""Importing textenvs is light and silent."""

import os
import subprocess
import sys
from pathlib import Path

import textenvs

HEAVY = (
    "torch", "transformers", "tokenizers", "datasets", "pyarrow", "pandas", "ray", "vllm", "sglang", "trainers",
    "openai", "httpx", "httpx2", "aiohttp", "scipy", "matplotlib",
)  # fmt: skip


def test_import_is_light_and_silent():
    code = (
        "import sys, textenvs\n"
        "heavy = sorted(sys.modules.keys() & set(sys.argv[1:]))\n"
        "envs = sorted(name for name in sys.modules if name.startswith('textenvs.envs.'))\n"
        "assert not heavy + envs, heavy + envs\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *HEAVY], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_that_is_exported_is_there():
    assert [name for name in textenvs.__all__ if not hasattr(textenvs, name)] == []


def test_imports_touch_no_file(tmp_path):
    """Programs for a box are modules, too, and tools that look at a package import all of them."""
    existing = tmp_path / "folder" / "kept"
    existing.parent.mkdir()
    existing.write_text("mine")
    code = (
        "import contextlib, importlib, pkgutil, textenvs\n"
        "for module in pkgutil.walk_packages(textenvs.__path__, 'textenvs.', onerror=lambda name: None):\n"
        "    if not module.name.startswith('textenvs.integrations.'):\n"  # which take long
        "        with contextlib.suppress(ImportError):\n"  # of a library that is not installed
        "            importlib.import_module(module.name)\n"
        "print('done')\n"
    )
    root = os.pathsep.join([str(Path(textenvs.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:], existing.exists()) == (0, ["done"], True), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
