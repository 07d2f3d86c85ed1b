"""Agents of other libraries, as their documentation writes them, play and are refused in their own exceptions."""

import asyncio
import contextlib
import functools
import inspect
import sys
import threading

import agents
import langgraph_program
import numpy as np
import openai
import openai_agents_program
import pydantic
import pydantic_ai
import pydantic_ai_program
import pytest
import smolagents
import smolagents_program
from arithmetic import grade
from gateway_kit import answering, echo

from examples.agents import openai_agents
from textenvs.envs.agent import Agent
from textenvs.gateway.server import gateway
from textenvs.messages import text_of
from textenvs.tools.formats import call

SCRIPTS = {name: f"textenvs.envs.agent.example:{name}" for name in ("expert", "careless")}
PROGRAMS = [
    *((openai_agents_program, {"responses": responses}) for responses in (True, False)),
    *((langgraph_program, {"responses": responses}) for responses in (True, False)),
    *((pydantic_ai_program, {"protocol": protocol}) for protocol in ("chat", "responses", "anthropic")),
]
named = {"ids": lambda value: getattr(value, "__name__", None) or ",".join(map(str, value.values()))}


def play(agent, hook="demonstration", episodes=2):
    """Return how episodes end, played by a script of the example program; the second has replies with reasoning."""
    env, rng, ends = Agent(agent, level="medium", **SCRIPTS), np.random.default_rng(0), []
    for seed in range(episodes):
        env.reset(seed=seed)
        while not env.state.done:
            *_, info = env.step(seed * "<think>Let me see.</think>" + getattr(env, hook)(rng))
        ends.append((info.get("failure"), env.state.stop, env.state.assistant_turns > 2))
    env.close()
    return ends


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("module", "options"), PROGRAMS, **named)
def test_program_plays_with_its_tools(module, options, stream):
    assert play(functools.partial(module.run, **options, stream=stream)) == [(None, "solved", True)] * 2


def test_example_plays_and_survives_wrong_calls():
    assert play(openai_agents.agent) == [(None, "solved", True)] * 2
    assert play(openai_agents.agent, "careless_reply") == [(None, "done", False)] * 2
    env = Agent(openai_agents.agent, **SCRIPTS)
    for wrong, stop in ((call("nothing"), "done"), (call("calculate", a="x"), None)):
        env.reset(seed=0)
        *_, info = env.step(env.format.write("", [wrong]))
        assert (info.get("failure"), info["stop"]) == (None, stop)
    env.close()


SCRIPT = """
import json, os
from agents import Agent, Runner, function_tool

@function_tool
def calculate(a: float, sign: str, b: float) -> float:
    "Work out one operation."
    return {"+": a + b, "-": a - b, "*": a * b}[sign]

agent = Agent(name="Calculator", instructions="Use the tool.", tools=[calculate])
result = Runner.run_sync(agent, json.loads(os.environ["TEXTENVS_TASK"])["question"])
print(result.final_output)
"""


def right_answer(task, messages, files):
    return grade(task, text_of(messages[-1]))


def test_unchanged_script_plays_as_a_command(tmp_path):
    """It finds the gateway by the variables of OpenAI's client, and names a model of OpenAI's."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    env = Agent(command=command, files=str(tmp_path), scorer=right_answer, level="easy", **SCRIPTS)
    env.reset(seed=0)
    while not env.state.done:
        *_, info = env.step(env.demonstration(np.random.default_rng(0)))
    env.close()
    assert (info.get("failure"), info["stop"], env.state.assistant_turns) == (None, "solved", 2)


STEPS = {
    "tools": [("", [call("calculate", a=3, sign="+", b=13)]), ("", [call("final_answer", answer="16")])],
    "code": [("<code>\nprint(calculate(3, '+', 13))\n</code>", ()), ("<code>\nfinal_answer('16')\n</code>", ())],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", STEPS)
def test_smolagents_begin_a_context_with_each_call(kind, stream):
    """They write the calls of earlier replies into their text."""
    env = Agent(functools.partial(smolagents_program.run, code=kind == "code", stream=stream), level="easy")
    opening, _ = env.reset(seed=0)
    assert env.task.question == "Work out 3 + 13."
    first, second = STEPS[kind]
    conversation, *_ = env.step(env.format.write(*first))
    assert (conversation[0], "16" in text_of(conversation[-1])) == (opening[0], True)
    _, reward, _, _, info = env.step(env.format.write(*second))
    assert (info.get("failure"), reward, len(env.state.contexts)) == (None, 1.0, 1)
    env.close()


SOLVE = openai_agents.CALCULATOR.as_tool("solve", "Work out an expression.")
TWO_CALLS = [("", [call("solve", input="3 + 13"), call("solve", input="13 + 3")]), ("#### 16", ()), ("#### 16", ())]
ONE_STEP = [("", [call("calculate", a=3, sign="+", b=13)]), ("#### 16", ())]
TEAMS = {  # agents, their replies before the last, and the conversations that are left
    "sub-agent": ({"tools": [SOLVE]}, [("", [call("solve", input="3 + 13")]), *ONE_STEP], 1),
    "parallel sub-agents": ({"tools": [SOLVE]}, TWO_CALLS, 2),
    "handoff": ({"handoffs": [openai_agents.CALCULATOR]}, [("", [call("transfer_to_calculator")]), *ONE_STEP[:1]], 1),
}


@pytest.mark.parametrize("team", TEAMS)
def test_agents_of_a_team_have_contexts(team):
    options, replies, left = TEAMS[team]
    manager = agents.Agent(name="Manager", instructions="Let others work it out.", model="policy", **options)
    env = Agent(functools.partial(openai_agents_program.run, agent=manager), level="easy")
    env.reset(seed=0)
    for text, calls in [*replies, ("#### 16", ())]:
        *_, info = env.step(env.format.write(text, calls))
    env.close()
    assert (info.get("failure"), info["stop"], len(env.state.contexts)) == (None, "solved", left)


class Answer(pydantic.BaseModel):
    number: float


STRUCTURED = openai_agents.CALCULATOR.clone(output_type=Answer)
REFUSALS = [
    (openai_agents_program, {"agent": STRUCTURED}, openai.BadRequestError, "text.format: replies are not constrained"),
    (langgraph_program, {"n": 2}, openai.BadRequestError, "n=2: a call has one reply"),
    (
        pydantic_ai_program,
        {"output_type": pydantic_ai.NativeOutput(Answer)},
        pydantic_ai.ModelHTTPError,
        "response_format: replies are not constrained",
    ),
    (smolagents_program, {"n": 2}, smolagents.AgentGenerationError, "n=2: a call has one reply"),
]


@pytest.mark.parametrize(("module", "options", "exception", "words"), REFUSALS)
def test_refusal_is_the_exception_of_the_library(module, options, exception, words):
    async def agent(task, base_url, key):
        result = module.run(task, base_url, key, **options)
        return await result if inspect.isawaitable(result) else result

    with answering(echo()) as channel:
        with pytest.raises(exception) as caught:
            asyncio.run(agent(Agent().tasks[0], f"{gateway().url}/v1", channel.key))
        assert words in str(caught.value)
        assert channel.observations == []


ASYNCHRONOUS = [openai_agents_program.run, pydantic_ai_program.run, langgraph_program.run_async]


@pytest.mark.parametrize("run", ASYNCHRONOUS, ids=lambda run: run.__module__)
def test_cancelled_call_is_the_same_turn_again(run):
    arrival, gone = threading.Event(), threading.Event()

    async def agent(task, base_url, key):
        first = asyncio.create_task(run(task, base_url, key))
        assert await asyncio.to_thread(arrival.wait, 60)
        first.cancel()
        async with asyncio.timeout(60):
            with contextlib.suppress(asyncio.CancelledError):
                await first
            while session._open[0].connected:
                await asyncio.sleep(0.001)
        gone.set()
        return await run(task, base_url, key)

    env = Agent(agent, **SCRIPTS)
    env.reset(seed=0)
    session = env._live[2]._channel.session
    arrival.set()
    assert gone.wait(60)
    while not env.state.done:
        *_, info = env.step(env.demonstration(np.random.default_rng(0)))
    env.close()
    assert (info.get("failure"), info["stop"]) == (None, "solved")
