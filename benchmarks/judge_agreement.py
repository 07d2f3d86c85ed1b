"""A model as the judge of gsm8k replies, against the checker.

For each task there is one right reply (the worked answer), one with another last number, and one guess. The
checker of `textenv/gsm8k` says which are right. The judge is asked twice: by ``EquivalenceJudge``, whose verdict is one
strict JSON object, and in one word, yes or no, several samples a reply, whose share of yes is its score.

    python -m benchmarks.judge_agreement --model FOLDER_OR_NAME [--base-url URL] [--tasks gsm8k] [--replies 90]

Prints how many verdicts could be read, the agreement with the checker (a share of yes of at least a half counts as
yes), and the area under the ROC curve: the chance that a right reply scores above a wrong one, ties half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import textenvs
from textenvs.chat import ChatFailure, client_for
from textenvs.env import EnvironmentFailure
from textenvs.judges import EquivalenceJudge
from textenvs.messages import system, text_of, user

_RULES = "You check answers to math problems. Reply with one word: yes or no."
_QUESTION = (
    "Problem: {question}\n\nThe right result is {reference}.\n\nAnswer:\n{reply}\n\nDoes the answer give {reference}?"
)


class Reply(NamedTuple):
    """A reply to judge, and the checker's verdict."""

    question: str
    reference: str
    text: str
    right: bool


def replies(tasks: str | None, count: int, seed: int) -> list[Reply]:
    """Return ``count`` replies, a third of each sort."""
    env = textenvs.make("textenv/gsm8k", split="test", **dict[str, Any]({} if tasks is None else {"tasks": tasks}))
    rng, items = random.Random(seed), list[Reply]()
    for number in range(-(-count // 3)):
        env.reset(seed=seed + number)
        worked = text_of({"role": "assistant", "content": str(env.demonstration(np.random.default_rng(number)))})
        truth = str(env.task.ground_truth)
        other = re.sub(
            r"(?<=#### ).*\Z", str(int(float(truth.replace(",", ""))) + rng.choice([-3, -1, 1, 2, 10])), worked
        )
        guess = str(env.careless_reply(np.random.default_rng(number)))
        for text in (worked, other, guess):
            twin = env.fork()
            *_, info = twin.step(text)
            items.append(Reply(text_of(env.state.messages[-1]), truth, text, info["stop"] == "solved"))
    return items[:count]


def auc(scores: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return the chance that a right one has the higher score, ties half; ``None`` where all or none are right."""
    above = [score for score, good in zip(scores, right, strict=True) if good]
    below = [score for score, good in zip(scores, right, strict=True) if not good]
    if not above or not below:
        return None
    wins = sum((a > b) + 0.5 * (a == b) for a in above for b in below)
    return wins / (len(above) * len(below))


async def judged(spec: dict[str, Any], cases: Sequence[Reply], samples: int) -> dict[str, Any]:
    """Return the figures of one judge."""
    strict = EquivalenceJudge(spec, tries=1)
    client = await client_for(spec)

    async def verdict(reply: Reply) -> bool | None:
        try:
            return await strict.same(reply.question, reply.reference, reply.text)
        except EnvironmentFailure:
            return None

    async def share(reply: Reply) -> float | None:
        prompt = [
            system(_RULES),
            user(_QUESTION.format(question=reply.question, reference=reply.reference, reply=reply.text)),
        ]
        answers = await asyncio.gather(*(client.complete(prompt, max_tokens=4, sample=i) for i in range(samples)))
        matches = [re.match(r"\W*(yes|no)\b", answer.text.lower()) for answer in answers]
        votes = [match[1] == "yes" for match in matches if match]
        return sum(votes) / len(votes) if votes else None

    shares = await asyncio.gather(*map(share, cases))
    verdicts = await asyncio.gather(*map(verdict, cases))
    return {
        "replies": len(cases),
        "right": sum(reply.right for reply in cases),
        "equivalence": _figures([None if value is None else float(value) for value in verdicts], cases),
        "yes_or_no": {"samples": samples, **_figures(shares, cases)},
    }


def _figures(scores: Sequence[float | None], cases: Sequence[Reply]) -> dict[str, Any]:
    read = [(score, reply.right) for score, reply in zip(scores, cases, strict=True) if score is not None]
    agreed = [(score >= 0.5) == right for score, right in read]
    return {
        "read": len(read),
        "agreement": sum(agreed) / len(agreed) if agreed else None,
        "auc": auc([score for score, _ in read], [right for _, right in read]) if read else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="a folder, or a name at the service")
    parser.add_argument("--base-url", help="of the service")
    parser.add_argument("--tasks", help="as of textenv/gsm8k: gsm8k for the real ones (textenvs data get gsm8k)")
    parser.add_argument("--replies", type=int, default=90)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    spec = {"model": arguments.model, "structured": "none", "max_tokens": 200, "seed": arguments.seed}
    if arguments.base_url is not None:
        spec["base_url"] = arguments.base_url
    try:
        figures = asyncio.run(
            judged(spec, replies(arguments.tasks, arguments.replies, arguments.seed), arguments.samples)
        )
    except ChatFailure as failure:
        raise SystemExit(str(failure)) from failure
    figures = {"model": Path(arguments.model).name, "tasks": arguments.tasks or "generated", **figures}
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
