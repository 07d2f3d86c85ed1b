"""Words, in any script."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.words import spellings, standing, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The user's 2 cats", ["the", "user", "s", "2", "cats"]),
        ("北京是首都", ["北", "京", "是", "首", "都"]),
        ("iPhone很贵，5元", ["iphone", "很", "贵", "5", "元"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("กำลังมา", ["ก", "\u0e4d\u0e32", "ล\u0e31", "ง", "ม", "า"]),
        ("e\u0301te\u0301", ["\u00e9t\u00e9"]),
        ("Straße ＡＢ", ["strasse", "ab"]),
        ("a_b", ["a_b"]),
        ("", []),
    ],
)
def test_words_of_a_text(text, words):
    assert [word.text for word in words_of(text)] == words


@given(st.text(max_size=60))
def test_words_stand_where_they_say(text):
    end = 0
    for word in words_of(text):
        assert end <= word.start < word.end <= len(text)
        end = word.end
    letters = [character for character in text if re.match(r"\w", character)]
    assert sum(character in letters for word in words_of(text) for character in text[word.start : word.end]) == len(
        letters
    )


@given(st.text(st.characters(max_codepoint=0x24F), max_size=60))
def test_latin_words_are_those_of_a_regular_expression(text):
    assert [text[word.start : word.end] for word in words_of(text)] == re.findall(r"\w+", text)


@pytest.mark.parametrize(
    ("piece", "text", "stands"),
    [
        ("5", "是5元", True),
        ("5", "15", False),
        ("5", "5 km", True),
        ("cat", "cats", False),
        ("cat", "猫cat猫", True),
        ("首都", "北京是首都。", True),
        ("$5", "costs $5.", True),
        ("$5", "costs $50", False),
        ("Москва", "Москвами", False),
    ],
)
def test_a_piece_stands_as_words_of_its_own(piece, text, stands):
    assert (standing(piece).search(text) is not None) == stands


@given(st.text(max_size=60) | st.text(st.characters(max_codepoint=0x7F), max_size=60))
def test_spellings_are_those_of_the_words(text):
    assert spellings(text) == [word.text for word in words_of(text)]
