"""smolagents: the agent that calls tools, and the one that writes code."""

from arithmetic import compute, grade
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def calculate(a: float, sign: str, b: float) -> str:
    """Work out one operation.

    Args:
        a: The first number.
        sign: One of + - * /.
        b: The second number.
    """
    return compute(a, sign, b)


def run(task, base_url, key, *, code=False, stream=False, **options):
    model = OpenAIModel(model_id="policy", api_base=base_url, api_key=key, client_kwargs={"max_retries": 0}, **options)
    kind = CodeAgent if code else ToolCallingAgent
    agent = kind(tools=[calculate], model=model, stream_outputs=stream, verbosity_level=LogLevel.OFF)
    return grade(task, f"#### {agent.run(task.question)}")
