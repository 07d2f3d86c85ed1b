"""GSM8K rows: ``question`` and worked ``answer`` (ending in ``#### N``) as tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..messages import Messages, text_part, user
from ..scoring.gsm8k import extract, normalize
from ..task import Task, TaskError
from ..text import quoted
from .sources import Reader, text_in
from .word_problems import LEVELS, GeneratedMath

#: Put after a question that does not say how to answer. Short, so that a tiny model can learn to read it.
INSTRUCTION = "End with #### and the number."

_SAYS_HOW = re.compile(r"####|\\boxed|answer is")
_ANNOTATION = re.compile(r"<<[^<>=\n]*=[^<>\n]*>>")


def without_annotations(answer: str) -> str:
    """Return a worked answer without GSM8K's ``<<48/2=24>>`` calculator notes."""
    return _ANNOTATION.sub("", answer)


def says_how(text: object) -> bool:
    r"""Return whether ``text`` says how to answer: it has ``####``, ``\boxed`` or "answer is", as verl\'s rows have."""
    return _SAYS_HOW.search(str(text)) is not None


def with_instruction(prompt: Messages, instruction: str | None = INSTRUCTION) -> Messages:
    """``prompt`` with ``instruction`` after its last message, unless the prompt says how to answer."""
    if not instruction or any(says_how(message["content"]) for message in prompt):
        return prompt
    *before, last = prompt
    content = last["content"]
    instructed = f"{content} {instruction}" if isinstance(content, str) else (*content, text_part(instruction))
    return (*before, {**last, "content": instructed})


def from_pair(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Return a task from a row in GSM8K's shape: a :attr:`Reader.row`. Its prompt is the bare question."""
    if "prompt" in row and "question" not in row:  # a row of verl's
        text_in(row, "reward_model", where)
    question, answer = text_in(row, "question", where), text_in(row, "answer", where)
    truth = extract(answer, "strict")
    if truth is None:
        raise TaskError(f"{where}: column 'answer' has no '#### N' with the final number; it ends in {answer[-40:]!r}")
    return Task(
        key=key,
        data_source=data_source,
        prompt=(user(question),),
        ground_truth=truth,
        ability="math",
        extra={"question": question, "answer": answer},
    )


def check_problem(task: Task) -> None:
    """Raise ``ValueError`` for a task that cannot be scored as a GSM8K problem."""
    gold = normalize(task.ground_truth)
    if gold is None:
        raise ValueError(f"column 'reward_model': ground_truth {quoted(task.ground_truth)} is not a number")
    answer = task.extra.get("answer")
    if answer is None:
        return
    if not isinstance(answer, str):
        raise ValueError(f"column 'extra_info': answer must be text, not {type(answer).__name__}")
    stated = extract(answer, "strict")
    if stated is not None and stated != gold:
        raise ValueError(f"column 'extra_info': the worked answer ends in {stated}, but ground_truth is {gold}")


#: How the families with word problems read their tasks.
READER = Reader(
    GeneratedMath,
    LEVELS,
    from_pair,
    "'question' and 'answer'",
    "openai/gsm8k",
    check=check_problem,
    data_source="openai/gsm8k",
    shape="worked",
)
