"""Exact match and F1, by SQuAD's definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring.qa import exact_match, f1, normalize_answer, stated_answer

words = st.lists(st.sampled_from(["Oslo", "the", "a", "north", "river", "1,905", "An", "of", "it's", "-"]), max_size=6)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower.", "eiffel tower"),
        ("an apple a day", "apple day"),
        ("theatre", "theatre"),
        ("U.S.", "us"),
        ("1,905", "1905"),
        ("the-", ""),
        ("Ångström", "ångström"),
        (" \n\t", ""),
    ],
)
def test_normalisation(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("answer", "truths", "em", "overlap"),
    [
        ("the Oslo!", ["Oslo"], 1.0, 1.0),
        ("Oslo, Norway", ["Oslo"], 0.0, 2 / 3),
        ("Norway", ["Oslo"], 0.0, 0.0),
        ("Oslo Oslo", ["Oslo"], 0.0, 2 / 3),
        ("big old town", ["old big town", "town"], 0.0, 1.0),
        ("", ["Oslo"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("Oslo", [], 0.0, 0.0),
    ],
)
def test_scores(answer, truths, em, overlap):
    assert exact_match(answer, truths) == em
    assert f1(answer, truths) == pytest.approx(overlap)


@given(words, words)
def test_f1_is_symmetric_and_one_for_same_words(one, two):
    a, b = " ".join(one), " ".join(two)
    assert 0 <= f1(a, [b]) == f1(b, [a]) <= 1
    same = sorted(normalize_answer(a).split()) == sorted(normalize_answer(b).split())
    assert (f1(a, [b]) == 1.0) == same
    assert f1(a, [b, a]) == 1.0
    if exact_match(a, [b]):
        assert same


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I searched.\nAnswer: Oslo", "Oslo"),
        ("answer: one\nFinal Answer:  two ", "two"),
        ("**Answer:** *Oslo*", "Oslo"),
        ("## Answer: Oslo.", "Oslo."),
        ("Answer: The Last: Door", "The Last: Door"),
        ("Answer:", None),
        ("Answer:\nOslo", None),
        ("Answer: one\nAnswer:", None),
        ("FINAL ANSWER : Oslo\r\nDone.", "Oslo"),
        ("Answers: Oslo", None),
        ("The answer is Oslo", None),
        ("my answer: Oslo", None),
        ("", None),
    ],
)
def test_the_stated_answer(text, answer):
    assert stated_answer(text) == answer


def test_any_length_is_read_in_linear_time():
    for text in ("Answer: " * 100_000, "Answer:\n" * 100_000, " " * 10**6, "*" * 10**6, "answer" + " " * 10**6):
        stated_answer(text)


def test_answers_of_other_scripts_are_compared_by_character():
    assert exact_match("北京。", ["北京"]) == 1.0
    assert f1("中国的首都北京", ["北京"]) == pytest.approx(2 * (2 / 7) / (2 / 7 + 1))
    assert f1("上海", ["北京"]) == 0.0
    assert stated_answer("Answer：北京") == "北京"
