"""A program under way: a function in a thread, or a command in a process group and a folder of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ...gateway.channel import Channel, Ended
from ...task import Task
from ...text import excerpt
from .command import LAST_WORDS, Command, CommandSettings, ProgramError

#: What asyncio says where a library keeps the connections of an earlier episode.
_LOOP_WORDS = ("Event loop is closed", "different loop", "different event loop")
_LOOP_HINT = (
    ". An asynchronous agent has an event loop of its own in each episode: create its client there, and close it"
)


class Program(Protocol):
    """A program that runs; ``stop`` may come twice, from anywhere."""

    def files(self) -> Path | None:
        """Return the folder with a command's files; ``None`` for a function. It may be called once."""

    def stop(self) -> None: ...


#: Columns that data sets have the answer in.
_ANSWERS = ("answer", "ground_truth", "solution")


def without_answer(task: Task) -> Task:
    """Return a task as a program may see it whose result a scorer judges."""
    return replace(task, ground_truth=None, extra={k: v for k, v in task.extra.items() if k not in _ANSWERS})


def task_fields(task: Task) -> dict[str, Any]:
    """Return a task as a command gets it in JSON."""
    return {
        "key": task.key,
        "data_source": task.data_source,
        "question": task.question,
        "prompt": [dict(message) for message in task.prompt],
        "extra": dict(task.extra),
        **({} if task.ground_truth is None else {"ground_truth": task.ground_truth}),
    }


def last_words(error: BaseException) -> str:
    """Return an exception of a program in words: its type, message and place."""
    if isinstance(error, ProgramError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    try:
        text = str(error)
    except Exception:
        text = "it cannot be written"
    hint = _LOOP_HINT if isinstance(error, RuntimeError) and any(words in text for words in _LOOP_WORDS) else ""
    return f"it raised {type(error).__name__}: {excerpt(text, LAST_WORDS)}{place}{hint}"


# ------------------------------------------------------------------ functions


class FunctionProgram:
    """A plain or asynchronous function in a thread of its own, which nothing can stop but its next call of the model.

    An asynchronous one has an event loop of its own: whatever it blocks, the gateway goes on.
    """

    def __init__(self, function: Callable[..., Any], task: Task, url: str, channel: Channel) -> None:
        arguments = (function, channel, task, url, channel.key)
        threading.Thread(target=_call, args=arguments, name="textenvs-agent", daemon=True).start()

    def files(self) -> None:
        return None

    def stop(self) -> None:
        """Return: the session has ended, so the function's next call of the model raises."""


def _call(function: Callable[..., Any], channel: Channel, *arguments: Any) -> None:
    try:
        result = function(*arguments)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except BaseException as error:  # SystemExit is an end, too
        channel.program_ended(Ended(error=error))
    else:
        channel.program_ended(Ended(result))


async def _awaited(value: Any) -> Any:
    return await value


# ------------------------------------------------------------------ commands


class CommandProgram(Command):
    """A command for one task.

    Raises:
        ProgramError: It cannot be started.
    """

    def __init__(self, settings: CommandSettings, fields: Mapping[str, Any], url: str, channel: Channel) -> None:
        task = json.dumps(fields, ensure_ascii=False, default=str)
        super().__init__(settings, url, channel.key, lambda error: channel.program_ended(Ended(error=error)), task=task)
