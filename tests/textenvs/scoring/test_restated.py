"""Answers must be evaluated: the problem in a box is equal to its answer, and is none."""

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.scoring.math import judge_math
from textenvs.scoring.restated import expressions_in, restates

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs the extra 'math'")

# Row D of the table: (problem, reference, the problem in a box). Each earned 1.0.
RESTATED = [
    (r"Compute $\dbinom{8}{4}$.", "70", r"\binom{8}{4}"),
    (r"Compute $99^2 - 98^2 + \log_2 (4^2)$.", "201", r"99^2 - 98^2 + \log_2 (4^2)"),
    ("Expand $(2x+3)(x-5)$.", "2x^2-7x-15", "(2x+3)(x-5)"),
    ("Expand $(2x+3)(x-5)$.", "2x^2-7x-15", "(x-5)(3+2x)"),
    ("Expand $(2x+3)(x-5)$.", "2x^2-7x-15", "1(2x+3)(x-5)+0"),
    ("Expand (2x+3)(x-5).", "2x^2-7x-15", "(2x+3)*(x-5)"),
    ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "x^2-5x+6"),
    (r"Simplify $\frac{42}{56}$.", r"\frac{3}{4}", r"\frac{42}{56}"),
    (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"\sqrt{50}"),
    (r"Rationalize the denominator: $\frac{1}{\sqrt{2}}$.", r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}"),
    (r"What is $\frac{1}{2}+\frac{1}{3}$?", r"\frac{5}{6}", r"\frac12+\frac13"),
    (r"Evaluate $7!-6!$.", "4320", "7!-6!"),
    (r"Evaluate $2^{10}$.", "1024", "2^{10}"),
    (r"What is $12 \cdot 13$?", "156", r"13 \times 12"),
    (r"Evaluate $\lfloor 3.7 \rfloor + 1$.", "4", r"\lfloor 3.7 \rfloor + 1"),
    (r"Find $\sum_{k=1}^{10} k$.", "55", r"\sum_{k=1}^{10} k"),
    (r"Find $\log_2 32$.", "5", r"\log_2 32"),
    (r"Simplify $2x+3x+4$.", "5x+4", "3x+4+2x"),
    (r"Write $0.375$ as a common fraction.", r"\frac{3}{8}", "0.375"),
    (r"Simplify $\sqrt{16}$.", "4", r"x = \sqrt{16}"),
    (r"In how many ways can 3 of 10 be chosen?", "120", r"\frac{10!}{3! 7!}"),
    ("What is 123 * 45 + 6?", "5541", "123 * 45 + 6"),
    (r"Find $\int 2x \, dx$ at $x = 3$.", "9", r"\frac{3^2 \cdot 2}{2}"),
    (r"What is $24 \div 8$?", "3", r"\frac{24}{8}"),
]
# The problem's own expression with something in it that comes to nothing, or with one step of the work.
EXPAND, SQUARE = ("Expand $(x+2)(x-3)$.", "x^2-x-6"), ("Simplify $(1+x)(1+x)$.", "x^2+2x+1")
FACTOR, CUBE = ("Factor $x^2-5x+6$.", "(x-2)(x-3)"), ("Expand $(x-1)(x-2)(x-3)$.", "x^3-6x^2+11x-6")
PADDED = {
    EXPAND: (
        "{}+x-x",
        "{}+0",
        r"{}\cdot\frac{{y}}{{y}}",
        r"{}\cdot\frac{{x}}{{x}}",
        "{}+1-1",
        "2{0}-{0}",
        "{}e^0",
        "({})^1",
    ),
    ("Expand the product (x+2)(x-3).", "x^2-x-6"): ("{}+x-x", r"{}+\sin(x)-\sin(x)", r"\frac{{{}(x+1)}}{{x+1}}"),
}
# A root that is to be simplified, in other spellings.
RESTATED += [
    (r"Compute $\sqrt{48}$ in simplest form.", r"4\sqrt{3}", answer)
    for answer in (
        r"48^{1/2}",
        r"48^{0.5}",
        r"\sqrt{48.0}",
        r"2\sqrt{12}",
        r"\frac{48}{\sqrt{48}}",
        r"\frac{\sqrt{192}}{2}",
    )
]
RESTATED += [(*task, form.format("(x+2)(x-3)")) for task, forms in PADDED.items() for form in forms]
RESTATED += [(*EXPAND, answer) for answer in ("(x+2)^{1}(x-3)^{2-1}", "(x+1+1)(x-3)", "-(3-x)(x+2)", "(x+2)x-3(x+2)")]
RESTATED += [(*SQUARE, answer) for answer in ("(1+x)^{1+1}", "(x+1)^2", "(1+x)(1+x)+x-x")]
RESTATED += [(*FACTOR, answer) for answer in ("x^2-5x+6+x-x", r"(x^2-5x+6)\cdot\frac{y}{y}", "x(x-5)+6", "x^2-2x-3x+6")]
RESTATED += [(*CUBE, answer) for answer in ("(x-1)(x^2-5x+6)", "(x-1)(x-2)(x-3)+x-x")]
RESTATED += [
    (r"Simplify $\frac{x^2-1}{x-1}$.", "x+1", r"\frac{x^2-1}{x-1}+x-x"),
    (r"Simplify $\frac{x^2-1}{x-1}$.", "x+1", r"\frac{(x-1)(x+1)}{x-1}"),
    ("Factor $x^4-1$ over the reals.", "(x-1)(x+1)(x^2+1)", "(x^2-1)(x^2+1)"),
    ("Simplify $2x+3x+4$.", "5x+4", "2x+3x+4+x-x"),
    (r"Rationalize $\frac{1}{\sqrt{2}}$.", r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}\cdot\frac{y}{y}"),
    (r"Simplify $\sqrt{8}+\sqrt{2}$.", r"3\sqrt{2}", r"\sqrt{8}+\sqrt{2}+x-x"),
]
# The problem's numbers, put together in ways that compute nothing.
NUMBERS = "17 apples, 23 pears, 5 figs, 12 of them in a box of 8; what is asked?"
RESTATED += [
    (NUMBERS, truth, answer)
    for truth, answer in (
        ("391", r"\frac{17}{\frac{1}{23}}"),
        ("391", "17/(1/23)"),
        ("391", "17\u22c523"),
        ("391", "17\u221923"),
        ("391", "17\u221723"),
        ("391", r"\begin{vmatrix}17&0\\0&23\end{vmatrix}"),
        ("391", r"17 \cdot 23"),
        ("40", r"17\frac{23}{1}"),
        ("22", "17{+5}"),
        ("12", "|17-5|"),
        ("40", r"\sqrt{1600}"),
        ("3", r"\frac{24}{8}"),
        (r"\frac{17}{5}", r"\frac{17}{2+3}"),
        ("3,5", "3,6-1"),
        (r"5\sqrt{2}", r"\frac{5}{\frac{1}{\sqrt{2}}}"),
    )
]
# Operations between numbers that are not done, whatever the problem asks for.
WORK_LEFT = {
    "2x": (
        r"\frac{6x}{3}",
        "6x/3",
        r"\frac{6}{3}x",
        "x+x",
        "3x-x",
        r"\sqrt{4}x",
        "2^1x",
        r"0.5\cdot 4x",
        r"\frac{x}{0.5}",
    )
    + (r"\frac{x}{\frac12}", r"\log_2(4) x", "2!x", r"\frac{12x^2}{6x}", r"f(x)=\frac{6x}{3}"),
    "2x+3": (r"\frac{6x+9}{3}", "2x+1+2", "x+3+x", r"2x+\frac{9}{3}", r"2x+\sqrt{9}"),
    r"2\pi": (r"\frac{6\pi}{3}", r"\pi+\pi", r"4\pi/2"),
    r"2\sqrt{3}": (r"\frac{6\sqrt{3}}{3}", r"\sqrt{3}+\sqrt{3}"),
    r"(-\infty,3]": (r"(-\infty,\frac{6}{2}]", r"(-\infty,1+2]", r"x\le 1+2"),
    r"(2x,5)": (r"(\frac{6x}{3},5)",),
    "y=2x+1": (r"y=\frac{6x}{3}+1",),
}
RESTATED += [("Find the result.", truth, answer) for truth, answers in WORK_LEFT.items() for answer in answers]
# Where the simplest form is asked for, more is left to do.
SIMPLEST = (
    (r"\frac{3}{4}", r"\frac{6}{8}"),
    (r"\frac{3}{4}", "9/12"),
    (r"\frac{x}{2}", r"\frac{2x}{4}"),
    (r"\frac{x+1}{2}", r"\frac{2x+2}{4}"),
    (r"\frac{2}{3}x", r"\frac{4}{6}x"),
    ("2x", r"\frac{2x^2}{x}"),
    ("x^5", "x^2x^3"),
)
RESTATED += [("Give it in simplest form.", *pair) for pair in SIMPLEST]
# (problem, reference, a right answer as models write it)
EVALUATED = [
    ("What is half of 1?", r"\frac{1}{2}", "0.5"),
    ("What is half of 1?", r"\frac12", "1/2"),
    ("What is half of 1?", "0.5", r"\dfrac{1}{2}"),
    ("Solve $2x = 10$.", "5", "x=5"),
    ("Solve $2x = 10$.", "x=5", "5"),
    ("Solve $x+1=6$.", "5", r"x = 6 - 1 = 5"),
    ("How wide is it?", "5", r"5\text{ cm}"),
    ("Which angle?", "90", r"90^\circ"),
    ("Which angle?", r"90^\circ", "90"),
    ("How far?", "1234", "1,234"),
    ("How far?", "1000000", "10^6"),
    ("How fast is light?", "300000000", r"3 \times 10^8"),
    (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"5 \cdot \sqrt{2}"),
    (r"Simplify $\sqrt{50}$.", r"5\sqrt{2}", r"5\sqrt2"),
    (r"Solve $x^2-4x+1=0$.", r"2+\sqrt{3},2-\sqrt{3}", r"2-\sqrt3, 2+\sqrt3"),
    ("Find the larger root.", r"\frac{1+\sqrt{5}}{2}", r"\frac{\sqrt{5}+1}{2}"),
    ("Find the larger root.", r"\frac{1+\sqrt{5}}{2}", r"\frac{1}{2}+\frac{\sqrt{5}}{2}"),
    ("Area of a circle with radius 3?", r"9\pi", r"9 \times \pi"),
    ("Area of a circle with radius 3?", r"9\pi", r"9\pi\text{ cm}"),
    ("Expand $(2x+3)(x-5)$.", "2x^2-7x-15", "-15-7x+2x^2"),
    ("Expand $(x+1)^2$.", "x^2+2x+1", "x^2 + 2x + 1"),
    ("Let $f(x)=x+1$. Find $f(x)^2$.", "x^2+2x+1", "(x+1)^2"),
    ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "(x-3)(x-2)"),
    ("Find the line through (0, 1) with slope 2.", "y=2x+1", "2x+1=y"),
    ("Find the line through (0, 1) with slope 2.", "2x+1", "y = 2x+1"),
    ("Give the point.", "(1,-2)", r"\left( 1, -2 \right)"),
    ("Which share?", r"50\%", "0.5"),
    ("Which share?", "0.5", r"\frac{50}{100}"),
    ("Which numbers?", r"\{1,3\}", r"\{3, 1\}"),
    ("Divide 3 by 2.", r"\frac{3}{2}", "1.5"),
    ("Divide 3 by 2.", r"\frac{3}{2}", r"1\frac{1}{2}"),
    ("Divide -1 by 2.", r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("What is $(1+2i)+(2+i)$?", "3+3i", "3i+3"),
    ("Write it as a power.", "2^{10}", "2^{10}"),
    ("Leave factorials.", "7!", "7!"),
    ("Which of $x+1$ and $x+2$ is larger?", "x+2", "2+x"),
    ("Simplify $e^{1}e^{1}$.", "e^2", "e^{2}"),
    ("Find $\\log 8$ in terms of $\\log 2$.", r"3\log 2", r"3 \log(2)"),
    ("How many?", "4", "4.0"),
    ("How many?", "12", r"\$12"),
    ("How many?", "12", r"12\text{ cm}^2"),
    ("Which?", "3,5", "5, 3"),
    ("Which?", "0.17", r"\frac{17}{100}"),
    ("Which?", "-0.25", r"-\frac14"),
    ("On which day?", r"\text{Tuesday}", "Tuesday"),
    ("For which $x$ is $|2x-7|<3$?", "(2,5)", r"x\in(2,5)"),
    ("For which $x$ is $|2x-7|<3$?", "(2,5)", r"x \in \left(2, 5\right)"),
    ("For which $x$ is $|2x-7|<3$?", "(2,5)", "x∈(2,5)"),
    ("For which $x$ is $|2x-7|<3$?", r"x\in[2,5]", "[2,5]"),
    ("Solve $x^2-7x+10=0$.", "2,5", r"x \in \{2,5\}"),
    ("Solve $x^2-7x+10=0$.", "2,5", r"x=2 \text{ or } x=5"),
    ("Solve $x+y=7$, $y-x=3$.", "(2,5)", "(x,y)=(2,5)"),
    ("Let $f(x)=x^2$. Find the derivative.", "2x", r"2\cdot x"),
    ("Let $f(x)=x^2$. Find the derivative.", "2x", "f'(x)=2x"),
    ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "(2-x)(3-x)"),
    ("Simplify $2x(x+1)+x$.", "2x^2+3x", "x(2x+3)"),
    (r"Simplify $\frac{2x+2}{4}$.", r"\frac{x+1}{2}", r"\frac{x}{2}+\frac{1}{2}"),
    (r"Find $\sum_{k=1}^n k$.", r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
    ("Express $\\cos 2x$ by $\\cos x$.", r"2\cos^2 x-1", r"-1+2\cos^2 x"),
    (r"Compute $\sqrt{48}$ in simplest form.", r"4\sqrt{3}", r"4\cdot\sqrt3"),
    (r"A square has sides of $\sqrt{6}$. How long is its diagonal?", r"2\sqrt{3}", r"\sqrt{12}"),
    ("Solve $x^2+1=0$.", "i,-i", r"\pm i"),
    ("Solve $x^2=8$.", r"2\sqrt{2},-2\sqrt{2}", r"\pm 2\sqrt{2}"),
    ("Solve $x^2=8$.", r"2\sqrt{2},-2\sqrt{2}", r"x = \pm 2\sqrt2"),
    (r"Solve $4x^2=3$.", r"\frac{\sqrt{3}}{2},-\frac{\sqrt{3}}{2}", r"\pm\frac{\sqrt{3}}{2}"),
    ("Let $f(x)=2x+3$. Find its inverse.", r"\frac{x-3}{2}", r"f^{-1}(x) = \frac{x-3}{2}"),
    *(("Find the result.", *pair) for pair in SIMPLEST),
    *(("Give it in simplest form.", truth, truth + " ") for truth, _ in SIMPLEST),
    (r"Simplify $\frac{42}{56}$.", r"\frac{3}{4}", "0.75"),
    ("Find the result.", r"\frac{x}{2}", r"\frac{1}{2}\cdot x"),
    ("Find the result.", r"\frac{x}{2}", "0.5x"),
    ("Find the result.", "100x", "10^2x"),
    ("Find the result.", r"2^{n+1}", r"2\cdot 2^n"),
    ("Find the result.", r"\frac{4}{3}\pi r^3", r"\frac{4\pi r^3}{3}"),
    ("Find the result.", r"\frac{3+\sqrt{5}}{2}", r"\frac{6+2\sqrt{5}}{4}"),
    ("Find the result.", r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("Find the result.", r"\frac{1}{2x+2}", r"\frac{1}{2(x+1)}"),
    ("Find the result.", "-2x+6", "-2(x-3)"),
    ("Find the result.", r"\cos x", r"\sin(\frac{\pi}{2}-x)"),
    ("Find the result.", r"2\cdot 3\cdot x", r"3\cdot 2 x"),
    ("Find the result.", r"6\sqrt{2}", r"3\sqrt{8}"),
    ("How fast?", "60", "60 miles per hour"),
    ("How fast?", r"60\text{ mph}", "60"),
]


@needs_math_verify
@pytest.mark.parametrize(("problem", "truth", "answer"), RESTATED)
def test_the_problem_in_a_box_is_no_answer(problem, truth, answer):
    """Without the problem each is taken for right: that is what it earned."""
    assert judge_math(f"\\boxed{{{answer}}}", truth, timeout_s=30).correct
    verdict = judge_math(f"\\boxed{{{answer}}}", truth, timeout_s=30, problem=problem)
    assert (verdict.reason, verdict.correct) == ("restated", False)


@needs_math_verify
@pytest.mark.parametrize(("problem", "truth", "answer"), EVALUATED)
def test_a_right_answer_in_another_spelling_is_right(problem, truth, answer):
    assert judge_math(f"So $\\boxed{{{answer}}}$.", truth, timeout_s=30, problem=problem).reason == "equal"


@given(
    answer=st.text("x45=,;()[]{}\\_^:.%+-*/! ", max_size=60) | st.text(max_size=30),
    truth=st.sampled_from(["4", "x^2", r"\frac{1}{2}"]),
)
def test_any_answer_and_problem_can_be_looked_at(answer, truth):
    assert restates(answer, truth, answer) in (True, False)
    assert not restates(truth, truth, answer)


@pytest.mark.timeout(60)
def test_looking_takes_linear_time():
    for text in ("x+", "1*", r"\frac{", "(", "10^", ")", "1", "0", ".", "!", "{", "[", "^", "x", "1.", "1 "):
        assert len(expressions_in(text * 20_000)) < 30
        for answer in ("5" + text * 20_000, "x+1." + text * 20_000):
            for truth in (r"\sqrt{2}", "x+1"):
                restates(answer[:20_000], truth, text * 20_000)
