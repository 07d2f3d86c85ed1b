"""GSM8K rows: ``question`` and worked ``answer`` (ending in ``#### N``) as tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..messages import Messages, clean_text, user
from ..scoring.gsm8k import extract, normalize
from ..task import Split, Task, TaskError
from ..text import quoted
from .sources import Reader
from .word_problems import LEVELS, GeneratedMath

#: Put after a question that does not say how to answer. Short, so that a tiny model can learn to read it.
INSTRUCTION = "End with #### and the number."

_SAYS_HOW = re.compile(r"####|\\boxed|answer is")
_ANNOTATION = re.compile(r"<<[^<>=\n]*=[^<>\n]*>>")


def without_annotations(answer: str) -> str:
    """A worked answer as one would write it, without GSM8K's ``<<48/2=24>>`` calculator notes."""
    return _ANNOTATION.sub("", answer)


def says_how(text: object) -> bool:
    r"""Whether ``text`` says how to answer: it has ``####``, ``\boxed`` or "answer is", as verl's rows have."""
    return _SAYS_HOW.search(str(text)) is not None


def with_instruction(prompt: Messages, instruction: str | None = INSTRUCTION) -> Messages:
    """``prompt`` with ``instruction`` after its last message, unless the prompt says how to answer."""
    if not instruction or any(says_how(message["content"]) for message in prompt):
        return prompt
    *before, last = prompt
    return (*before, {**last, "content": f"{last['content']} {instruction}"})


def from_pair(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """A task from a row in GSM8K's shape; its prompt is the bare question.

    Args:
        row: Needs ``question`` and ``answer``, both text. Its own ``data_source``, where it is text, goes before the
            argument; other columns are left out.
        key: The task's key.
        where: Named in errors, for example ``row 7``.
        data_source: The task's data source.

    Raises:
        TaskError: A column is missing or not text, or the answer has no last ``#### N``.
    """
    for column in ("question", "answer"):
        if column not in row:
            missing = "reward_model" if "prompt" in row else column  # a row with a prompt is one of verl's
            raise TaskError(f"{where}: column {missing!r} is missing; the row has {sorted(map(str, row))}")
        if not isinstance(row[column], str):
            raise TaskError(f"{where}: column {column!r} must be text, not {type(row[column]).__name__}")
        if not row[column].strip():
            raise TaskError(f"{where}: column {column!r} is empty")
    own = row.get("data_source")
    question, answer = clean_text(row["question"]).strip(), clean_text(row["answer"]).strip()
    truth = extract(answer, "strict")
    if truth is None:
        raise TaskError(f"{where}: column 'answer' has no '#### N' with the final number; it ends in {answer[-40:]!r}")
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=(user(question),),
        ground_truth=truth,
        ability="math",
        extra={"question": question, "answer": answer},
    )


def problem_with(task: Task) -> str | None:
    """Why ``task`` cannot be scored as a GSM8K problem, or ``None`` when it can."""
    gold = normalize(task.ground_truth)
    if gold is None:
        return f"column 'reward_model': ground_truth {quoted(task.ground_truth)} is not a number"
    answer = task.extra.get("answer")
    if answer is None:
        return None
    if not isinstance(answer, str):
        return f"column 'extra_info': answer must be text, not {type(answer).__name__}"
    stated = extract(answer, "strict")
    if stated is not None and stated != gold:
        return f"column 'extra_info': the worked answer ends in {stated}, but ground_truth is {gold}"
    return None


def generated(level: str, split: Split, seed: int) -> GeneratedMath:
    """Word problems of a level."""
    return GeneratedMath(level, seed, split)  # type: ignore[arg-type]


#: How the families with word problems read their tasks.
READER = Reader(
    generated,
    LEVELS,
    from_pair,
    "'question' and 'answer'",
    "openai/gsm8k",
    check=problem_with,
    data_source="openai/gsm8k",
)
