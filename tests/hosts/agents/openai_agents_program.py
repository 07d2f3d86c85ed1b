"""The OpenAI Agents SDK: the program of examples/agents, streamed and over chat completions, too."""

from agents import OpenAIProvider, RunConfig, Runner
from arithmetic import grade
from openai import AsyncOpenAI

from examples.agents.openai_agents import CALCULATOR


async def run(task, base_url, key, *, responses=True, stream=False, agent=CALCULATOR):
    async with AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=responses)
        config = RunConfig(model_provider=provider, tracing_disabled=True)
        if not stream:
            result = await Runner.run(agent, task.question, run_config=config)
        else:
            result = Runner.run_streamed(agent, task.question, run_config=config)
            async for _ in result.stream_events():
                pass
    return grade(task, result.final_output)
