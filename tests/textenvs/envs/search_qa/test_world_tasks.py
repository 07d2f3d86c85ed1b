"""The invented worlds: their pages answer the questions, every task has another, and splits share no name."""

import re
from collections import defaultdict

import pytest

from textenvs.envs.search_qa.tasks import LEVELS, GeneratedQuestions, documents_of, make_world
from textenvs.task import Task, TaskError

KINDS = {"easy": {"one hop"}, "medium": {"one hop", "two hops"}, "hard": {"two hops", "comparison"}}
PAGES = {"easy": 24, "medium": 36, "hard": 48}


def worlds(level, count=60):
    return [make_world(level, "train", 0, index) for index in range(count)]


@pytest.mark.parametrize("level", LEVELS)
def test_worlds_match_their_level(level):
    drawn = worlds(level)
    assert {world.question.kind for world in drawn} == KINDS[level]
    for world in drawn:
        titles = [document.title for document in world.documents]
        assert len(set(titles)) == len(titles) == PAGES[level]
        assert len({document.id for document in world.documents}) == len(titles)


@pytest.mark.parametrize("level", LEVELS)
def test_pages_of_the_searches_answer_the_question(level):
    for world in worlds(level):
        page, question = {document.title: document.text for document in world.documents}, world.question
        pages = [page[title] for title in question.searches]
        assert question.searches[0] in question.text
        assert question.answer.lower() not in question.text.lower()
        if question.kind == "comparison":
            years = [int(re.search(r"\d{3,4}", text)[0]) for text in pages]
            assert int(question.answer) == abs(years[0] - years[1]) > 0
        else:
            assert question.answer in pages[-1]
        if question.kind == "two hops":
            assert question.searches[1] in pages[0]
            assert question.searches[1] not in question.text  # the second page has to be found


def test_repeated_names_have_different_facts():
    pages = defaultdict(list)
    for world in worlds("easy", 150):
        for document in world.documents:
            pages[document.title].append(document.text)
    repeated = [texts for texts in pages.values() if len(texts) > 1]
    assert len(repeated) > 100
    assert all(len(set(texts)) == len(texts) for texts in repeated)


def test_splits_share_no_name():
    names = {
        split: {
            document.title
            for level in LEVELS
            for seed in (0, 1)
            for index in range(8)
            for document in make_world(level, split, seed, index).documents
        }
        for split in ("train", "test")
    }
    assert len(names["train"]) > 200
    assert not names["train"] & names["test"]


def test_world_is_a_function_of_its_task():
    one = GeneratedQuestions()[3]
    make_world.cache_clear()
    again = Task.from_row(GeneratedQuestions()[3].to_row(), key="row")
    assert again.prompt == one.prompt
    assert documents_of(again) == documents_of(one) == make_world("easy", "train", 0, 3).documents
    for other in (GeneratedQuestions()[4], GeneratedQuestions(seed=1)[3], GeneratedQuestions(split="test")[3]):
        assert documents_of(other) != documents_of(one)


@pytest.mark.parametrize("world", ["easy", ["huge", "train", 0, 0], ["easy", "dev", 0, 0], ["easy", "train", "0", 0]])
def test_unknown_world_is_refused(world):
    with pytest.raises(TaskError, match=r"extra_info.world must be \[level, split, seed, index\]"):
        documents_of(Task("k", "d", (), "a", extra={"world": world}))


@pytest.mark.parametrize("level", LEVELS)
def test_splits_share_no_wording(level):
    def wordings(split):
        questions, sentences_seen = set(), set()
        for index in range(25):
            world = make_world(level, split, 0, index)
            names = sorted((document.title for document in world.documents), key=len, reverse=True)
            named = re.compile("|".join(map(re.escape, names)))
            questions.add(named.sub("X", world.question.text))
            # Years and names are values; of the other values a sentence has one, its last words.
            for document in world.documents:
                sentences = named.sub("X", re.sub(r"\d+", "0", document.text)).split(". ")
                sentences_seen |= {sentence.rstrip(".") for sentence in sentences if re.search(r"\b[X0]\b", sentence)}
        return questions, sentences_seen

    (train, pages), (test, test_pages) = wordings("train"), wordings("test")
    assert len(train) > 10 < len(pages)
    assert not train & test
    assert not pages & test_pages
