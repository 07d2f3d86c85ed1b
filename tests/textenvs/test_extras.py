"""What the registry says an environment needs is what it needs, no more and no less."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import textenvs

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
OPTIONAL = ("pyarrow", "datasets", "openai", "bm25s", "mcp", "math_verify", "reasoning_gym", "textarena")

# Plays an episode of the expert while no optional package is there, neither to import nor to find.
PLAY = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None
import numpy, textenvs
try:
    env = textenvs.make(sys.argv[1])
    env.reset(seed=0)
    while not env.state.done:
        env.step(env.demonstration(numpy.random.default_rng(0)))
except ImportError as error:
    print("needs", error)
else:
    print("played", env.state.stop)
"""


@pytest.mark.parametrize("env_id", textenvs.list_environments())
def test_an_environment_needs_the_extras_that_it_names(env_id):
    extras = textenvs.describe(env_id).extras
    assert set(extras) <= set(EXTRAS)
    done = subprocess.run([sys.executable, "-c", PLAY, env_id, *OPTIONAL], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if extras:
        assert done.stdout.startswith("needs ")
        assert any(f"textenvs[{extra}]" in done.stdout for extra in extras)
    else:
        assert done.stdout.startswith("played "), f"{done.stdout}; name it in the registry: extras: [...]"
