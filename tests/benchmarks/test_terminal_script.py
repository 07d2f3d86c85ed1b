"""The script with the source in hand: it repairs what is in no dispute, and words alone decide the rest."""

import random

import pytest

from benchmarks.terminal_script import Page, Script, solved
from textenvs.envs.terminal.disputes import forms_of, words_of

WORDS = words_of("train") | words_of("test")
OPPOSITE = {word: not holds for word, holds in WORDS.items()}


@pytest.mark.parametrize(
    ("level", "known", "right"),
    [("easy", {}, True), ("medium", WORDS, True), ("medium", OPPOSITE, False)],
    ids=["nothing in dispute", "all words", "opposite words"],
)
def test_words_alone_decide_what_it_solves(level, known, right):
    assert solved(Script(known), level, "test", 0, ["tournament"]) == right


@pytest.mark.parametrize("split", ["train", "test"])
def test_forms_with_known_words_are_understood(split):
    page = Page("", WORDS, "coin", random.Random(0))
    for form in forms_of(words_of(split)):
        words = form.replace("{right}", "").replace("{wrong}", "")
        assert page.is_first(words) == form.startswith("{right}")
