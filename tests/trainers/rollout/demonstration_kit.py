"""Tasks, conversations and files for tests of demonstrations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import textenvs
from textenvs import Task, TextEnv
from textenvs.messages import user
from trainers.rollout.demonstrations import Demonstration


def interact(**kwargs: Any) -> TextEnv[Any]:
    return textenvs.make("textenv/gsm8k-interact", **kwargs)


def replies(demonstration: Demonstration) -> list[str]:
    return [message["content"] for message in demonstration.messages if message["role"] == "assistant"]


class Sums:
    """A finite set of sums, so that a demonstration's task can be found again."""

    name = "sums"
    size = 50

    def __getitem__(self, index: int) -> Task:
        answer = {"question": f"{index} + 7?", "answer": f"It is {index + 7}.\n#### {index + 7}"}
        return Task(str(index), "sums", (user(answer["question"]),), ground_truth=str(index + 7), extra=answer)


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), encoding="utf-8")
    return path
