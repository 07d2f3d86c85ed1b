"""A record of a better model's runs of the same program, as its demonstrations.

The record is a folder of ``textenvs record``: what ``textenvs evaluate --out`` keeps, with the program's own messages
(``call_format="native"``).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...bounded_files import UnreadableFile, read_json_object
from ...data.files import file_rows
from ...messages import Message, Messages, check_conversation, copy_messages
from ...task import Task, TaskError
from ...text import excerpt, plural, quoted
from ...turn import NoDemonstration

MANIFEST, EPISODES = "manifest.json", "episodes.jsonl"
_HINT = "record it again with `textenvs record`"


@dataclass(frozen=True)
class Run:
    """A recorded run: its conversations, and of each of the model's replies the conversation and its place there.

    Other messages of the assistant are the program's own: examples in its prompt, or a history that it wrote anew.
    """

    conversations: tuple[Messages, ...]
    replies: tuple[tuple[int, int], ...]

    def call(self, number: int) -> Messages:
        """Return the messages before a reply."""
        conversation, place = self.replies[number]
        return self.conversations[conversation][:place]

    def reply(self, number: int) -> Message:
        conversation, place = self.replies[number]
        return self.conversations[conversation][place]


class Record:
    """The best solved run of each task in a record's folder.

    Raises:
        ValueError: No such record, or not one of a program's own messages, or no run in it is solved.
    """

    def __init__(self, folder: str) -> None:
        self.path = Path(folder).expanduser().absolute()
        file = self.path / EPISODES
        if not file.is_file():
            raise ValueError(f"{self.path} is no folder that `textenvs record` has written: it has no {EPISODES}")
        stamp = file.stat()
        self._runs = _runs_of(self.path, stamp.st_mtime_ns, stamp.st_size)

    def reply(self, task: Task, number: int, messages: Messages) -> Message:
        """Return the recorded reply to a program's call.

        Args:
            task: The task.
            number: How many replies the program has had.
            messages: The messages of the call.

        Raises:
            NoDemonstration: No run of this task is solved in the record.
            NotImplementedError: The program calls with other messages than in the record.
        """
        run = self._runs.get(task.key)
        if run is None:
            raise NoDemonstration(f"{self.path} has no solved run of task {task.key!r}")
        if len(run.conversations) > 1:
            return self._reply_among(task, number, run, messages)
        if number >= len(run.replies):
            raise self._differs(task, f"call {number + 1} is one more than there were")
        before, now = _parts(run.call(number)), _parts(messages)
        if before != now:
            count = min(len(before), len(now))
            which = next((i for i in range(count) if before[i] != now[i]), count)
            texts = [quoted(parts[which][1], 80) if which < len(parts) else "missing" for parts in (before, now)]
            problem = f"message {which + 1} of the program was {texts[0]} and is {texts[1]} now"
            raise self._differs(task, f"in call {number + 1}, {problem}")
        return run.reply(number)

    def _reply_among(self, task: Task, number: int, run: Run, messages: Messages) -> Message:
        """Return the reply to a call in a run of several conversations, whose calls may come in another order."""
        now = _parts(messages)
        matches = [turn for turn in range(len(run.replies)) if _parts(run.call(turn)) == now]
        if not matches:
            raise self._differs(
                task, f"no call of the record ends with {quoted(now[-1][1], 80)} after the same messages"
            )
        if number in matches:
            return run.reply(number)
        if any(run.reply(turn) != run.reply(matches[0]) for turn in matches):
            raise self._differs(
                task,
                f"its calls come in another order, and to that which ends with {quoted(now[-1][1], 80)} there are "
                "several replies",
            )
        return run.reply(matches[0])

    def _differs(self, task: Task, problem: str) -> NotImplementedError:
        return NotImplementedError(
            f"the program does not do what it did in the record {self.path} of task {task.key!r}: {problem}. It has "
            f"changed, or its replies were others than the recorded ones, or it is not deterministic; {_HINT}"
        )


@functools.lru_cache(maxsize=16)
def _runs_of(folder: Path, modified_ns: int, size: int) -> Mapping[str, Run]:
    """Return the best solved run of each task; the arguments beside ``folder`` tell one version from another."""
    _check_manifest(folder)
    best: dict[str, tuple[tuple[float, int], Run]] = {}
    try:
        for number, row in file_rows(folder / EPISODES, "a recorded episode"):
            if isinstance(row, TaskError):
                continue  # the last line, which is being written
            try:
                if not row["success"]:
                    continue
                worth = (sum(map(float, row["turn_rewards"])), -int(row["assistant_turns"]))
                key, run = str(row["task_key"]), _run(row)
            except (IndexError, KeyError, TypeError, ValueError) as error:
                where = f"{folder / EPISODES} line {number}"
                raise ValueError(f"{where} is no recorded episode: {error}; {_HINT}") from error
            if key not in best or worth > best[key][0]:
                best[key] = worth, run
    except TaskError as error:
        raise ValueError(str(error)) from error
    if not best:
        raise ValueError(f"{folder}: no run of the record is solved, so there is nothing to imitate")
    return {key: run for key, (_, run) in best.items()}


def _check_manifest(folder: Path) -> None:
    try:
        environment = read_json_object(folder / MANIFEST)["environment"]
        env_id, options = environment["id"], environment["options"]
        call_format = options.get("call_format", "hermes")
    except (AttributeError, KeyError, TypeError, UnreadableFile) as error:
        raise ValueError(f"{folder} is no folder that `textenvs record` has written: {excerpt(str(error))}") from error
    if env_id != "textenv/agent":
        raise ValueError(f"{folder} has episodes of {quoted(env_id, 60)}, and not of textenv/agent")
    if call_format != "native":
        raise ValueError(f"{folder} has messages in the call format {quoted(call_format, 60)}: {_HINT}")


def _run(row: Mapping[str, Any]) -> Run:
    turns = int(row["assistant_turns"])
    conversations = tuple(
        copy_messages(check_conversation(messages, "messages"))
        for messages in (*row.get("contexts", ()), row["messages"])
    )
    if len(conversations) > 1:
        replies = [(int(conversation), int(place)) for conversation, place in row["reply_places"]]
    else:  # the program's own are in its opening
        places = [place for place, message in enumerate(conversations[0]) if message["role"] == "assistant"]
        replies = [(0, place) for place in places[-turns:]]
    if not 0 < turns == len(replies):
        raise ValueError(f"it has {plural(len(replies), 'reply', 'replies')} of the assistant for {turns} turns")
    if any(min(conversation, place) < 0 for conversation, place in replies):
        raise ValueError("the place of a reply is a number of at least 0")
    run = Run(conversations, tuple(replies))
    if not all(run.reply(number)["role"] == "assistant" for number in range(turns)):
        raise ValueError("the place of a reply has another message")
    return run


def _parts(messages: Messages) -> list[tuple[str, str]]:
    """Return the role and the content of what the program itself says."""
    return [
        (message["role"], content if isinstance(content := message["content"], str) else json.dumps(content))
        for message in messages
        if message["role"] != "assistant"
    ]
