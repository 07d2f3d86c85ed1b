"""The agents of examples/agents play, and are played by the expert of the example program."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from textenvs.envs.agent import Agent

ROOT = Path(__file__).parents[4]
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


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_node_agent():
    options = {"command": "node agent.mjs", "files": str(ROOT / "examples" / "agents")}
    assert play("demonstration", **options) == {("solved", True)}
