"""Questions of fact with a search tool: the policy searches, reads, and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ...data.sources import Reader, Source, open_source
from ...env import EpisodeState, Turn
from ...messages import Message, clean_text, user
from ...options import check_charge, check_gain
from ...scoring.qa import exact_match, f1, stated_answer
from ...task import Split, Task, TaskError, TaskSet
from ...text import quoted
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.jsontext import read_object
from ...tools.search import Corpus, search_tool
from ...tools.toolbox import ToolResult
from .tasks import LEVELS, GeneratedQuestions, WorldLevel

#: The tool's name.
TOOL = "search"

#: What the policy is told by default.
SYSTEM_PROMPT = f'Use the tool {TOOL} to find out. Then end with "Answer: " and the answer in a few words.'

SCORES = {"em": exact_match, "f1": f1}

_COLUMNS = "'question' and 'answer' (text, or a list of right answers)"


@dataclass
class SearchState(ToolState):
    """What was searched for; the scripted expert goes by it."""

    searched: tuple[str, ...] = ()


class SearchQA(ToolEnv[SearchState]):
    """One question, and a tool ``search`` over a corpus; the reply with a line ``Answer: ...`` ends the episode.

    ``stop`` is then ``"solved"`` (an exact match) or ``"wrong"``. A reply with neither a call nor an answer is told so,
    and costs only a turn. Two terms of reward: ``correct``, times the answer's score, and ``calls``, which is
    ``call_cost`` for every call. ``info["metrics"]`` has ``em`` and ``f1``, whichever is rewarded.

    Generated questions are about an invented world, whose pages are the corpus; rows of files and of the Hub need a
    ``corpus`` of their own. Searching needs the extra ``search``.

    Args:
        tasks: ``None`` for generated questions; a ``.jsonl`` or ``.parquet`` file with ``question`` and ``answer`` (or
            ``answers``, ``golden_answers``), or in verl's schema; ``"hub:REPOSITORY"``; a sequence of these; or a task
            set.
        level: ``"easy"``, ``"medium"``, ``"hard"``; see :class:`~textenvs.envs.search_qa.tasks.GeneratedQuestions`.
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which generated world. (Episodes are seeded by ``reset``.)
        corpus: What is searched: the path of a ``.jsonl`` or ``.parquet`` file with ``id``, ``title`` and ``text``, or
            a :class:`~textenvs.tools.search.Corpus`; ``None`` for the pages of the generated world.
        top_k: How many documents a search shows.
        snippet_chars: How many characters of each.
        score: What ``correct`` is multiplied by: ``"em"`` (exact match, 0 or 1) or ``"f1"`` (the words in common).
        correct: The reward of a right answer; above 0.
        call_cost: Added for every call; at most 0.
        call_format: As in :class:`~textenvs.tool_env.ToolEnv`, and so are the other options.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tool; ``None`` for nothing.
        **options: ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``.

    Raises:
        ValueError: Both ``tasks`` and ``level``; rows without a corpus, or a corpus without rows; or a value outside
            the above.
        TaskError: Rows or documents that cannot be used, listed by file, row and column.
        ImportError: A library is not installed; the message names the extra.
    """

    state_type: ClassVar[type[EpisodeState]] = SearchState
    term_names = ("correct", "calls")

    def __init__(
        self,
        tasks: Source = None,
        *,
        level: WorldLevel | None = None,
        split: Split = "train",
        seed: int = 0,
        corpus: Corpus | str | Path | None = None,
        top_k: int = 3,
        snippet_chars: int = 400,
        score: Literal["em", "f1"] = "em",
        correct: float = 1.0,
        call_cost: float = 0.0,
        call_format: str = "hermes",
        max_assistant_turns: int | None = 6,
        system_prompt: str | None = SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        check_gain("correct", correct)
        check_charge("call_cost", call_cost)
        if score not in SCORES:
            raise ValueError(f"score must be one of {', '.join(SCORES)}, not {score!r}")
        opened = open_source(tasks, READER, level=level, split=split, seed=seed)
        super().__init__(
            opened,
            [search_tool(_corpus(opened, corpus), name=TOOL, top_k=top_k, snippet_chars=snippet_chars)],
            call_format=call_format,
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.score = score
        self.correct, self.call_cost = float(correct), float(call_cost)

    def opening(self, task: Task) -> Sequence[Message]:
        """The row's prompt, once its answers are known to be texts."""
        answers_of(task)
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        """Bring back what was found, and charge for the calls."""
        found = [read_object(result.call["function"]["arguments"])["query"] for result in results if result.ok]
        self.state.searched += tuple(found)
        terms = self.terms(calls=self.call_cost * len(results))
        return Turn(self.tool_messages(results), terms=terms, metrics=_metrics(None, ()))

    def answer(self, reply: Message) -> Turn:
        """Judge the answer that ends the episode; ask for one where there is none."""
        task = self.state.task
        assert task is not None
        given, truths = stated_answer(self.said(reply)), answers_of(task)
        metrics = _metrics(given, truths)
        if given is None:
            text = f'Use {TOOL}, or end with "Answer: " and the answer.'
            return Turn([user(text)], terms=self.terms(), metrics=metrics)
        return Turn(
            terminated=True,
            stop="solved" if metrics["em"] else "wrong",
            terms=self.terms(correct=self.correct * metrics[self.score]),
            metrics=metrics,
        )

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """The question's searches that were not made yet, one a turn; then the answer."""
        task = self.state.task
        assert task is not None
        searches: Any = task.extra.get("searches") or ()
        left = [str(query) for query in searches if str(query) not in self.state.searched]
        if left:
            return self.format.write("", [call(TOOL, query=left[0])])
        return self.format.write(f"Answer: {answers_of(task)[0]}")

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """The right answer to another question, without a search."""
        task = self.state.task
        assert task is not None
        size = self.tasks.size or 1000
        index = int(rng.integers(size))
        others = (answers_of(self.tasks[i % size])[0] for i in range(index, index + 3))
        wrong = next((other for other in others if other not in answers_of(task)), "I do not know")
        return self.format.write(f"Answer: {wrong}")

    def secrets(self) -> Sequence[str]:
        """Every right answer."""
        return () if self.state.task is None else answers_of(self.state.task)


def answers_of(task: Task) -> tuple[str, ...]:
    """The right answers of a row: its ground truth, a text or several.

    Rows made for Search-R1 have them in a mapping, as ``{"target": [...]}``.

    Raises:
        TaskError: The ground truth is something else.
    """
    truth = task.ground_truth
    if isinstance(truth, Mapping):
        truth = truth.get("target")
    answers = (truth,) if isinstance(truth, str) else tuple(truth) if isinstance(truth, (list, tuple)) else ()
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise TaskError(
            f"task {task.key}: ground_truth {quoted(task.ground_truth)} is no answer, and no list of answers"
        )
    return answers


def from_question(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """A task from a row with ``question`` and ``answer``, ``answers`` or ``golden_answers``.

    Args:
        row: The row.
        key: The task's key.
        where: Named in errors, for example ``row 7``.
        data_source: The task's data source, where the row has none.

    Raises:
        TaskError: A column is missing or malformed.
    """
    question = row.get("question")
    given = next((row[name] for name in ("golden_answers", "answers", "answer") if row.get(name) is not None), None)
    if question is None or given is None:
        raise TaskError(f"{where}: a row needs {_COLUMNS}; this one has {sorted(map(str, row))}")
    if not isinstance(question, str) or not question.strip():
        raise TaskError(f"{where}: column 'question' must be text with something in it")
    if isinstance(given, Mapping):  # SQuAD's: {"text": [...], "answer_start": [...]}
        given = given.get("text")
    answers = [given] if isinstance(given, str) else given
    if not isinstance(answers, (list, tuple)) or not answers or not all(isinstance(each, str) for each in answers):
        raise TaskError(f"{where}: the answer must be text, or a list of at least one text")
    if not all(each.strip() for each in answers):
        raise TaskError(f"{where}: an answer is empty")
    own = row.get("data_source")
    cleaned = [clean_text(each).strip() for each in answers]
    return Task(
        key=key,
        data_source=own if isinstance(own, str) and own else data_source,
        prompt=(user(clean_text(question).strip()),),
        ground_truth=cleaned[0] if len(cleaned) == 1 else cleaned,
        ability="search",
    )


def _generated(level: str, split: Split, seed: int) -> GeneratedQuestions:
    return GeneratedQuestions(level, seed, split)  # type: ignore[arg-type]


READER = Reader(_generated, LEVELS, from_question, _COLUMNS, "hotpotqa/hotpot_qa:distractor")

# The pages of generated worlds, indexed once a process.
_worlds: dict[GeneratedQuestions, Corpus] = {}


def _corpus(tasks: TaskSet, given: Corpus | str | Path | None) -> Corpus | str | Path:
    if isinstance(tasks, GeneratedQuestions):
        if given is not None:
            raise ValueError("corpus is for rows of your own: generated questions are about generated pages")
        if tasks not in _worlds:
            _worlds[tasks] = Corpus(tasks.documents, name=tasks.name)
        return _worlds[tasks]
    if given is None:
        raise ValueError(f"{tasks.name}: name the documents to search with corpus=, a .jsonl or .parquet file")
    return given


def _metrics(given: str | None, truths: Sequence[str]) -> dict[str, float]:
    return {
        "answered": float(given is not None),
        "em": 0.0 if given is None else exact_match(given, truths),
        "f1": 0.0 if given is None else f1(given, truths),
    }
