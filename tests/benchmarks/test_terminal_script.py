"""The script with the source in hand: it repairs what is in no dispute, and words alone decide the rest."""

import pytest

from benchmarks.terminal_script import Page, Script, solved
from textenvs.envs.terminal.disputes import forms_of

FORMS = {order: (*forms, *forms_of("test")[order]) for order, forms in forms_of("train").items()}
OPPOSITE = {"first": FORMS["second"], "second": FORMS["first"]}


@pytest.mark.parametrize(
    ("level", "known", "right"),
    [("easy", {}, True), ("medium", FORMS, True), ("medium", OPPOSITE, False)],
    ids=["nothing in dispute", "all forms", "opposite forms"],
)
def test_words_alone_decide_what_it_solves(level, known, right):
    assert solved(Script(known), level, "test", 0, ["tournament"]) == right


@pytest.mark.parametrize("guess", ["coin", "nearest", "opposite"])
def test_known_forms_are_not_guessed(guess):
    page = Page("", FORMS, guess, None)
    for order, forms in FORMS.items():
        for form in forms:
            assert page._order(form.removeprefix("{a}").removesuffix("{b}")) == order


def test_similar_forms_have_opposite_meanings():
    """A nearest form of the training split is right less often than a coin."""
    right = [
        Page("", forms_of("train"), "nearest", None)._order(form.removeprefix("{a}").removesuffix("{b}")) == order
        for order, forms in forms_of("test").items()
        for form in forms
    ]
    assert sum(right) < len(right) / 2
