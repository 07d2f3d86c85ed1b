"""A solver and a verifier, trained together: two roles of one program, each with rewards of its own.

::

    python -m trainers.ppo env.id=textenv/agent env.backend=thread 'env.kwargs.roles=["solver", "verifier"]' \
        env.kwargs.agent=examples.agents.solver_verifier:agent env.kwargs.level=easy \
        env.kwargs.expert=examples.agents.solver_verifier:expert \
        env.kwargs.careless=examples.agents.solver_verifier:careless

The expert and the careless replies teach a model from scratch the forms of both roles' replies; a language model needs
neither. Both roles are paid for the truth alone, and never for what the other one says: else the two could agree.
"""

from __future__ import annotations

import re

import numpy as np
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from textenvs import Task
from textenvs.messages import Messages, text_of

#: One for all episodes: a new client reads the certificates of the machine, which takes longer than its calls.
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="of the episode")
SOLVER = 'You solve problems. End with "#### " and the number.'
VERIFIER = "You check answers. Say right or wrong."


def agent(task: Task, base_url: str, key: str) -> dict[str, list[float]]:
    """Let the solver answer, and once more where the verifier doubts it; return the rewards of both.

    The solver earns a half for its first answer, and a half for its last one; the verifier 1 for a true verdict.
    """
    client = CLIENT.with_options(base_url=base_url, api_key=key)

    def call(role: str, messages: list[ChatCompletionMessageParam]) -> str:
        completion = client.chat.completions.create(model=f"policy/{role}", messages=messages)
        messages.append({"role": "assistant", "content": completion.choices[0].message.content or ""})
        return completion.choices[0].message.content or ""

    talk: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": SOLVER},
        {"role": "user", "content": task.question},
    ]
    answers = [answer_in(call("solver", talk))]
    # The verifier reads the number alone: the solver's other words cannot persuade it.
    question = f"{task.question} Is it {answers[0]}?"
    verdict = call("verifier", [{"role": "system", "content": VERIFIER}, {"role": "user", "content": question}])
    words = set(re.findall(r"right|wrong", verdict))
    if words == {"wrong"}:
        talk.append({"role": "user", "content": "A verifier doubts that. Answer again."})
        answers.append(answer_in(call("solver", talk)))
    truths = [answer == task.ground_truth for answer in answers]
    solver = [float(truths[0])] if len(truths) == 1 else [0.5 * truth for truth in truths]
    return {"solver": solver, "verifier": [float(words == {"right" if truths[0] else "wrong"})]}


def answer_in(reply: str) -> str:
    """Return the number of a reply's last answer line, or ``"nothing"``."""
    numbers = re.findall(r"#### (-?[\d.]{1,20})", reply)
    return str(numbers[-1]) if numbers else "nothing"


def expert(task: Task, messages: Messages, rng: np.random.Generator) -> str:
    """Return the right answer, or the true verdict."""
    if text_of(messages[0]) == SOLVER:
        return f"#### {task.ground_truth}"
    return "right" if f"Is it {task.ground_truth}?" in text_of(messages[-1]) else "wrong"


def careless(task: Task, messages: Messages, rng: np.random.Generator) -> str:
    """Return an answer near the right one, or any verdict."""
    if text_of(messages[0]) == SOLVER:
        return f"#### {int(str(task.ground_truth)) + int(rng.choice([-2, -1, 1, 2]))}"
    return str(rng.choice(["right", "wrong"]))
