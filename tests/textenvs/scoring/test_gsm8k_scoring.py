"""GSM8K's answer check: spellings of one number, the last answer, garbage, and the real rows."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring.gsm8k import _ANYWHERE, MAX_DIGITS, METHODS, _canonical, compare, extract, judge, normalize, score

numbers = st.decimals(min_value=-(10**12), max_value=10**12, places=3, allow_nan=False, allow_infinity=False)
words = st.text(alphabet="abc xyz\n!?():;", max_size=30)


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, Decimal]:
    """A number as somebody may write it, and its value."""
    value = draw(numbers)
    digits = format(abs(value), "," if draw(st.booleans()) else "")
    if draw(st.booleans()) and "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    sign = draw(st.sampled_from("-\u2212\u2013")) if value < 0 else ""
    currency = draw(st.sampled_from(("", "$", "\u20ac")))
    front = currency + sign if draw(st.booleans()) else sign + currency
    return front + digits, value


@given(spellings(), words, st.sampled_from(("", ".", "%", " apples", "\n")))
def test_every_spelling_is_read_as_its_value(spelled, before, after):
    text, value = spelled
    for reply in (f"{before}#### {text}{after}", f"{before}####{text}{after}"):
        for method in ("strict", "flexible"):
            answer = extract(reply, method)
            assert answer is not None
            assert Decimal(answer) == value
    assert Decimal(normalize(text + after.strip(" aples\n"))) == value


@given(spellings(), st.integers(0, 3), st.integers(0, 3))
def test_equal_values_score_and_others_do_not(spelled, zeros, extra):
    text, value = spelled
    gold = format(value, "f")
    assert score(f"#### {text}", gold) == 1.0
    assert score(f"#### {text}", "0" * zeros + gold if value >= 0 else gold) == 1.0
    assert score(f"#### {text}", str(value + 1 + extra)) == 0.0
    assert compare(text, gold) == 0
    assert compare(text, str(value + 1 + extra)) == -1
    assert compare(text, str(value - 1 - extra)) == 1


@given(st.lists(st.integers(-999, 999), min_size=1, max_size=5), st.integers(1000, 2000))
def test_the_last_answer_counts(values, afterwards):
    reply = "\n".join(f"so it is\n#### {value}" for value in values)
    assert extract(reply, "strict") == str(values[-1])
    assert extract(reply, "flexible") == str(values[-1])
    assert extract(f"{reply}\nor {afterwards}", "strict") == str(values[-1])
    assert extract(f"{reply}\nor {afterwards}", "flexible") == str(afterwards)


@pytest.mark.parametrize(
    ("reply", "strict", "flexible"),
    [
        ("", None, None),
        ("72", None, "72"),
        ("#### ", None, None),
        ("#### none", None, None),
        ("####\n72", None, "72"),  # the number stands on the answer line
        ("##### 72", None, "72"),  # five signs are a heading
        ("13-7=6", None, "6"),
        ("13-7", None, "7"),  # a difference, not a sign
        ("it is -7", None, "-7"),
        ("#### --7", None, "7"),  # a sign, and another one that negates it
        ("#### +-7", "-7", "-7"),
        ("#### -$-7", None, "-7"),
        ("#### $--7", None, "7"),
        ("#### -0", "0", "0"),
        ("#### 007.50", "7.5", "7.5"),
        ("#### .5", "0.5", "0.5"),
        ("#### 1,234,567", "1234567", "1234567"),
        ("1,2,3", None, "3"),
        ("#### +8", "8", "8"),
        ("#### 50%.", "50", "50"),
        ("#### 72 or 73", "72", "73"),
        ("\u0663", None, None),  # a digit, but not one of ours
    ],
)
def test_by_example(reply, strict, flexible):
    assert extract(reply, "strict") == strict
    assert extract(reply, "flexible") == flexible


FORMS = [
    "#### {}",
    "\\boxed{{{}}}",
    "$\\boxed{{\\${}}}$.",
    "\\boxed{{x = {}}}",
    "\\boxed{{{} \\text{{ toys}}}}",
    "#### 3+4={}",
    "The answer is {}.",
    "**The final answer is {} toys.**",
]


@given(spellings(), st.sampled_from(FORMS), words)
def test_a_marked_answer_is_read_in_every_form(spelled, form, before):
    text, value = spelled
    answer = extract(f"{before}\n{form.format(text)}", "marked")
    assert answer is not None
    assert Decimal(answer) == value


@given(st.lists(st.tuples(st.sampled_from(FORMS), st.integers(0, 999)), min_size=1, max_size=5))
def test_the_last_marked_answer_counts(claims):
    reply = "\n".join(form.format(value) for form, value in claims)
    assert extract(reply, "marked") == str(claims[-1][1])
    assert extract(f"{reply}\nor maybe 1000", "marked") == str(claims[-1][1])


@given(
    st.sampled_from(FORMS[:3]), st.integers(0, 999), st.integers(0, 999), st.sampled_from((" or ", ", ", "; ", " and "))
)
def test_two_numbers_in_one_answer_are_none(form, one, two, between):
    expected = str(one) if one == two else None
    assert extract(form.format(f"{one}{between}{two}"), "marked") == expected


@pytest.mark.parametrize(
    ("reply", "marked"),
    [
        ("72", "72"),  # nothing but the number
        ("it is 72", None),
        ("72 or 73", None),
        ("\\boxed{1{,}234}", "1234"),
        ("\\boxed{1\\,234}", "1234"),
        ("\\boxed{\\frac{1}{2}}", None),
        ("#### 5\n#### ", "5"),
        ("\\boxed{5}\n#### none", None),
        ("#### 2 x 3", None),
        ("The answer is 5 or 6.", None),
        ("The answer is 5. I am sure, 100 %.", "5"),
        ("#### 5\nWait, the answer is 6.", "6"),
    ],
)
def test_marked_answers_by_example(reply, marked):
    assert extract(reply, "marked") == marked


@given(st.one_of(st.text(), st.text(alphabet="#0123456789,.-+$% \n\u2212x")))
def test_garbage_is_no_error(text):
    for method in METHODS:
        answer = extract(text, method)
        if answer is not None:
            assert normalize(answer) == answer  # the normal form is a fixed point
            assert sum(character.isdigit() for character in answer) <= MAX_DIGITS
            assert Decimal(answer).is_finite()
    verdict = judge(text, "5")
    assert verdict.correct == verdict.accepted["strict"] == (score(text, "5") == 1.0)
    assert verdict.well_formed or not verdict.correct


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", ["#### 5\nor 6", "#### 6\nor 5", "it is 5", "#### 5", "\\boxed{5}", "none"])
def test_verdict_has_all_checks_and_the_methods_result(text, method):
    verdict = judge(text, "5", method)
    checks = {name: extract(text, name) == "5" for name in METHODS}
    formed = "####" in text or ("boxed" in text and method != "strict")
    assert verdict.metrics() == checks | {"well_formed": formed}
    assert (verdict.answer, verdict.correct) == (extract(text, method), checks[method])


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["1", "1,", "1,234", ",123", "-", "####", "#### ", "#### -", "$", "1.", "-$", " ", "#", "1,23"]
)
def test_long_adversarial_text_is_read_in_linear_time(piece):
    text = piece * 50_000  # a quadratic pattern would need many minutes
    for method in METHODS:
        extract(text, method)
        extract(text + "\n#### 5", method)
    assert extract(text + "\n#### 5", "strict") == "5"
    normalize(text)


def test_a_number_beyond_the_bound_is_no_answer():
    assert extract("#### " + "9" * MAX_DIGITS) == "9" * MAX_DIGITS
    assert extract("#### " + "9" * (MAX_DIGITS + 1)) is None
    assert score("#### " + "9" * (MAX_DIGITS + 1), "9") == 0.0


def test_bad_ground_truth_or_method_is_an_error():
    for truth in ("", "twelve", None, "1 and 2"):
        with pytest.raises(ValueError, match="ground truth"):
            score("#### 1", truth)
        with pytest.raises(ValueError, match="ground truth"):
            judge("#### 1", truth)
    for call in (extract, lambda text, method: score(text, "1", method), lambda text, method: judge(text, "1", method)):
        with pytest.raises(ValueError, match="method must be one of marked, strict, flexible"):
            call("#### 1", "loose")


@given(st.text(alphabet="0123459.,$-\u2212\u20ac%#+ )a\n", max_size=60))
def test_last_number_search_equals_full_scan(text):
    last = None
    for last in _ANYWHERE.finditer(text):  # noqa: B007
        pass
    assert extract(text, "flexible") == (_canonical(last) if last else None)
