"""The invented world: questions that its pages answer, in two splits that share no name."""

import re

import pytest

from textenvs.envs.search_qa.tasks import LEVELS, GeneratedQuestions, make_world

KINDS = {"easy": {"one hop"}, "medium": {"one hop", "two hops"}, "hard": {"two hops", "comparison"}}


@pytest.mark.parametrize("level", LEVELS)
def test_a_world_is_what_its_description_says(level):
    tasks = GeneratedQuestions(level)
    world = make_world(level, "train", 0)
    assert {question.kind for question in world.questions} == KINDS[level]
    assert len({question.text for question in world.questions}) == tasks.size > 200
    titles = [document.title for document in tasks.documents]
    assert len(set(titles)) == len(titles) == {"easy": 72, "medium": 120, "hard": 180}[level]
    assert len({document.id for document in tasks.documents}) == len(titles)


@pytest.mark.parametrize("level", LEVELS)
def test_the_pages_that_the_expert_looks_for_answer_the_question(level):
    world = make_world(level, "train", 0)
    page = {document.title: document.text for document in world.documents}
    for question in world.questions:
        pages = [page[title] for title in question.searches]
        if question.kind == "comparison":
            years = [
                int(re.search(r"(?:born in \w+ in|founded in|founded by [\w ]+ in) (\d+)", text)[1]) for text in pages
            ]
            assert question.answer == question.searches[years[1] < years[0]]
            assert years[0] != years[1]
        else:
            assert question.answer in pages[-1]
            if question.kind == "two hops":
                assert question.searches[1] in pages[0]
                assert question.searches[1] not in question.text  # the second page has to be found
                assert question.searches[0] in question.text


def test_the_splits_share_no_name_whatever_the_seed_and_level():
    names = {split: set() for split in ("train", "test")}
    for split in names:
        for level in LEVELS:
            for seed in (0, 1):
                for document in GeneratedQuestions(level, seed, split).documents:
                    names[split].update(
                        re.findall(r"\b(?!The)[A-Z]\w+ \w+ [A-Z]\w+\b|\b[A-Z][a-z]{5,}\b", document.text)
                    )
    common = names["train"] & names["test"]
    assert len(names["train"]) > 300
    adjectives = {"Broken", "Copper", "Distant", "Frozen", "Golden", "Hidden", "Narrow", "Silent"}
    nouns = {"Bridge", "Garden", "Harbour", "Lantern", "Mirror", "Orchard", "Station", "Winter"}
    assert common <= adjectives | nouns  # a title shares words, and never all of them


def test_another_seed_is_another_world():
    one, two = GeneratedQuestions(seed=0), GeneratedQuestions(seed=1)
    assert one[0] == GeneratedQuestions(seed=0)[0]
    assert not {document.title for document in one.documents} & {document.title for document in two.documents}


@pytest.mark.parametrize("wrong", [{"level": "huge"}, {"split": "dev"}, {"seed": 1.5}, {"seed": True}])
def test_unknown_settings_are_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GeneratedQuestions(**wrong)
    for index in (-1, 10**6):
        with pytest.raises(IndexError, match="outside its"):
            GeneratedQuestions()[index]
