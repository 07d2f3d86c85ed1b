"""Marked final answers, and when two of them are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring.answers import same_answer
from textenvs.scoring.final_answer import final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2+3=5\n#### 5", "5"),
        ("#### 5\nor rather\n#### 6", "6"),
        (r"So it is $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed{1} and then \boxed{2}", "2"),
        (r"#### 1 but \boxed{2}", "2"),
        ("\\boxed{2}, that is\n#### 1", "1"),
        (r"\boxed{\{1, 2\}", None),
        (r"$\boxed 7$.", "7"),
        (r"\fbox{3}", "3"),
        (r"\boxed{}", None),
        (r"\boxed{", None),
        ("\\boxed \t", None),
        (r"\boxedly", None),
        ("#### ", None),
        ("### 5", None),
        ("##### 5", None),
        ("It is 5.", None),
        ("The answer is 5.", "5"),
        ("so the final ANSWER IS: $1,234.50. That is all.", "1,234.50"),
        ("**Answer:** 12 apples", "12 apples"),
        ("Answer: 3.5", "3.5"),
        ("The answer is **7**!", "7"),
        (r"The answer is $\boxed{8}$.", "8"),
        (r"\boxed{1}. No, the answer is 2.", "2"),
        ("The answer is 1.\n#### 2", "2"),
        ("#### 2\nthe answer is 1", "1"),
        ("The answer is 1. The answer is 2. The answer is 3.", "3"),
        ("The answer is\n5", None),
        ("My answers are 5", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@given(st.text("\\boxed{}#  \n5$fk", max_size=60))
def test_no_text_breaks_it(text):
    answer = final_answer(text)
    assert answer is None or (answer.strip() and answer in text)


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 10**5,
        "#### " * 10**5,
        "#" * 10**6,
        "{" * 10**6,
        "\\boxed" * 10**5,
        "\\boxed{}" * 10**5,
        "\\" * 10**6,
        "answer is" * 10**5,
        "answer " * 10**5,
    ],
)
def test_a_huge_text_takes_no_long_time(text):
    final_answer(text)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("5", "5.0", True),
        ("$1,234", "1234", True),
        ("5", "6", False),
        (r"\dfrac{1}{2}", r"\frac12", False),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        (r"\text{Tuesday}", "tuesday", True),
        (r"\left( 1, 2 \right)", "(1,2)", True),
        ("x+1", "1+x", False),
        ("", "0", False),
    ],
)
def test_same_answer(first, second, same):
    assert same_answer(first, second) is same
    assert same_answer(second, first) is same
