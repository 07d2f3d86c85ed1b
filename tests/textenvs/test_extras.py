"""The extras in the registry are exactly those that an environment needs."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import textenvs

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
OPTIONAL = (
    *("pyarrow", "datasets", "openai", "bm25s", "mcp", "math_verify", "reasoning_gym", "textarena", "textworld"),
    "aiohttp",
)

# Plays an episode of each expert while no optional package is there, neither to import nor to find.
PLAY = """
import json, sys
optional, ids = map(json.loads, sys.argv[1:])
for name in optional:
    sys.modules[name] = None
import numpy, textenvs
for env_id in ids:
    try:
        env = textenvs.make(env_id)
        env.reset(seed=0)
        while not env.state.done:
            env.step(env.demonstration(numpy.random.default_rng(0)))
    except ImportError as error:
        print(json.dumps([env_id, "needs", str(error)]))
    else:
        print(json.dumps([env_id, "played", env.state.stop]))
"""


def test_an_environment_needs_the_extras_that_it_names():
    ids = textenvs.list_environments()
    command = [sys.executable, "-c", PLAY, json.dumps(OPTIONAL), json.dumps(ids)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    played = {env_id: (what, message) for env_id, what, message in map(json.loads, done.stdout.splitlines())}
    assert list(played) == list(ids)
    for env_id, (what, message) in played.items():
        extras = textenvs.describe(env_id).extras
        assert set(extras) <= set(EXTRAS)
        assert what == ("needs" if extras else "played"), f"{env_id}: {message}; name it in the registry: extras: [...]"
        assert not extras or any(f"textenvs[{extra}]" in message for extra in extras)
