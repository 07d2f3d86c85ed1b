"""Task sets of the collaboration environments: generated goals, and CollabLLM's rows from files and the Hub."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...data.endless import Endless
from ...data.sources import Reader
from ...messages import check_conversation, clean_text, copy_messages, user
from ...scoring.conversation import DOMAINS, Domain
from ...scoring.final_answer import final_answer
from ...task import Split, Task, TaskError, TaskSet
from .draft import LEVELS, Draft, Level
from .tasks import goal_of, test_module

#: One goal in this many is held out for the test split.
_HELD_OUT = 8


def _drafter(domain: str) -> Callable[[random.Random, str], Draft | None]:
    # Imported where it is asked for: the families import this module.
    family = importlib.import_module(f"..collab_{domain}.tasks", __package__)
    return getattr(family, f"draft_{domain}")  # type: ignore[no-any-return]


# What CollabLLM tells its simulated users about the three kinds of task, and how a row's user begins without saying
# anything of its content.
_DESCRIPTIONS = {"math": "question answering", "document": "document editing", "code": "code generation"}
_OPENINGS: Mapping[str, Sequence[str]] = {
    "math": (
        "I need help with a math problem.",
        "Can you help me solve a problem?",
        "I am stuck with a math question.",
    ),
    "document": ("I want to write an article.", "Can you help me write a text?", "I need a text written."),
    "code": ("I need a Python function.", "Can you write some Python code for me?", "I need help with a program."),
}
_ABILITIES = {"math": "math", "document": "writing", "code": "code"}
_COLUMNS = "'prompt' and 'completion', or 'single_turn_prompt' and 'single_turn_completion'"
_NOT_METADATA = {"prompt", "completion", "split", "single_turn_prompt", "single_turn_completion"}
_NOT_METADATA |= {"single_turn_metadata", "conv_id", "score", "turn_id", "sessions", "rewards", "data_source"}


@dataclass(frozen=True)
class GeneratedGoals(Endless):
    """An endless :class:`~textenvs.task.TaskSet` of collaboration tasks.

    Args:
        domain: ``"math"``, ``"document"`` or ``"code"``.
        level: ``"easy"``, ``"medium"`` or ``"hard"``: how much the user holds back (3, 4 and 5 pieces of a problem or
            a function; 3, 5 and 7 of a document).
        seed: Another seed is another sequence of tasks.
        split: ``"train"`` or ``"test"``; the two never share a goal, whatever their seeds.

    Raises:
        ValueError: An unknown domain, level or split, or a seed that is not an integer.
    """

    domain: Domain
    level: Level = "easy"
    seed: int = 0
    split: Split = "train"

    def __post_init__(self) -> None:
        if self.domain not in DOMAINS:
            raise ValueError(f"domain must be one of {', '.join(DOMAINS)}, not {self.domain!r}")
        self.check_choices(LEVELS)

    @property
    def name(self) -> str:
        """Which tasks these are, in a line."""
        return f"generated {self.level} {self.domain} goals ({self.split}, seed {self.seed})"

    def _generate(self, index: int) -> Task:
        key = f"{self.level}/{self.split}/{self.seed}/{index}"
        rng = random.Random(f"collab-{self.domain}/{key}")
        draft = None
        while draft is None or _split_of(draft.content) != self.split:
            draft = _drafter(self.domain)(rng, self.level)
        return Task(
            key=key,
            data_source=f"textenvs/collab-{self.domain}-{self.level}",
            prompt=(user(draft.opening),),
            ground_truth=draft.ground_truth,
            ability=_ABILITIES[self.domain],
            extra={
                **draft.extra,
                "single_turn_prompt": draft.request,
                "task_desc": _DESCRIPTIONS[self.domain],
                "pieces": [piece.to_json() for piece in draft.pieces],
                "level": self.level,
            },
        )


def reader_of(domain: Domain) -> Reader:
    """How the collaboration tasks of a domain are read and generated."""
    return _READERS[domain]


def from_single_turn(domain: Domain, row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    r"""A task from a row that is not in verl's schema.

    Either it is a single-turn row, ``prompt`` and ``completion``, both text; or one of CollabLLM's data, with
    ``single_turn_prompt``, ``single_turn_completion``, ``single_turn_metadata``, and perhaps ``prompt``, the
    conversation so far, which the episode then begins with.

    Args:
        domain: How the reference is read: a solution that ends in ``\boxed{...}`` or ``#### ...``, a document, or code
            with its tests.
        row: The row. Without ``single_turn_metadata`` its other columns are the metadata.
        key: The task's key.
        where: Named in errors, for example ``row 7``.
        data_source: The task's data source where the row has none.

    Raises:
        TaskError: A column is missing or malformed.
    """
    nested = row.get("single_turn_prompt") is not None
    names = ("single_turn_prompt", "single_turn_completion") if nested else ("prompt", "completion")
    texts = []
    for name in names:
        value = row.get(name)
        if value is None:
            raise TaskError(f"{where}: column {name!r} is missing; a row needs {_COLUMNS}; it has {sorted(row)}")
        if not isinstance(value, str) or not value.strip():
            raise TaskError(f"{where}: column {name!r} must be text with something in it")
        texts.append(clean_text(value).strip())
    request, reference = texts
    extra: dict[str, Any] = {"single_turn_prompt": request, "task_desc": _DESCRIPTIONS[domain]}
    metadata = _metadata(row, where)
    if metadata:
        extra["single_turn_metadata"] = metadata
    truth: str | None = reference
    if domain == "math":
        extra["answer"] = reference
        truth = final_answer(reference) or (reference if len(reference) <= 60 else None)
        if truth is None:
            raise TaskError(
                f"{where}: column {names[1]!r} has no final answer in \\boxed{{...}} or after ####; it ends in "
                f"{reference[-40:]!r}"
            )
    if domain == "code" and test_module(metadata, reference) is None:
        raise TaskError(f"{where}: there are no tests in 'test' of the metadata, nor of the reference as JSON")
    if nested and row.get("prompt") is not None:
        try:
            prompt = copy_messages(check_conversation(row["prompt"], "column 'prompt'"))
        except ValueError as error:
            raise TaskError(f"{where}: {error}") from error
        if not prompt or prompt[-1]["role"] != "user":
            raise TaskError(f"{where}: column 'prompt' must end in a user's message, which the assistant replies to")
    else:
        openings = _OPENINGS[domain]
        prompt = (user(openings[hashlib.sha256(request.encode()).digest()[0] % len(openings)]),)
    own = row.get("data_source")
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=prompt,
        ground_truth=truth,
        ability=_ABILITIES[domain],
        extra=extra,
    )


def _metadata(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = row.get("single_turn_metadata")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: column 'single_turn_metadata' is text, but not JSON ({error})") from error
    if given is None:
        given = {name: value for name, value in row.items() if name not in _NOT_METADATA}
    if not isinstance(given, Mapping):
        raise TaskError(f"{where}: column 'single_turn_metadata' must be a mapping, not {type(given).__name__}")
    return dict(given)


def _generated(domain: Domain, level: str, split: Split, seed: int) -> TaskSet:
    return GeneratedGoals(domain, level, seed, split)  # type: ignore[arg-type]


def _problem_with(domain: Domain, task: Task) -> str | None:
    """Why a task cannot be played: a bad row is met when it is read, not in the middle of a run."""
    try:
        goal_of(task, domain)
    except TaskError as error:
        return str(error)
    return None


def _conversation(task: Task) -> str:
    """What is played. CollabLLM's data has a row for every sampled reply to one and the same conversation."""
    return json.dumps([task.prompt, task.extra.get("single_turn_prompt")])


def _split_of(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") % _HELD_OUT == 0 else "train"


def _reader(domain: Domain, example: str) -> Reader:
    return Reader(
        generated=partial(_generated, domain),
        levels=LEVELS,
        row=partial(from_single_turn, domain),
        columns=_COLUMNS,
        example=f"collabllm/collabllm-multiturn-{example}",
        check=partial(_problem_with, domain),
        distinct=_conversation,
    )


_READERS: Mapping[str, Reader] = {
    "math": _reader("math", "math-hard"),
    "document": _reader("document", "medium"),
    "code": _reader("code", "bigcodebench"),
}
