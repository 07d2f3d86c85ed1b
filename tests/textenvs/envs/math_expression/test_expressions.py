"""Expressions: read and written without loss, worked out as Python does, and train apart from test."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.envs.math_expression.tasks import (
    LEVELS,
    GeneratedExpressions,
    Operation,
    after_step,
    check_expression,
    next_step,
    operations,
    read,
    value,
    write,
)


class Number:
    """A number that knows the made-up operation: Python's own evaluation of an expression is the oracle."""

    made_up = (3, 2)

    def __init__(self, value):
        self.value = Fraction(value)

    def __matmul__(self, other):
        return Number(self.made_up[0] * self.value - self.made_up[1] * other.value)


for name in ("add", "sub", "mul", "truediv"):
    method = f"__{name}__"
    setattr(Number, method, lambda self, other, method=method: Number(getattr(self.value, method)(other.value)))
Number.__neg__ = lambda self: Number(-self.value)


def python_value(text, made_up):
    import re

    Number.made_up = made_up
    wrapped = re.sub(r"\d+(\.\d+)?", lambda match: f"Number('{match[0]}')", text)
    return eval(wrapped, {"Number": Number}).value  # noqa: S307


leaves = st.integers(-30, 30).map(Fraction) | st.sampled_from([Fraction("2.5"), Fraction("-0.125")])
trees = st.recursive(leaves, lambda inner: st.builds(Operation, st.sampled_from("+-*/@"), inner, inner), max_leaves=8)


@given(trees)
def test_what_is_written_is_read(tree):
    assert read(write(tree)) == tree


@given(trees, st.tuples(st.integers(2, 9), st.integers(2, 9)))
def test_the_value_is_pythons(tree, made_up):
    try:
        expected = python_value(write(tree), made_up)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            value(tree, made_up)
    else:
        assert value(tree, made_up) == expected


@given(trees)
def test_steps_keep_the_value_and_end_in_it(tree):
    made_up = (3, 2)
    try:
        worth = value(tree, made_up)
    except ZeroDivisionError:
        return
    for remaining in range(operations(tree), 0, -1):
        assert operations(tree) == remaining
        step = next_step(tree)
        tree = after_step(tree, step, made_up)
        assert value(tree, made_up) == worth
    assert tree == worth
    assert next_step(tree) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_generated_expressions_can_be_played(level, split):
    tasks = GeneratedExpressions(level, split=split)
    for index in range(60):
        task = tasks[index]
        check_expression(task)
        text, made_up = task.extra["expression"], tuple(task.extra.get("made_up", (3, 2)))
        assert str(python_value(text, made_up)) == task.ground_truth
        assert ("@" in text) == (level == "made-up")
        assert task.question == f"Work out {text}."


@settings(max_examples=10)
@given(st.sampled_from(LEVELS), st.integers(0, 99), st.integers(0, 99))
def test_train_and_test_share_no_expression(level, seed, other):
    train = GeneratedExpressions(level, seed=seed)
    test = GeneratedExpressions(level, seed=other, split="test")
    assert not {train[i].extra["expression"] for i in range(60)} & {test[i].extra["expression"] for i in range(60)}


@pytest.mark.parametrize(
    "text",
    [
        *("", "1 +", "x", "1 ** 2", "f(1)", "1 < 2", "+1", "1j", "True", "0x10", "--1", "1 if 1 else 2"),
        *("(" * 500, "1+" * 200 + "1"),
    ],
)
def test_what_is_not_an_expression_is_refused(text):
    with pytest.raises(ValueError, match="expression|arithmetic|operations"):
        read(text)
