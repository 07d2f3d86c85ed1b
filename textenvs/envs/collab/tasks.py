"""Collaboration tasks: a goal that only the user knows, in pieces that can be told one at a time.

A goal is CollabLLM's *single-turn task*: a complete request with a reference. The user starts with something vague
(the task's prompt) and knows the rest as pieces. They travel in the row's ``extra_info``, next to the fields of
CollabLLM's own rows. Goals are generated, or read from files and the Hub.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, get_args

import pydantic
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter, ValidationError

from ...data.sources import Reader, text_in
from ...messages import Messages, check_conversation, copy_messages, user
from ...scoring.conversation import Domain
from ...scoring.documents import Requirement, Text
from ...task import Endless, Split, Task, TaskError, TaskSet, split_by_hash, split_choices
from ...text import load_yaml

#: What the scripted user says, by occasion; how a talk begins; words that are no keywords.
PHRASES: Mapping[str, Sequence[str]] = load_yaml(__package__, "phrases.yaml")
_STOP_WORDS = frozenset(" ".join(PHRASES["stop_words"]).split())

_WORD = re.compile(r"[^\W\d_]{3,}")
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
# A sentence ends at a mark that white space and something like a beginning follow; "e.g. x" and "2.5" do not end one.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)\s+(?=[A-Z\d\"'(\[$\\`-])")


@pydantic.dataclasses.dataclass(frozen=True)
class Piece:
    """One thing the user knows."""

    topic: Text
    sayings: Annotated[tuple[Text, ...], Field(min_length=1)]  # each says the whole piece
    #: Beginnings of words by which a question asks for it.
    keywords: tuple[Annotated[str, StringConstraints(to_lower=True)], ...] = ()
    question: str = ""  # how one would ask for it; left out, a question with the topic
    requirement: Requirement | None = None  # what a document must be like to respect it

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = _PIECE.dump_python(self, mode="json", exclude_none=True)
        return row


_PIECE = TypeAdapter(Piece)


class Goal(BaseModel, frozen=True):
    """The user's goal: the whole request, the kind of task, and the pieces to tell.

    The fields have the names of CollabLLM's rows. ``name`` is that of the user; verl's recipe writes the second.
    """

    name: Literal["collab", "collabllm"] = "collab"
    single_turn_prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    task_desc: str = ""
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1)]
    told: tuple[Annotated[int, Field(ge=0)], ...] = ()  # the pieces that the opening tells, by their numbers from 0

    @pydantic.model_validator(mode="after")
    def _check_told(self) -> Self:
        if len(set(self.told)) < len(self.told) or max(self.told, default=0) >= len(self.pieces):
            raise ValueError(f"told must be different numbers of pieces, from 0 to {len(self.pieces) - 1}")
        return self

    def __deepcopy__(self, memo: object = None) -> Self:
        return self  # nothing in it changes


@pydantic.dataclasses.dataclass(frozen=True)
class Draft:
    """A task before it is a row. Its ``content`` is what it is apart from its wording, which decides its split."""

    opening: str  # vague: nothing of the pieces
    request: str
    pieces: tuple[Piece, ...]
    ground_truth: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def begin(rng: random.Random, wants: Sequence[str]) -> str:
    """Return a vague first message: perhaps a word of greeting, and one of ``wants``."""
    return f"{rng.choice(PHRASES['beginning'])} {rng.choice(wants)}".strip()


def draw_opening(
    rng: random.Random, draft: Draft, split: Split, *, complete: float = 1 / 6, partial: float = 1 / 6
) -> tuple[str, tuple[int, ...]]:
    """Draw which pieces the opening tells already: all, some, or mostly none; return the opening and their numbers.

    An opening that tells something may hold a sentence that has no part in the goal, so that counting is not reading.
    """
    count, chance = len(draft.pieces), rng.random()
    if chance >= complete + partial:
        return draft.opening, ()
    some = count if chance < complete else rng.randint(1, count - 1)
    numbers = tuple(sorted(rng.sample(range(count), some)))
    sentences = [rng.choice(draft.pieces[number].sayings) for number in numbers]
    for aside in rng.sample(split_choices(PHRASES["asides"], split), rng.choice((0, 0, 1, 1, 2))):
        sentences.insert(rng.randint(0, len(sentences)), aside.format(n=rng.randint(2, 60)))
    return " ".join([draft.opening, *sentences]), numbers


def draw_sayings(
    split: Split, rng: random.Random, entry: Mapping[str, Any], frames: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a piece as YAML files have it with three sayings of a split's, drawn from its own and from ``frames``."""
    sayings = [*split_choices(entry["sayings"], split), *(split_choices(frames, split) if frames else ())]
    return {**entry, "sayings": rng.sample(sayings, min(3, len(sayings)))}


def piece_of(entry: Mapping[str, Any], requirement: Requirement | None = None, **values: object) -> Piece:
    """Return a piece as YAML files have it, with the values of its sayings filled in."""
    sayings = tuple(saying.format(**values) for saying in entry["sayings"])
    return Piece(entry["topic"], sayings, tuple(entry["keywords"].split()), entry["question"], requirement)


def goal_of(task: Task, split: Callable[[str, str], tuple[Piece, ...]]) -> Goal:
    """Return the goal of a row, in its ``extra_info`` or, as verl's recipe has it, in ``interaction_kwargs`` there."""
    where = f"task {task.key}: extra_info"
    options = task.extra.get("interaction_kwargs") or {}
    if not isinstance(options, Mapping):
        raise TaskError(f"{where}.interaction_kwargs must be a mapping with a 'name', not {type(options).__name__}")
    names = ("single_turn_prompt", "task_desc", "pieces", "told")
    fields = {name: task.extra[name] for name in names if task.extra.get(name) is not None}
    fields |= options
    try:
        if fields.get("pieces") is None and isinstance(request := fields.get("single_turn_prompt"), str):
            fields["pieces"] = split(request, str(task.ground_truth))
        return Goal.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise TaskError(f"{where}{place}: {first['msg']}; a row holds the user's goal there") from error


def split_request(prompt: str, reference: str = "") -> tuple[Piece, ...]:
    """Split a request that comes without pieces into its sentences, with fenced code and paragraphs apart.

    Topics and keywords are a sentence's longer words; a sentence without any, which no question could be about, belongs
    to the one before.
    """
    parts: list[str] = []
    for number, block in enumerate(_blocks(prompt)):
        if number % 2:
            parts.append(block)
        else:
            paragraphs = re.split(r"\n\s*\n", block)
            parts.extend(sentence for paragraph in paragraphs for sentence in _SENTENCE_END.split(paragraph))
    texts: list[str] = []
    for part in filter(None, map(str.strip, parts)):
        if texts and not (keywords_of(part) and keywords_of(texts[-1])):
            texts[-1] += f"\n{part}"
        else:
            texts.append(part)
    return tuple(map(_piece, texts))


def keywords_of(text: str) -> tuple[str, ...]:
    """Return beginnings of the words by which a question can ask for ``text``, without the most common words."""
    stems = (word if len(word) <= 5 else word[: max(5, len(word) - 2)] for word in content_words(text))
    return tuple(dict.fromkeys(stems))


def _piece(text: str) -> Piece:
    first = [word for word in _WORD.findall(text) if word.lower() not in _STOP_WORDS][:3]
    return Piece(" ".join(first) or text[:20], (text,), keywords_of(text))


def content_words(text: str) -> list[str]:
    """Return the words of ``text`` in lower case, without the most common ones and those of one or two letters."""
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _blocks(text: str) -> list[str]:
    """Return text and fenced code by turns, the fences with the code; an open fence runs to the end."""
    marks = [match.start() for match in _FENCE.finditer(text)]
    blocks, position = [], 0
    for opening, closing in zip(marks[::2], [*marks[1::2], None], strict=False):
        end = len(text) if closing is None else (text.find("\n", closing) + 1 or len(text))
        blocks += [text[position:opening], text[opening:end]]
        position = end
    return [*blocks, text[position:]]


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
    """The description of a family's tasks. Its functions belong to modules, so it can be sent to other processes."""

    domain: Domain
    description: str  # what CollabLLM tells its simulated users about this kind of task
    ability: str  # that verl's schema names
    openings: Sequence[str]  # how a row's user begins without saying anything of its content
    example: str  # the last part of the name of CollabLLM's own data set
    #: Draws a task of a level with the wordings of a split; ``None`` where what was drawn makes none.
    draft: Callable[[random.Random, str, Split], Draft | None]
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
            check=self.goal,
            distinct=_conversation,
            shape=f"collab-{self.domain}",
        )

    def from_single_turn(self, row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
        """Return a task from a row that is not in verl's schema; ``where`` is named in errors.

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


@dataclass(frozen=True)
class GeneratedGoals(Endless):
    """An endless :class:`~textenvs.task.TaskSet`. The splits never share a goal or a wording, whatever their seeds.

    Two thirds of the openings are vague, a sixth tell some of the pieces and a sixth all of them.
    """

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
        while draft is None or split_by_hash(draft.content, _HELD_OUT) != self.split:
            draft = self.family.draft(rng, self.level, self.split)
        opening, disclosed = draw_opening(rng, draft, self.split)
        extra = {
            **draft.extra,
            "single_turn_prompt": draft.request,
            "task_desc": self.family.description,
            "pieces": [piece.to_json() for piece in draft.pieces],
            "told": list(disclosed),
            "level": self.level,
        }
        source = f"textenvs/collab-{domain}-{self.level}"
        return Task(key, source, (user(opening),), draft.ground_truth, self.family.ability, extra=extra)


def _metadata(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    metadata = row.get("single_turn_metadata")
    if metadata is None:
        metadata = {name: value for name, value in row.items() if name not in _NOT_METADATA}
    if isinstance(metadata, str):
        try:
            metadata = json.loads(metadata)
        except json.JSONDecodeError as error:
            raise TaskError(f"{where}: column 'single_turn_metadata' is text, but not JSON ({error})") from error
    if not isinstance(metadata, Mapping):
        raise TaskError(f"{where}: column 'single_turn_metadata' must be a mapping, not {type(metadata).__name__}")
    return dict(metadata)


def _conversation(task: Task) -> str:
    """Return the identity of what is played. CollabLLM's data has a row for every sampled reply to a conversation."""
    return json.dumps([task.prompt, task.extra.get("single_turn_prompt")])
