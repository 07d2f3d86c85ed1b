"""search-qa: questions can be answered by searching, answers are judged as in SQuAD, and rows bring a corpus."""

import json
import pickle

import numpy as np
import pytest

from textenvs.envs.search_qa.env import SearchQA, answers_of
from textenvs.envs.search_qa.tasks import GeneratedQuestions, documents_of
from textenvs.evaluate.baselines import play_attack
from textenvs.messages import user
from textenvs.task import Rows, Task, TaskError
from textenvs.tools.formats import FORMATS, call
from textenvs.tools.search import Corpus

pytest.importorskip("bm25s", reason="needs the extra 'search'")

rng = np.random.default_rng(0)
PAGES = [{"title": "Alda", "text": "The mayor of Alda is Ove Lind."}, {"title": "Brim", "text": "Brim is old."}]


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.jsonl", *PAGES)


def played(env, *actions):
    env.reset(seed=0)
    for action in actions:
        conversation, reward, _, _, info = env.step(action)
    return conversation, reward, info


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_expert_finds_every_answer(level, split):
    """Every answer of the expert is in a page that a search returned."""
    env = SearchQA(level=level, split=split)
    for index in range(10):
        env.reset(options={"task_index": index})
        total = 0.0
        while not env.state.done:
            conversation, reward, *_, info = env.step(env.demonstration(rng))
            total += reward
        results = " ".join(message["content"] for message in conversation if message["role"] == "tool")
        assert env.task.ground_truth in results or env.task.extra["kind"] == "comparison"  # worked out from two pages
        assert (info["stop"], total) == ("solved", 1.0)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("level", SearchQA.levels)
def test_twins_differ_in_one_sentence_and_the_answer(level, split):
    env = SearchQA(level=level, split=split)
    for index in range(8):
        facts = env.twin_worlds(env.tasks[index])
        assert facts
        for _, tasks in facts:
            assert len(tasks) > 1
            assert len({answers_of(task) for task in tasks}) == len(tasks)
            pages = [{page.id: page.text.split(".") for page in documents_of(task)} for task in tasks]
            for task, twin in zip(tasks[1:], pages[1:], strict=True):
                assert task.prompt == tasks[0].prompt
                changed = [name for name in twin if twin[name] != pages[0][name]]
                assert len(changed) == 1
                both = zip(twin[changed[0]], pages[0][changed[0]], strict=True)
                assert sum(one != other for one, other in both) == 1


@pytest.mark.parametrize("call_format", sorted(FORMATS))
def test_every_call_format_works(call_format):
    env = SearchQA(call_format=call_format, level="medium")
    env.reset(seed=1)
    while not env.state.done:
        *_, info = env.step(env.demonstration(rng))
    assert info["stop"] == "solved"


def test_answers_are_judged_as_in_squad(corpus, tmp_path):
    rows = write(tmp_path / "rows.jsonl", {"question": "Who is the mayor of Alda?", "answer": ["Ove Lind", "O. Lind"]})
    env = SearchQA(rows, corpus=corpus)
    for answer, stop, em, overlap in (
        ("Answer: ove lind.", "solved", 1.0, 1.0),
        ("I looked.\nAnswer: The O Lind", "solved", 1.0, 1.0),
        ("Answer: mayor Ove Lind", "wrong", 0.0, 0.8),
        ("Answer: Mia", "wrong", 0.0, 0.0),
    ):
        _, reward, info = played(env, answer)
        assert (info["stop"], info["metrics"]["em"], info["metrics"]["f1"]) == (stop, em, pytest.approx(overlap))
        assert reward == em
    by_words = SearchQA(rows, corpus=corpus, score="f1", correct=2.0)
    assert played(by_words, "Answer: mayor Ove Lind")[1] == pytest.approx(1.6)
    assert env.secrets() == ("Ove Lind", "O. Lind")


def test_search_costs_and_shows_the_best_page(corpus):
    task = Task("k", "d", (user("Who is the mayor of Alda?"),), {"target": ["Ove Lind"]})
    env = SearchQA(Rows("mine", [task]), corpus=Corpus.load(corpus), top_k=1, call_cost=-0.1)
    search = env.format.write("", [call("search", query="mayor Alda")])
    conversation, reward, info = played(env, search)
    assert (reward, info["terms"]) == (-0.1, {"correct": 0.0, "calls": -0.1})
    assert conversation[-1]["content"] == "[1] Alda\nThe mayor of Alda is Ove Lind."
    conversation, reward, _ = played(env, "It is Ove Lind.")
    assert (reward, conversation[-1]["content"]) == (0.0, 'Use search, or end with "Answer: " and the answer.')
    assert played(env, "Answer: Ove Lind")[1] == 1.0


def test_candidate_lists_earn_little_f1():
    attacks = {attack.name: attack for attack in SearchQA().attacks()}
    for name in ("passage", "list-candidates", "many-answers"):
        assert np.mean([record.total for record in play_attack(lambda: SearchQA(score="f1"), attacks[name], 30)]) < 0.25


def test_row_carries_its_world(tmp_path):
    """The rows of a data file are played without the task set that made them, also beside a row of another world."""
    tasks = GeneratedQuestions("medium")
    for env in (SearchQA(), SearchQA(Rows("mine", [Task.from_row(tasks[5].to_row(), key="row")]))):
        env.reset(seed=0, options={"task": tasks[5].to_row()})
        assert env.task.prompt == tasks[5].prompt
        fork = pickle.loads(pickle.dumps(env))
        for copy in (env, fork):
            while not copy.state.done:
                *_, info = copy.step(copy.demonstration(rng))
            assert info["stop"] == "solved"
        with pytest.raises(TaskError, match="about no generated world"):
            env.reset(options={"task": Task("k", "d", (user("q"),), "a")})


def test_rows_and_corpus_need_each_other(corpus, tmp_path):
    rows = write(tmp_path / "rows.jsonl", {"question": "q", "answer": "a"})
    with pytest.raises(ValueError, match="with corpus="):
        SearchQA(rows)
    with pytest.raises(ValueError, match="generated pages"):
        SearchQA(corpus=corpus)
    with pytest.raises(TaskError, match="no such file"):
        SearchQA(rows, corpus=tmp_path / "absent.jsonl")


@pytest.mark.parametrize(
    ("row", "truth"),
    [
        ({"question": "q", "answer": "a"}, "a"),
        ({"question": "q", "answer": ["a", "b"]}, ["a", "b"]),
        ({"question": "q", "golden_answers": ["a"]}, "a"),
        ({"question": "q", "answers": {"text": ["a", "b"], "answer_start": [0, 1]}}, ["a", "b"]),
    ],
)
def test_rows_of_known_data_sets(corpus, tmp_path, row, truth):
    assert SearchQA(write(tmp_path / "r.jsonl", row), corpus=corpus).tasks[0].ground_truth == truth


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "q"}, "a row needs"),
        ({"answer": "a"}, "column 'question' is missing"),
        ({"question": " ", "answer": "a"}, "column 'question' is empty"),
        ({"question": "q", "answer": []}, "at least one text"),
        ({"question": "q", "answer": [1]}, "at least one text"),
        ({"question": "q", "answer": ["a", " "]}, "none of them empty"),
    ],
)
def test_unusable_rows_are_listed(corpus, tmp_path, row, words):
    with pytest.raises(TaskError, match=f"row 1: .*{words}"):
        SearchQA(write(tmp_path / "r.jsonl", row), corpus=corpus)


def test_invalid_ground_truth_is_refused(corpus):
    env = SearchQA(Rows("mine", [Task("k", "d", (user("q"),), 5)]), corpus=corpus)
    with pytest.raises(TaskError, match="ground_truth 5 is no answer"):
        env.reset(seed=0)
