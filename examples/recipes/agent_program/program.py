"""A program that calls a model over HTTP, with one tool: who of some people has coins?

``play`` is the program, as it could run with any model service. The rest makes an environment of it: tasks, and scripts
for the imitation.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from openai import OpenAI

from textenvs import Message, Messages, Task, assistant, user
from textenvs.envs.agent import Agent
from textenvs.task import Endless, Split
from textenvs.tools.formats import call

SYSTEM = "Count the coins of one after another, then end with #### and the name of who has any."
NAMES = ["Ada", "Bob", "Cal", "Dee", "Eva"]
NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
COUNT: Any = {"type": "function", "function": {"name": "count", "parameters": NAME}}
#: Calls of the model, at most.
MOST_CALLS = 8
#: What a call of the tool costs at once, and what any end but the right answer costs: a guess does not pay.
COST, WRONG = 0.03, 0.5
#: One for all episodes: a new client reads the certificates of the machine, which takes longer than its calls.
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="of the episode")


def play(task: Task, base_url: str, key: str) -> float:
    """Play one task; return 1 for the right answer, else a cost."""
    client = CLIENT.with_options(base_url=base_url, api_key=key)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.question}]
    for _ in range(MOST_CALLS):
        completion = client.chat.completions.create(model="policy", messages=messages, tools=[COUNT])
        reply = completion.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            answer = re.search(r"#### (\w+)", reply.content or "")
            return 1.0 if answer is not None and answer[1] == task.ground_truth else -WRONG
        for made in reply.tool_calls:
            content = counted(task.extra["coins"], made.function.arguments)  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": made.id, "content": content})
        client.post("/rewards", body={"reward": -COST * len(reply.tool_calls)}, cast_to=object)
    return -WRONG


def counted(coins: dict[str, int], arguments: str) -> str:
    """Return the tool's answer to a call."""
    try:
        return str(coins[json.loads(arguments)["name"]])
    except (ValueError, KeyError, TypeError):
        return "Nobody of that name."


@dataclass(frozen=True)
class Coins(Endless):
    """The same people, of whom one has coins. Both splits have all tasks."""

    split: Split = "train"
    seed: int = 0
    people: int = 5

    what = "people with coins"

    def _generate(self, index: int) -> Task:
        rng = np.random.default_rng([self.seed, index, self.split == "test"])
        names = NAMES[: self.people]
        owner = str(rng.choice(names))
        coins = dict.fromkeys(names, 0) | {owner: int(rng.integers(1, 10))}
        question = f"Who has coins: {', '.join(names)}?"
        return Task(f"{self.split}/{index}", "coins", (user(question),), owner, extra={"coins": coins})


def expert(task: Task, messages: Messages, rng: np.random.Generator) -> Message:
    """Count the coins of one after another until somebody has some, then answer."""
    counts = [message["content"] for message in messages if message["role"] == "tool"]
    if counts and counts[-1] != "0":
        return assistant(f"#### {task.ground_truth}")
    return assistant("", [call("count", name=list(task.extra["coins"])[len(counts)])])


def careless(task: Task, messages: Messages, rng: np.random.Generator) -> Message:
    """Answer with the name that was counted last, whatever the count is."""
    counts = sum(message["role"] == "tool" for message in messages)
    if not counts:
        return expert(task, messages, rng)
    return assistant(f"#### {list(task.extra['coins'])[counts - 1]}")


class CoinSearch(Agent):
    """The program as an environment.

    Args:
        people: How many people there are.
        split: ``"train"`` or ``"test"``.
        **options: As in :class:`~textenvs.envs.agent.Agent`.
    """

    def __init__(self, *, people: int = 5, split: Split = "train", **options: Any) -> None:
        super().__init__(play, expert=expert, careless=careless, tasks=Coins(split, people=people), **options)


gymnasium.register("recipes/agent-program", entry_point=f"{__name__}:CoinSearch")
