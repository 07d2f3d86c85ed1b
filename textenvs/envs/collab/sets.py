"""Tasks of the collaboration environments: generated goals, and CollabLLM's rows from files and the Hub."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ...data.endless import Endless
from ...data.sources import Reader, text_in
from ...messages import Messages, check_conversation, copy_messages, user
from ...scoring.conversation import Domain
from ...task import Split, Task, TaskError, TaskSet
from .tasks import Draft, Goal, Piece, goal_of, split_request

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[str, ...] = get_args(Level)

#: One goal in this many is held out for the test split.
_HELD_OUT = 8

_COLUMNS = "'prompt' and 'completion', or 'single_turn_prompt' and 'single_turn_completion'"
_NOT_METADATA = {"prompt", "completion", "split", "single_turn_prompt", "single_turn_completion"}
_NOT_METADATA |= {"single_turn_metadata", "conv_id", "score", "turn_id", "sessions", "rewards", "data_source"}


def _whole(reference: str, metadata: Mapping[str, Any]) -> str:
    return reference


@dataclass(frozen=True)
class Family:
    """What a family says of its tasks. Its functions belong to modules, so it can be sent to other processes."""

    domain: Domain
    description: str  # what CollabLLM tells its simulated users about this kind of task
    ability: str  # that verl's schema names
    openings: Sequence[str]  # how a row's user begins without saying anything of its content
    example: str  # the last part of the name of CollabLLM's own data set
    #: Draws a task of a level; ``None`` where what was drawn makes none.
    draft: Callable[[random.Random, str], Draft | None]
    #: Makes pieces of a request and its reference, for rows without any.
    split: Callable[[str, str], tuple[Piece, ...]] = split_request
    #: From a row's reference and metadata to what a delivery is scored against, or a ``ValueError``.
    gold: Callable[[str, Mapping[str, Any]], str] = _whole

    def goal(self, task: Task) -> Goal:
        return goal_of(task, self.split)

    @property
    def reader(self) -> Reader:
        return Reader(
            generated=self._generated,
            levels=LEVELS,
            row=self.from_single_turn,
            columns=_COLUMNS,
            example=f"collabllm/collabllm-multiturn-{self.example}",
            check=self._problem_with,
            distinct=_conversation,
        )

    def from_single_turn(self, row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
        """A task from a row that is not in verl's schema; ``where`` is named in errors.

        Either it is a single-turn row, ``prompt`` and ``completion``, both text, whose other columns are its metadata;
        or one of CollabLLM's data, with ``single_turn_prompt``, ``single_turn_completion``, ``single_turn_metadata``,
        and perhaps ``prompt``, the conversation so far, which the episode then begins with.
        """
        nested = row.get("single_turn_prompt") is not None
        names = ("single_turn_prompt", "single_turn_completion") if nested else ("prompt", "completion")
        request, reference = (text_in(row, name, where) for name in names)
        metadata = _metadata(row, where)
        try:
            truth = self.gold(reference, metadata)
        except ValueError as error:
            raise TaskError(f"{where}: column {names[1]!r} {error}") from error
        extra: dict[str, Any] = {"single_turn_prompt": request, "task_desc": self.description}
        if metadata:
            extra["single_turn_metadata"] = metadata
        if truth != reference:
            extra["answer"] = reference
        prompt: Messages = (user(self.openings[hashlib.sha256(request.encode()).digest()[0] % len(self.openings)]),)
        if nested and row.get("prompt") is not None:
            try:
                prompt = copy_messages(check_conversation(row["prompt"], "column 'prompt'"))
            except ValueError as error:
                raise TaskError(f"{where}: {error}") from error
            if not prompt or prompt[-1]["role"] != "user":
                raise TaskError(f"{where}: column 'prompt' must end in a user's message, to be replied to")
        return Task(key, data_source, prompt, truth, self.ability, extra=extra)

    def _generated(self, level: str, split: Split, seed: int) -> TaskSet:
        return GeneratedGoals(self, level, seed, split)

    def _problem_with(self, task: Task) -> str | None:
        try:
            self.goal(task)
        except TaskError as error:
            return str(error)
        return None


@dataclass(frozen=True)
class GeneratedGoals(Endless):
    """An endless :class:`~textenvs.task.TaskSet`. The splits never share a goal, whatever their seeds."""

    family: Family
    level: str = "easy"
    seed: int = 0
    split: Split = "train"

    levels = LEVELS

    @property
    def name(self) -> str:
        return f"generated {self.level} {self.family.domain} goals ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        domain, key = self.family.domain, f"{self.level}/{self.split}/{self.seed}/{index}"
        rng = random.Random(f"collab-{domain}/{key}")
        draft = None
        while draft is None or _split_of(draft.content) != self.split:
            draft = self.family.draft(rng, self.level)
        extra = {
            **draft.extra,
            "single_turn_prompt": draft.request,
            "task_desc": self.family.description,
            "pieces": [piece.to_json() for piece in draft.pieces],
            "level": self.level,
        }
        source = f"textenvs/collab-{domain}-{self.level}"
        return Task(key, source, (user(draft.opening),), draft.ground_truth, self.family.ability, extra=extra)


def _metadata(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = row.get("single_turn_metadata")
    if given is None:
        given = {name: value for name, value in row.items() if name not in _NOT_METADATA}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: column 'single_turn_metadata' is text, but not JSON ({error})") from error
    if not isinstance(given, Mapping):
        raise TaskError(f"{where}: column 'single_turn_metadata' must be a mapping, not {type(given).__name__}")
    return dict(given)


def _conversation(task: Task) -> str:
    """What is played. CollabLLM's data has a row for every sampled reply to one and the same conversation."""
    return json.dumps([task.prompt, task.extra.get("single_turn_prompt")])


def _split_of(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"
