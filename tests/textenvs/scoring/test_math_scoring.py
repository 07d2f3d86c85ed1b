"""Mathematical equality: right answers in any form, and a grader that hangs costs one answer only."""

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring import math as scoring
from textenvs.scoring.final_answer import boxed
from textenvs.scoring.math import judge_math, judge_math_async
from textenvs.scoring.relations import claims_of, is_name
from textenvs.scoring.units import split_unit

needs_math_verify = pytest.mark.skipif(
    scoring.importlib.util.find_spec("math_verify") is None, reason="needs the extra 'math'"
)
# SymPy does not finish this in any acceptable time.
ENDLESS = r"9^{9^{9^9}}"


# ------------------------------------------------------------------ the box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} or rather \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{3}", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", r"a \boxed{b}"),
        (r"\boxed{1} \boxed{2", "1"),
        (r"\boxed{}", None),
        (r"\boxed{1} \boxed{}", None),
        ("so $\\boxed 5$.", "5"),
        (r"\boxed\frac{1}{2}.", r"\frac{1}{2}"),
        (r"\boxed{ 7 }", "7"),
        ("boxed{5}", None),
        (r"\boxed{5", None),
        (r"\boxedx{5}", None),
        ("", None),
    ],
)
def test_the_last_box_that_closes_counts(text, content):
    assert boxed(text) == content


plain = st.text(st.characters(exclude_characters="\\{}", codec="utf-8"), max_size=20)
nested = st.recursive(plain, lambda inner: st.builds("{}{{{}}}{}".format, plain, inner, plain), max_leaves=4)


@given(before=plain, content=nested, after=plain)
def test_any_balanced_content_is_found_whole(before, content, after):
    assert boxed(f"{before}\\boxed{{{content}}}{after}") == (content.strip() or None)


# ------------------------------------------------------------------ equality


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "truth", "reason"),
    [
        ("1/2", r"\frac{1}{2}", "equal"),
        ("0.5", r"\frac12", "equal"),
        ("073", "73", "equal"),
        ("x^2+2x+1", "(x+1)^2", "equal"),
        (r"\{3, 1\}", r"\{1, 3\}", "equal"),
        (r"\text{Evelyn}", "Evelyn", "equal"),
        (r"5\text{ cm}", "5", "equal"),
        (r"90^\circ", "90", "equal"),
        ("x=5", "5", "equal"),
        (r"\sqrt{8}", r"2\sqrt{2}", "equal"),
        ("(1, 3)", "(1, 2)", "different"),
        ("0.33", r"\frac{1}{3}", "different"),
        ("-5", "5", "different"),
        ("no idea", "5", "different"),
        ("", "5", "no_answer"),
        ("9" * 30_000, "5", "unreadable"),
    ],
)
def test_equality_is_of_value_not_of_spelling(answer, truth, reason):
    verdict = judge_math(f"I find \\boxed{{{answer}}}", truth, timeout_s=30)
    assert verdict.reason == reason
    assert verdict.correct == (reason == "equal")


# What is not the number that its last side, or the number in it, is.
NOT_FOUR = [
    r"5=4",
    r"3+2=4",
    r"4=5",
    r"x=5=4",
    r"x=4=5",
    r"5=4=4",
    r"(5=4)",
    r"\left(5=4\right)",
    r"\{5=4\}",
    r"\text{5}=4",
    r"\frac{5=4}{1}",
    r"4(5=4)",
    r"5==4",
    r"5:=4",
    r"5\to 4",
    r"5 \Rightarrow 4",
    r"5 \implies x=4",
    r"5\equiv 4",
    r"5\cong 4",
    r"5 \ne 4",
    r"\pi=4",
    r"2x=4",
    r"-x=4",
    r"x^2=4",
    r"\sqrt{x}=4",
    r"x=5, 4",
    r"4\%",
    r"4%",
    r"4 \%",
    r"4\,\%",
    r"4\text{\%}",
    r"4\text{ percent}",
    r"4 percent",
    "4％",
    r"x=4\%",
    r"(x=4\%)",
    r"0.04=4\%",
    r"4\%=4",
]


@needs_math_verify
@pytest.mark.parametrize("answer", NOT_FOUR)
def test_contradiction_or_percentage_is_not_last_number(answer):
    assert not judge_math(f"\\boxed{{{answer}}}", "4", timeout_s=30).correct


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("x = 4", "4"),
        ("x_1=4", "4"),
        (r"\theta = 4", "4"),
        ("f(2)=4", "4"),
        ("f(1,2)=4", "4"),
        ("P(X=2)=1/4", "1/4"),
        (r"\angle ABC = 4^\circ", "4"),
        (r"\text{the area} = 4", "4"),
        ("a+b=4", "4"),
        ("x=y=4", "4"),
        ("x=8/2=4", "4"),
        ("2+2=4", "4"),
        (r"\boxed{x=4}", "4"),
        ("x=3, x=4", "3,4"),
        ("y=2x+1", "2x+1"),
        ("y=2x+1", "y=2x+1"),
        ("x+1=y", "y=x+1"),
        (r"\sum_{i=1}^{4} 1", "4"),
        (r"4\%", r"4\%"),
        (r"4\%", "0.04"),
        (r"0.04=4\%", "0.04"),
        ("0.04", r"4\%"),
        ("4", r"4\%"),
        (r"\frac{1}{2}\%", "0.005"),
        (r"50\text{ percent}", r"\frac12"),
    ],
)
def test_names_and_agreeing_sides_are_right(answer, truth):
    assert judge_math(f"\\boxed{{{answer}}}", truth, timeout_s=30).correct


def right(answer, truth):
    return judge_math(f"\\boxed{{{answer}}}", truth, timeout_s=30).correct


@needs_math_verify
@pytest.mark.parametrize(
    ("truth", "equal", "unequal"),
    [
        (
            r"1.6\times 10^{-19}",
            (r"1.60\times10^{-19}", "1.6e-19", "0.00000000000000000016"),
            (r"9.1\times 10^{-31}", r"1.6\times 10^{-20}", "0"),
        ),
        ("0.0", ("0", r"\sin(\pi)"), ("0.0000004", r"10^{-30}")),
        (r"10^{-20}x", (r"\frac{x}{10^{20}}",), (r"10^{-21}x",)),
        (r"x=10^{-9}", (r"x=0.000000001", r"10^{-9}"), (r"x=10^{-8}", r"x=2\times 10^{-9}")),
        (r"(10^{-9}, 2)", (r"(0.000000001, 2)",), (r"(10^{-8}, 2)",)),
        (r"\{10^{-9}, 2\}", (r"\{2, 10^{-9}\}",), (r"\{2, 10^{-8}\}",)),
        (r"\begin{pmatrix}10^{-9}\end{pmatrix}", (), (r"\begin{pmatrix}10^{-10}\end{pmatrix}",)),
        (r"10^{10}\sqrt{2}", ("14142135623.73",), ("14142100000.1",)),
        (r"6.022\times10^{23}", ("602200000000000000000000",), (r"6.02\times10^{23}",)),
        (r"\frac13", ("0.333333",), ("0.3333",)),
        (r"\frac{1}{3000}", ("0.000333333",), ("0.000333",)),
        (r"\pi", ("3.141593",), ("3.1415",)),
        ("1000000", ("1000000.0",), ("1000001", "1000000.4")),
        ("0.3x", ("0.1x+0.2x", r"\frac{3x}{10}"), ("0.3001x",)),
        ("1.6e-19", (r"1.6\times 10^{-19}", "1.60e-19"), ("1.6e-20", r"1.7\times 10^{-19}")),
        ("(1e5, 2)", ("(100000, 2)", "(10^5, 2)"), ("(10^4, 2)",)),
        (r"0.\overline{3}", ("1/3", r"0.\bar{3}", r".\overline{33}"), ("0.3", r"0.\overline{4}")),
        (r"-2.1\overline{6}", (r"-\frac{13}{6}",), (r"2.1\overline{6}", "-2.16")),
        ("45", ("45.0",), (r"45\ldots", "45...")),
    ],
)
def test_numbers_are_compared_by_their_size(truth, equal, unequal):
    assert [right(answer, truth) for answer in equal] == [True] * len(equal)
    assert [right(answer, truth) for answer in unequal] == [False] * len(unequal)


BETWEEN = ("2<x<5", "5>x>2", r"2 \lt x \lt 5", "x>2 and x<5", "x>2, x<5", r"\{x \mid 2<x<5\}", r"x\in(2,5)", "(2,5)")
OUTSIDE = ("x<2 or x>5", r"x<2 \text{ or } x>5", "x<2, x>5", r"(-\infty,2)\cup(5,\infty)")


@needs_math_verify
@pytest.mark.parametrize(
    ("truth", "equal", "unequal"),
    [
        ("(2,5)", BETWEEN, ("2<x<6", r"2\le x<5", "4<2x<10", "|2x-7|<3", "x>2", "5<x<2", "x>2, y<5", r"(2,\infty)")),
        ("2<x<5", BETWEEN, ("[2,5]", "2<y<5", r"(-\infty,5)")),
        (r"(-\infty,2)\cup(5,\infty)", OUTSIDE, ("x<2 and x>5", "x>5", "x<5 or x>2")),
        (r"[3,\infty)", (r"x\ge 3", "3 <= x", r"x \geqslant 3", "x≥3"), ("x>3", r"x\le 3", r"(-\infty,3]")),
        (r"(-\infty,3)\cup(3,\infty)", (r"x\ne 3", r"x \neq 3"), (r"x\ne 2",)),
        (r"(-\frac{1}{2},\sqrt{2}]", (r"-0.5 < t \le \sqrt{2}",), (r"-0.5 < t < \sqrt{2}",)),
    ],
)
def test_inequalities_equal_their_intervals(truth, equal, unequal):
    assert [right(answer, truth) for answer in equal] == [True] * len(equal)
    assert [right(answer, truth) for answer in unequal] == [False] * len(unequal)


@needs_math_verify
def test_infinity_equals_no_number():
    assert right(r"-\infty ", r"-\infty")
    for answer, truth in ((r"\infty", "5"), ("5", r"\infty"), (r"\infty", r"-\infty"), (r"\frac{1}{0}", "45")):
        assert not right(answer, truth)


@needs_math_verify
@pytest.mark.parametrize(
    ("truth", "equal", "unequal"),
    [
        (r"1, 2, \ldots, n", ("1,2,...,n", r"1, 2, \dots, n", "1, 2, …, n"), ("1, 3, 5, \\ldots, 2n-1", "2", "1,2,n")),
        (r"\{1, 4, \ldots, n^2\}", (r"\left\{1,2^2,\dots,n^2\right\}",), (r"\{1, 8, \ldots, n^3\}", "4")),
        (r"1, 4, \ldots, n^2", (r"1, 2^2, \cdots, n^2",), (r"1, 4, \ldots, n^2+1", r"1, 4, \ldots")),
        (r"1+2+\cdots+n", (r"1 + 2 + \dots + n",), ("1+2+n", r"1+2+\cdots+2n")),
    ],
)
def test_lists_cut_short_are_compared_whole(truth, equal, unequal):
    assert [right(answer, truth) for answer in equal] == [True] * len(equal)
    assert [right(answer, truth) for answer in unequal] == [False] * len(unequal)


UNITS = [
    "{} apples",
    "{} dollars",
    "{} miles per hour",
    r"\${}",
    r"{}\text{{ dollars}}",
    r"{}\,\mathrm{{m/s}}",
    "{} m/s",
]
UNITS += [
    r"{}\text{{ cm}}^2",
    "{}cm",
    "{} square feet",
    r"{}\ \frac{{\text{{miles}}}}{{\text{{hour}}}}",
    "Rs. {}",
    "{} m",
]
UNITS += ["x = {} dollars", r"\text{{{} pesos}}", "{}°C", "{} kg·m^2/s^2", "{} N", "{} K", "{} €", r"{}\$"]


@needs_math_verify
@pytest.mark.parametrize("unit", UNITS)
def test_units_are_left_out_on_both_sides(unit):
    assert right(unit.format(45), "45")
    assert not right(unit.format(46), "45")
    if "=" not in unit:
        assert right("45", unit.format(45))
        assert not right("46", unit.format(45))


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        *(("2", "2m"), ("2m", "2"), ("3d", "3"), ("3x", "3"), ("45 million", "45"), ("5 squared", "5"), ("45 i", "45")),
        *(
            (r"2\mathrm{i}", "2"),
            ("3 dozen eggs", "3"),
            ("5 m west", "5 m east"),
            ("4 or more", "4"),
            ("4 halves", "4"),
        ),
        *((r"4\text{ not}", "4"), ("12:30 pm", "12:30 am"), ("5 dollars loss", "5"), (r"45\text{\%}", "45")),
    ],
)
def test_words_of_a_value_are_no_units(answer, truth):
    assert not right(answer, truth)


@needs_math_verify
@pytest.mark.parametrize(
    ("answer", "truth", "correct"),
    [
        (r"2x \text{ cm}", "2x", True),
        ("x", r"x \text{ meters}", True),
        (r"n\text{ even}", r"n\text{ odd}", False),
        ("north", r"\text{north}", True),
        (r"\text{No Solution}", r"\text{no solution}", True),
        ("south", r"\text{north}", False),
    ],
)
def test_words_behind_variables_and_alone(answer, truth, correct):
    assert right(answer, truth) == correct


PIECES = ["4", " ", "m", "cm", "\\text{", "}", "/", "^2", "dollars", "\\,", "°", "(", "="]


@given(answer=st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
def test_a_unit_is_found_behind_a_value_alone(answer):
    value, directions = split_unit(answer)
    assert len(value) <= len(answer)
    assert not directions
    assert value.count("4") == answer.count("4")


@given(answer=st.text("x45=,;()[]{}\\_^:.%' ", max_size=60) | st.text(max_size=30))
def test_any_text_can_be_taken_apart(answer):
    claims = claims_of(answer)
    assert claims.relations >= 0
    assert all(is_name(side) in (True, False) and side for chain in claims.chains for side in chain)


@pytest.mark.parametrize(
    ("side", "name"), [("f^{-1}(x)", True), ("g^{-1}(y)", True), ("x^{-1}", False), ("x^{-1}(2)", False)]
)
def test_inverse_function_is_a_name(side, name):
    assert is_name(side) is name


@pytest.mark.parametrize("word", ["(", "a=", r"\aaaa", "x'", "(x)", "x_1", "{a}"])
def test_taking_apart_and_telling_names_stay_quick(word):
    """A regular expression that backtracks would not end within the test's time."""
    claims_of(word * 10_000)
    claims_of("(" * 10_000 + word + ")" * 10_000)
    assert not is_name(word * (180 // len(word)) + "!")


def idle():
    return [worker for worker in scoring._pool.slots.queue if worker is not None]


@needs_math_verify
def test_endless_comparison_is_killed():
    """GEM's worker is never killed: after one such answer every later one scores 0."""
    judge_math(r"\boxed{2/4}", "1/2", timeout_s=60)
    assert judge_math(f"\\boxed{{{ENDLESS}}}", "5", timeout_s=0.2).reason == "timeout"
    assert judge_math(r"\boxed{2/4}", "1/2", timeout_s=60).reason == "equal"
    assert all(worker.process.poll() is None for worker in idle())


@needs_math_verify
async def test_other_answers_are_compared_while_one_hangs():
    hanging = asyncio.create_task(judge_math_async(f"\\boxed{{{ENDLESS}}}", "5", timeout_s=0.5))
    verdicts = await asyncio.gather(
        *(judge_math_async(f"\\boxed{{{i}/2}}", str(i / 2), timeout_s=60) for i in range(6))
    )
    assert [verdict.reason for verdict in verdicts] == ["equal"] * 6
    assert (await hanging).reason == "timeout"


@needs_math_verify
def test_a_process_that_was_killed_is_replaced():
    judge_math(r"\boxed{2/4}", "1/2", timeout_s=60)
    for worker in idle():
        worker.process.kill()
    assert judge_math(r"\boxed{3/6}", "1/2", timeout_s=60).correct


@needs_math_verify
def test_no_process_outlives_its_parent():
    code = (
        "import threading, time\n"
        "from textenvs.scoring import math as s\n"
        "s.judge_math(r'\\boxed{2/4}', '1/2', timeout_s=60)\n"
        f"ask = lambda: s.judge_math(r'\\boxed{{{ENDLESS}}}', '5', timeout_s=0.1)\n"
        "print(*(w.process.pid for w in s._pool.slots.queue if w), flush=True)\n"
        "threading.Thread(target=ask).start()\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert workers
    time.sleep(0.2)  # the question is on its way
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(1000):
        if not any(alive(pid) for pid in workers):
            return
        time.sleep(0.02)
    pytest.fail("the comparing process outlived its parent")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_math_verify
def test_unreadable_ground_truth_is_an_error():
    with pytest.raises(ValueError, match="ground truth .* cannot be read"):
        judge_math(r"\boxed{5}", "", timeout_s=60)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(scoring.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"textenvs\[math\]"):
        judge_math(r"\boxed{5}", "5")


@needs_math_verify
@pytest.mark.timeout(60)
def test_spaces_are_read_in_linear_time(monkeypatch):
    """Looking for a percent sign behind it took ten seconds in which nothing else in the process went on."""
    requests = []
    monkeypatch.setattr(
        scoring, "_pool", SimpleNamespace(ask=lambda question, timeout_s: requests.append(question) or "different")
    )
    for part in ("...", "…", r"\ldots,", "or ", r"\text{", r"\text{ or ", "1e9", "x\\in", "(", "{", "m/"):
        assert not judge_math(rf"\boxed{{{'5' + part * 4_000}5}}", "5", timeout_s=1e9).correct
    for space in (" ", "\n", "~", r"\,", r"\ "):
        answer = f"5{space * (19_000 // len(space))}6"
        for _ in range(3):
            assert not judge_math(rf"\boxed{{{answer}}}", answer + "0", timeout_s=1e9).correct
        assert requests[-1][1] == rf"\boxed{{{answer}}}"
