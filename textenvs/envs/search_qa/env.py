"""Questions of fact with a search tool: the policy searches, reads, and answers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ...data.sources import Reader, Source, open_source, text_in
from ...env import EpisodeState, Turn
from ...messages import Message, clean_text, user
from ...options import Cost, Gain, PositiveInt, checked
from ...scoring.qa import exact_match, f1, stated_answer
from ...task import Split, Task, TaskError
from ...text import quoted
from ...tool_env import ToolEnv, ToolState
from ...tools.formats import call
from ...tools.jsontext import read_object
from ...tools.schema import Tool
from ...tools.search import Corpus, Document, SnippetChars, require_bm25s, result_page
from ...tools.toolbox import ToolResult
from .attacks import ATTACKS
from .script import SCRIPT
from .tasks import LEVELS, GeneratedQuestions, WorldLevel, documents_of, twins_of

TOOL = "search"

#: The default system prompt.
SYSTEM_PROMPT = f'Use the tool {TOOL} to find out. Then end with "Answer: " and the answer in a few words.'

_COLUMNS = "'question' and 'answer' (text, or a list of right answers)"


@dataclass
class SearchState(ToolState):
    """An episode with the queries that were searched so far."""

    searched: tuple[str, ...] = ()


class SearchQA(ToolEnv[SearchState]):
    """One question, and a tool ``search`` over a corpus; the reply with a line ``Answer: ...`` ends the episode.

    ``stop`` is then ``"solved"`` (an exact match) or ``"wrong"``. A reply with neither a call nor an answer gets a
    message that says so, and costs only a turn. Two terms of reward: ``correct``, times the answer's score, and
    ``calls``, which is ``call_cost`` for every call. ``info["metrics"]`` has ``em`` and ``f1``, whichever is rewarded.

    Each generated question is about an invented world of its own, whose pages are the corpus; rows of files and of the
    Hub need a ``corpus``. Searching needs the extra ``search``.

    Args:
        tasks: ``None`` for generated questions; a ``.jsonl`` or ``.parquet`` file with ``question`` and ``answer`` (or
            ``answers``, ``golden_answers``), or in verl's schema; ``"hub:REPOSITORY"``; a sequence of these; or a task
            set.
        level: ``"easy"``, ``"medium"``, ``"hard"``; see :class:`~textenvs.envs.search_qa.tasks.GeneratedQuestions`.
        split: ``"train"`` or ``"test"``, of generated and Hub rows.
        seed: Which sequence of generated worlds. (Episodes are seeded by ``reset``.)
        corpus: What is searched: the path of a ``.jsonl`` or ``.parquet`` file with ``id``, ``title`` and ``text``, or
            a :class:`~textenvs.tools.search.Corpus`; ``None`` for the pages of each question's generated world.
        top_k: How many documents a search shows.
        snippet_chars: How many characters of each.
        score: What ``correct`` is multiplied by: ``"em"`` (exact match, 0 or 1) or ``"f1"`` (the words in common).
        correct: The reward of a right answer; above 0.
        call_cost: Added for every call; at most 0.
        max_assistant_turns: How many replies there are; ``None`` for no limit.
        system_prompt: What stands before the description of the tool; ``None`` for nothing.
        **options: ``call_format``, ``max_calls_per_turn``, ``tools_in_prompt``, ``max_user_turns``, ``render_mode``, as
            in :class:`~textenvs.tool_env.ToolEnv`.

    Raises:
        ValueError: Both ``tasks`` and ``level``; rows without a corpus, or a corpus without rows; or a value outside
            the above.
        TaskError: Rows or documents that cannot be used, listed by file, row and column.
        ImportError: A library is not installed; the message names the extra.
    """

    state_type: ClassVar[type[EpisodeState]] = SearchState
    term_names = ("correct", "calls")
    levels = LEVELS
    attack_margin = 0.5
    own_attacks = ATTACKS
    own_script = SCRIPT

    @checked
    def __init__(
        self,
        tasks: Source = None,
        *,
        level: WorldLevel | None = None,
        split: Split = "train",
        seed: int = 0,
        corpus: Corpus | str | Path | None = None,
        top_k: PositiveInt = 3,
        snippet_chars: SnippetChars = 400,
        score: Literal["em", "f1"] = "em",
        correct: Gain = 1.0,
        call_cost: Cost = 0.0,
        max_assistant_turns: int | None = 6,
        system_prompt: str | None = SYSTEM_PROMPT,
        **options: Any,
    ) -> None:
        require_bm25s()
        opened = open_source(tasks, READER, level=level, split=split, seed=seed)
        of_worlds = isinstance(opened, GeneratedQuestions) or documents_of(opened[0]) is not None
        if of_worlds and corpus is not None:
            raise ValueError("corpus is for rows of your own: generated questions are about generated pages")
        if not of_worlds and corpus is None:
            raise ValueError(f"{opened.name}: name the documents to search with corpus=, a .jsonl or .parquet file")
        self.corpus = Corpus.load(corpus) if isinstance(corpus, (str, Path)) else corpus
        search = _SearchOfTask(self.corpus, top_k, snippet_chars)
        super().__init__(
            opened,
            [Tool(search, name=TOOL, max_chars=top_k * (snippet_chars + 300) + 100)],
            max_assistant_turns=max_assistant_turns,
            system_prompt=system_prompt,
            **options,
        )
        self.score, self.correct, self.call_cost = score, correct, call_cost

    def opening(self, task: Task) -> Sequence[Message]:
        answers_of(task)  # or it cannot be played
        if self.corpus is None and documents_of(task) is None:
            raise TaskError(f"task {task.key}: it is about no generated world; name its documents with corpus=")
        return task.prompt

    def after_tools(self, reply: Message, results: Sequence[ToolResult]) -> Turn:
        queries = (read_object(result.call["function"]["arguments"])["query"] for result in results if result.ok)
        self.state.searched += tuple(queries)
        terms = self.terms(calls=self.call_cost * len(results))
        return Turn(self.tool_messages(results), terms=terms, metrics=_metrics(None, ()))

    def answer(self, reply: Message) -> Turn:
        reply_answer, truths = stated_answer(self.visible_reply(reply)), answers_of(self.task)
        metrics = _metrics(reply_answer, truths)
        if reply_answer is None:
            text = f'Use {TOOL}, or end with "Answer: " and the answer.'
            return Turn([user(text)], terms=self.terms(), metrics=metrics)
        return Turn(
            terminated=True,
            stop="solved" if metrics["em"] else "wrong",
            terms=self.terms(correct=self.correct * metrics[self.score]),
            metrics=metrics,
        )

    def twin(self, task: Task) -> Task:
        """Return the question with another right answer, which no document names."""
        return replace(task, ground_truth=f"another than {answers_of(task)[0]}")

    def twin_worlds(self, task: Task) -> Sequence[tuple[str, Sequence[Task]]]:
        """Return, for each fact that a generated question is about, its worlds with other values of that fact."""
        return twins_of(task)

    def demonstration(self, rng: np.random.Generator) -> str | Message:
        """Return the next search of the question that was not made yet; after all of them, the answer."""
        searches: Any = self.task.extra.get("searches") or ()
        remaining = [str(query) for query in searches if str(query) not in self.state.searched]
        if remaining:
            return self.format.write("", [call(TOOL, query=remaining[0])])
        return self.format.write(f"Answer: {answers_of(self.task)[0]}")

    def careless_reply(self, rng: np.random.Generator) -> str | Message:
        """Return the right answer to another question, without a search."""
        size = self.tasks.size or 1000
        index = int(rng.integers(size))
        other_answers = (answers_of(self.tasks[i % size])[0] for i in range(index, index + 3))
        wrong = next((other for other in other_answers if other not in answers_of(self.task)), "I do not know")
        return self.format.write(f"Answer: {wrong}")

    def secrets(self) -> Sequence[str]:
        """Every right answer, until something was searched for: what is found is there to be read."""
        return () if self.state.searched else answers_of(self.task)


@dataclass(frozen=True)
class _SearchOfTask:
    """Searches the environment's corpus, or the pages of the task's own world."""

    corpus: Corpus | None
    top_k: int
    snippet_chars: int

    def __call__(self, query: str, state: SearchState) -> str:  # noqa: D417 (the state is not in the tool's schema)
        """Search the documents by keywords. The best matches come first.

        Args:
            query: A few words that the document should have, such as names.
        """
        assert state.task is not None  # a tool runs inside an episode
        corpus = _indexed(documents_of(state.task) or ()) if self.corpus is None else self.corpus
        return result_page(corpus, query, self.top_k, self.snippet_chars)


@functools.lru_cache(maxsize=64)
def _indexed(documents: tuple[Document, ...]) -> Corpus:
    return Corpus(documents, name="a generated world")


def answers_of(task: Task) -> tuple[str, ...]:
    if answers := _texts(task.ground_truth):
        return answers
    raise TaskError(f"task {task.key}: ground_truth {quoted(task.ground_truth)} is no answer, and no list of answers")


def _texts(truth: Any) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple; empty where an entry is no text or has no characters."""
    if isinstance(truth, Mapping):  # Search-R1's {"target": [...]}, SQuAD's {"text": [...], "answer_start": [...]}
        truth = truth.get("target", truth.get("text"))
    texts = (truth,) if isinstance(truth, str) else tuple(truth) if isinstance(truth, (list, tuple)) else ()
    return texts if all(isinstance(text, str) and text.strip() for text in texts) else ()


def from_question(row: Mapping[str, Any], key: str, where: str, data_source: str) -> Task:
    """Build a task from a row with ``question`` and ``answer``, ``answers`` or ``golden_answers`` (``Reader.row``)."""
    question = text_in(row, "question", where)
    column = next((name for name in ("golden_answers", "answers", "answer") if row.get(name) is not None), None)
    if column is None:
        raise TaskError(f"{where}: a row needs {_COLUMNS}; this one has {sorted(map(str, row))}")
    answers = [clean_text(text).strip() for text in _texts(row[column])]
    if not answers:
        raise TaskError(f"{where}: column {column!r} must be text, or a list of at least one text, none of them empty")
    truth = answers[0] if len(answers) == 1 else answers
    extra = {} if row.get("documents") is None else {"documents": row["documents"]}
    return Task(key, data_source, (user(question),), truth, ability="search", extra=extra)


_EXAMPLE = "hotpotqa/hotpot_qa:distractor"
READER = Reader(GeneratedQuestions, LEVELS, from_question, _COLUMNS, _EXAMPLE, shape="question")


def _metrics(reply_answer: str | None, truths: Sequence[str]) -> dict[str, float]:
    return {
        "answered": float(reply_answer is not None),
        "em": 0.0 if reply_answer is None else exact_match(reply_answer, truths),
        "f1": 0.0 if reply_answer is None else f1(reply_answer, truths),
    }
