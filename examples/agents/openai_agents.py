"""The same agent with the OpenAI Agents SDK (``pip install openai-agents``), which plans and calls its tools itself.

::

    python -m trainers.ppo env.id=textenv/agent env.backend=thread \
        env.kwargs.agent=examples.agents.openai_agents:agent \
        env.kwargs.expert=textenvs.envs.agent.example:expert env.kwargs.careless=textenvs.envs.agent.example:careless \
        engine.max_context=1024 rollout.max_response_length=80 \
        warm_start.demonstrations=2000 warm_start.steps=560 warm_start.batch_size=32 warm_start.mistake_rate=0 \
        warm_start.careless_steps=12 warm_start.careless_rate=0.45

Each episode has a client of its own, because each has an event loop of its own, which connections belong to. An episode
takes 25 ms of CPU time, twice as much as one of ``calculator.py``: hence fewer demonstrations. The tiny model's
tokenizer spells the tool's description and calls sign by sign: a reply has 50 tokens, a conversation 450 to 520.
``python -m benchmarks.agents --program openai-agents`` trains three seeds.
"""

from __future__ import annotations

import operator
import re
import ssl
from typing import Literal

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, OpenAIProvider, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from textenvs import Task

#: One for all episodes: a new one reads the certificates of the machine, in 20 ms, as long as the rest of an episode.
CERTIFICATES = ssl.create_default_context()
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@function_tool
def calculate(a: float, sign: Literal["+", "-", "*", "/"], b: float) -> str:
    """Work out one operation."""
    return f"{OPERATORS[sign](a, b):g}"


CALCULATOR = Agent(
    name="Calculator",
    instructions='Use the tool for every operation. Then end with "#### " and the number.',
    model="policy",
    tools=[calculate],
)


async def agent(task: Task, base_url: str, key: str) -> float:
    """Work out an expression; return 1.0 for the right answer."""
    http = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    async with AsyncOpenAI(base_url=base_url, api_key=key, http_client=http) as client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
        try:
            result = await Runner.run(CALCULATOR, task.question, run_config=config)
        except (MaxTurnsExceeded, ModelBehaviorError):  # the model called a tool that does not exist, or did not end
            return 0.0
    answer = re.search(r"#### (\S+)", result.final_output)
    return float(answer is not None and answer[1] == task.ground_truth)
