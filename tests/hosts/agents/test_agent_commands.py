"""Programs for Node and a coding agent's command line, which `make test-agents` installs, play as commands."""

import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from textenvs.envs.agent import Agent
from textenvs.messages import text_of, user
from textenvs.task import Task
from textenvs.tools.formats import call

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SCRIPTS = {name: f"textenvs.envs.agent.example:{name}" for name in ("expert", "careless")}


def play(*command, hook="demonstration", **options):
    """Return how an episode ends."""
    env = Agent(command=["node", *map(str, command)], level="medium", **SCRIPTS, **options)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    if command[-1] == "cancelled":
        cancel_first_call(env)
    while not env.state.done:
        *_, info = env.step("<think>Let me see.</think>" + getattr(env, hook)(rng))
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


@pytest.mark.parametrize("options", [{}, {"serve": 8}], ids=["process for each", "one process"])
def test_example_for_vercels_sdk_plays(options):
    program = ROOT / "examples/agents/vercel_ai.mjs"
    assert play(program, **options) == (None, "solved", True)
    assert play(program, hook="careless_reply", **options) == (None, "done", False)


def prints_world(task, messages, files):
    return float("hello world" in (files / "hello.py").read_text())


@pytest.fixture
def make_codex(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{HERE / 'node_modules/.bin'}:{os.environ['PATH']}")
    (tmp_path / "hello.py").write_text("print('hello')\n")

    def make(question):
        command = ["sh", str(ROOT / "examples/agents/codex.sh")]
        tasks = [Task("a", "test", (user(question),), None)]
        envs.append(Agent(command=command, files=str(tmp_path), scorer=prints_world, tasks=tasks))
        envs[-1].reset(seed=0)
        return envs[-1]

    envs = []
    yield make
    for env in envs:
        env.close()


@pytest.mark.parametrize("solves", [True, False])
def test_codex_edits_a_file(solves, make_codex):
    env = make_codex("Make hello.py print hello world.")
    edit = call("exec_command", cmd=f"sed -i 's/hello/hello {'world' if solves else 'moon'}/' hello.py")
    conversation, *_ = env.step(env.format.write("I change it.", [edit]))
    assert "Process exited with code 0" in conversation[-1]["content"]
    _, reward, terminated, _, info = env.step("Done.")
    assert (info.get("failure"), reward, terminated) == (None, float(solves), True)


def test_sub_agent_of_codex_is_a_context(make_codex):
    """Codex and its sub-agent call at the same time: each is answered by what it was shown."""
    env, report = make_codex("Let an agent count."), ""
    while not env.state.done:
        content = text_of(env.state.messages[-1]).strip()
        number = re.search('"agent_id":"(.+?)"', content)
        if content == "Let an agent count.":
            reply = env.format.write("", [call("multi_agent_v1__spawn_agent", message="Count to 3.")])
        elif number is not None:
            reply = env.format.write("", [call("multi_agent_v1__wait_agent", targets=[number[1]])])
        else:
            reply = "1, 2, 3" if content == "Count to 3." else "Done."
            report += content
        *_, info = env.step(reply)
    assert (info.get("failure"), info["stop"], len(env.state.contexts)) == (None, "done", 1)
    assert '"completed":"1, 2, 3"' in report
