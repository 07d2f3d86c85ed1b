"""The agents of examples/agents play, and are played by the expert of the example program."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from textenvs.envs.agent import Agent

ROOT = Path(__file__).parents[4]
NODE_FOLDERS = ("examples/agents", "tests/hosts/agents")
SCRIPTS = {name: f"textenvs.envs.agent.example:{name}" for name in ("expert", "careless")}


def play(hook, **options):
    env, rng = Agent(**options, **SCRIPTS), np.random.default_rng(0)
    stops = []
    for seed in range(2):
        env.reset(seed=seed)
        while not env.state.done:
            *_, info = env.step(getattr(env, hook)(rng))
            assert not info["failed"], info["failure"]
        stops.append((env.state.stop, env.state.assistant_turns > 1))
    env.close()
    return set(stops)


def test_calculator():
    pytest.importorskip("openai")
    assert play("demonstration", agent="examples.agents.calculator:agent") == {("solved", True)}
    assert play("careless_reply", agent="examples.agents.calculator:agent") == {("done", False)}


def test_documented_versions_are_the_pinned_ones():
    page = (ROOT / "docs/environments/agent.md").read_text()
    table = page.partition("## Clients that were tried")[2].partition("\n## ")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    pins = [(ROOT / "requirements" / name).read_text() for name in ("agents.txt", "dev.lock")]
    packages = [json.loads((ROOT / name / "package.json").read_text()) for name in NODE_FOLDERS]
    for clients, versions in rows:
        for client, version in zip(re.findall("`(.+?)`", clients), versions.strip().split(", "), strict=True):
            if "(Node)" in clients or client.startswith("@"):
                pinned = {package["dependencies"].get(client, version) for package in packages}
                assert pinned == {version}, client
                assert client in packages[-1]["dependencies"]
            else:
                assert any(f"\n{client}=={version}" in pin for pin in pins), client


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_node_agent():
    options = {"command": "node agent.mjs", "files": str(ROOT / "examples" / "agents")}
    assert play("demonstration", **options) == {("solved", True)}
