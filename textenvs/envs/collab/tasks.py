"""Collaboration tasks: a goal that only the user knows, in pieces that can be told one at a time.

A goal is CollabLLM's *single-turn task*: a complete request with a reference. The user starts with something vague
(the task's prompt) and knows the rest as pieces: what each is about, by which words it can be asked for, and how it
may be said. Pieces travel in the row's ``extra_info``, next to the fields of CollabLLM's own rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...task import Task, TaskError

#: What ``interaction_kwargs["name"]`` may call the user of such a row; the second is what verl's recipe writes.
USER_NAMES: tuple[str, ...] = ("collab", "collabllm")

_COMMON = (
    "about above after also and any are because been before being below between both but can could did does doing down "
    "during each every find for from further given had has have having her here hers him his how into its itself just "
    "let more most must not now off once one only other our out over own same shall she should show some such than "
    "that the their them then there these they this those through too two under until upon use used using very was "
    "were what when where which while who whom whose why will with would you your"
)
_STOP_WORDS = frozenset(_COMMON.split())

_WORD = re.compile(r"[^\W\d_]{3,}")
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)
# A sentence ends at a mark that white space and something like a beginning follow; "e.g. x" and "2.5" go on.
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)\s+(?=[A-Z\d\"'(\[$\\`-])")


@dataclass(frozen=True)
class Piece:
    """One thing the user knows.

    Args:
        topic: What it is about, in a word or two.
        sayings: Ways to say it; at least one. Each says the whole piece.
        keywords: Beginnings of words, in lower case, by which a question asks for it.
        question: How one would ask for it; left out, a question with the topic.
        requirement: What a document must be like to respect it (see :mod:`textenvs.scoring.documents`), if anything.
    """

    topic: str
    sayings: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    question: str = ""
    requirement: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The piece as it stands in a row."""
        row: dict[str, Any] = {
            "topic": self.topic,
            "sayings": list(self.sayings),
            "keywords": list(self.keywords),
            "question": self.question,
        }
        if self.requirement is not None:
            row["requirement"] = dict(self.requirement)
        return row

    @classmethod
    def from_json(cls, value: Any, where: str) -> Piece:
        """Read a piece of a row.

        Raises:
            TaskError: It is malformed.
        """
        if not isinstance(value, Mapping):
            raise TaskError(f"{where} must be a mapping with 'topic' and 'sayings', not {type(value).__name__}")
        topic, question = value.get("topic"), value.get("question") or ""
        sayings, keywords = value.get("sayings"), value.get("keywords") or ()
        if not isinstance(topic, str) or not topic.strip() or not isinstance(question, str):
            raise TaskError(f"{where}: 'topic' must be text with something in it, and 'question' text")
        if not _texts(sayings) or not sayings or not all(saying.strip() for saying in sayings):
            raise TaskError(f"{where}: 'sayings' must be a list of at least one text")
        if not _texts(keywords):
            raise TaskError(f"{where}: 'keywords' must be a list of texts")
        requirement = value.get("requirement")
        if requirement is not None and not isinstance(requirement, Mapping):
            raise TaskError(f"{where}: 'requirement' must be a mapping, not {type(requirement).__name__}")
        return cls(topic, tuple(sayings), tuple(word.lower() for word in keywords), question, requirement)


@dataclass(frozen=True)
class Goal:
    """What the user wants.

    Args:
        prompt: The complete request, as it would be put in a single turn.
        pieces: What there is to tell.
        description: What kind of task it is, in a few words, for a simulated user that is a language model.
    """

    prompt: str
    pieces: tuple[Piece, ...]
    description: str = ""


def goal_of(task: Task, split: Callable[[str, str], tuple[Piece, ...]]) -> Goal:
    """The goal of a row.

    It is in ``extra_info``: ``single_turn_prompt`` (there, or in ``interaction_kwargs`` as verl's recipe has it),
    ``task_desc`` and ``pieces``.

    Args:
        task: The row.
        split: Makes pieces of a request and its reference, for rows without any.

    Raises:
        TaskError: The row has no goal, or its pieces are malformed; the message names the field.
    """
    where = f"task {task.key}: extra_info"
    options = task.extra.get("interaction_kwargs") or {}
    if not isinstance(options, Mapping):
        raise TaskError(f"{where}.interaction_kwargs must be a mapping with a 'name', not {type(options).__name__}")
    if (name := options.get("name", USER_NAMES[0])) not in USER_NAMES:
        raise TaskError(f"{where}.interaction_kwargs asks for the user {name!r}; here it can be {USER_NAMES[0]!r}")
    prompt = options.get("single_turn_prompt", task.extra.get("single_turn_prompt"))
    if not isinstance(prompt, str) or not prompt.strip():
        raise TaskError(f"{where} has no 'single_turn_prompt' with the whole request, so the user has no goal")
    description = options.get("task_desc", task.extra.get("task_desc", ""))
    listed = task.extra.get("pieces")
    if listed is None:
        pieces = split(prompt, str(task.ground_truth))
    elif isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
        pieces = tuple(Piece.from_json(value, f"{where}.pieces[{i}]") for i, value in enumerate(listed))
    else:
        raise TaskError(f"{where}.pieces must be a list of at least one piece")
    return Goal(prompt.strip(), pieces, description if isinstance(description, str) else "")


def split_request(prompt: str, reference: str = "") -> tuple[Piece, ...]:
    """The pieces of a request that comes without any: its sentences, with fenced code and paragraphs kept apart.

    The reference is not read. A request of a single sentence is a single piece. Topics and keywords are a sentence's
    longer words; a sentence without any, which no question could be about, belongs to the one before.
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
    return tuple(_piece(text) for text in texts)


def reference_program(reference: Any) -> str:
    """The program of a reference, which in CollabLLM's rows is JSON text with ``answer``, ``test`` and more."""
    answer = _json_object(reference).get("answer")
    return answer if isinstance(answer, str) else str(reference)


def test_module(metadata: Any, reference: Any) -> str | None:
    """The source of the tests of a row of CollabLLM's: in its metadata, or else in its reference."""
    for value in (metadata, _json_object(reference)):
        if isinstance(value, Mapping) and isinstance(value.get("test"), str) and value["test"].strip():
            return str(value["test"])
    return None


def keywords_of(text: str) -> tuple[str, ...]:
    """Beginnings of the words by which a question can ask for ``text``: its words without the most common ones."""
    stems = (word if len(word) <= 5 else word[: max(5, len(word) - 2)] for word in content_words(text))
    return tuple(dict.fromkeys(stems))


def _piece(text: str) -> Piece:
    keywords = keywords_of(text)
    first = [word for word in _WORD.findall(text) if word.lower() not in _STOP_WORDS][:3]
    return Piece(" ".join(first) or text[:20], (text,), keywords)


def _json_object(value: Any) -> Mapping[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError, RecursionError):
            read = json.loads(value)
            return read if isinstance(read, dict) else {}
    return {}


def content_words(text: str) -> list[str]:
    """The words of ``text`` in lower case, without the most common ones and those of one or two letters."""
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _blocks(text: str) -> list[str]:
    """Text and fenced code by turns, the fences with the code; an open fence runs to the end."""
    marks = [match.start() for match in _FENCE.finditer(text)]
    blocks, position = [], 0
    for opening, closing in zip(marks[::2], [*marks[1::2], None], strict=False):
        end = len(text) if closing is None else (text.find("\n", closing) + 1 or len(text))
        blocks += [text[position:opening], text[opening:end]]
        position = end
    return [*blocks, text[position:]]


def _texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, str) for each in value)
