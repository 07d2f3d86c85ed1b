"""Exact arithmetic, bounded in time, whatever it is given."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.tools import ToolError, call
from textenvs.tools.calculator import add, as_text, calculate, divide, evaluate, multiply, subtract
from textenvs.tools.toolbox import Toolbox

numbers = st.integers(0, 999).map(str) | st.decimals(0, 99, places=2).map(str)
expressions = st.recursive(
    numbers,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
        | inner.map("-({})".format)
    ),
    max_leaves=6,
)


@given(expressions)
def test_value_equals_exact_fractions(text):
    import re

    try:
        expected = eval(re.sub(r"\d+(\.\d+)?", lambda m: f"F('{m[0]}')", text), {"F": Fraction})  # noqa: S307
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(text)
    else:
        assert evaluate(text) == expected


@given(st.text(max_size=30) | st.text("0123456789+-*/%^(). e_,", max_size=30))
def test_any_text_is_evaluated_or_refused(text):
    try:
        value = evaluate(text)
    except ToolError:
        return
    assert isinstance(value, Fraction)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("3 * (4 + 5)", "27"),
        ("0.1 + 0.2", "0.3"),
        ("1,234,567 / 4", "308641.75"),
        ("1/3", "0.333333333333"),
        ("-7 // 2", "-4"),
        ("2^10 - 2**-1", "1023.5"),
        ("6 × 7 ÷ 2 − 1", "20"),
        ("$5 - $7.50", "-2.5"),
        ("10**199 - 10**199 + 1", "1"),
        ("1e3", "1000"),
        ("(-8)**3", "-512"),
        ("0**0", "1"),
        ("0e9999999", "0"),
        ("0.000_0E-9_999_999 + 2", "2"),
    ],
)
def test_calculations(text, result):
    assert calculate(text) == result


@pytest.mark.parametrize(
    "text",
    [
        *(
            "9**9**9",
            "1e999999999",
            "1e-999999999",
            "1e9,999,999",
            "9" * 400,
            "10**500",
            "2**0.5",
            "0**-1",
            "1/0",
            "5 % 0",
            "(" * 200,
        ),
        *(
            "1" + "+1" * 300,
            "",
            "1;2",
            "a",
            "1j",
            "~1",
            "not 1",
            "True",
            "1 == 1",
            "'a' * 3",
            "[1][0]",
            "1_0 and 2",
            "1e9,999,999",
        ),
        *("1 if 1 else 2", "lambda: 1", "__import__('os')", "\x00"),
    ],
)
def test_invalid_or_huge_expressions_are_refused(text):
    with pytest.raises(ToolError):
        evaluate(text)


@given(st.fractions(max_denominator=10**6) | st.decimals(-(10**6), 10**6, places=4).map(Fraction))
def test_numbers_are_exact_or_rounded(value):
    text = as_text(value)
    assert float(Fraction(text)) == pytest.approx(float(value), rel=1e-11)
    if (10**12) % value.denominator == 0:
        assert Fraction(text) == value


json_numbers = st.integers(-(10**30), 10**30) | st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


@given(json_numbers, json_numbers)
def test_operators_are_exact_on_decimals(a, b):
    exact_a, exact_b = Fraction(repr(a)), Fraction(repr(b))
    for operation, expected in ((add, exact_a + exact_b), (subtract, exact_a - exact_b), (multiply, exact_a * exact_b)):
        assert Fraction(operation(a=a, b=b)) == expected


def test_dividing_by_zero_is_told():
    (result,) = Toolbox([divide]).run_now([call("divide", a=1, b=0)], None)
    assert (result.content, result.error) == ("division by zero", "refused")
    assert add.parameters["properties"]["a"] == {"type": "number"}
