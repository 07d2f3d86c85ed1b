"""Pydantic AI, over each of the three protocols."""

import anthropic
import openai
from arithmetic import INSTRUCTIONS, compute, grade
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODELS = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}


async def ignore(context, events):
    async for _ in events:
        pass


async def run(task, base_url, key, *, protocol="chat", stream=False, **options):
    library = anthropic.AsyncAnthropic if protocol == "anthropic" else openai.AsyncOpenAI
    async with library(base_url=base_url, api_key=key, max_retries=0) as client:
        if protocol == "anthropic":
            model = AnthropicModel("policy", provider=AnthropicProvider(anthropic_client=client))
        else:
            model = MODELS[protocol]("policy", provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions=INSTRUCTIONS, **options)

        @agent.tool_plain
        def calculate(a: float, sign: str, b: float) -> str:
            """Work out one operation."""
            return compute(a, sign, b)

        result = await agent.run(task.question, event_stream_handler=ignore if stream else None)
    return grade(task, str(result.output))
