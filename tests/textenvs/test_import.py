"""Importing textenvs is light and silent."""

import subprocess
import sys

import textenvs

HEAVY = (
    "torch", "transformers", "tokenizers", "datasets", "pyarrow", "pandas", "ray", "vllm", "sglang", "trainers",
    "openai", "httpx", "httpx2", "aiohttp", "scipy", "matplotlib",
)  # fmt: skip


def test_import_loads_nothing_heavy_and_no_environment_and_says_nothing():
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
