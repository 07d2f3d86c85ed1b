"""Programs for Node and a coding agent's command line, which `make test-agents` installs, play as commands."""

import threading
from pathlib import Path

import numpy as np
import pytest

from textenvs.envs.agent import Agent

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SCRIPTS = {name: f"textenvs.envs.agent.example:{name}" for name in ("expert", "careless")}


def play(*command, hook="demonstration"):
    """Return how an episode ends."""
    env, rng = Agent(command=["node", *map(str, command)], level="medium", **SCRIPTS), np.random.default_rng(0)
    env.reset(seed=0)
    if command[-1] == "cancelled":
        cancel_first_call(env)
    while not env.state.done:
        *_, info = env.step(getattr(env, hook)(rng))
    env.close()
    return info.get("failure"), info["stop"], env.state.assistant_turns > 2


def cancel_first_call(env):
    running, lost = env._live[2], threading.Event()
    session, folder = running._channel.session, running._program.folder
    disconnect = session.disconnect
    session.disconnect = lambda ticket: (disconnect(ticket), lost.set())
    (folder / "arrived").touch()
    assert lost.wait(60)
    (folder / "noticed").touch()


@pytest.mark.parametrize("mode", ["whole", "stream", "refused", "cancelled"])
@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("program", ["openai_program.mjs", "vercel_program.mjs"])
def test_node_program_plays(program, protocol, mode):
    assert play(HERE / program, protocol, mode) == (None, "solved", True)


def test_example_for_vercels_sdk_plays():
    program = ROOT / "examples/agents/vercel_ai.mjs"
    assert play(program) == (None, "solved", True)
    assert play(program, hook="careless_reply") == (None, "done", False)
