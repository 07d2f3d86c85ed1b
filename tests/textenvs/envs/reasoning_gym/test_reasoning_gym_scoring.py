"""Scores of reasoning-gym's answers: nothing a model writes is run, hangs, or earns what it should not."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.reasoning_gym import ReasoningGym
from textenvs.envs.reasoning_gym.scoring import MAX_CHARS, Score, ScorerError, is_literal, is_small_expression, score
from textenvs.envs.reasoning_gym.tasks import ReasoningGymTasks, datasets, entry_of, right_answer
from textenvs.global_rng import RandomState, contained

# Datasets that evaluate what they are given, in one way or the other.
EVALUATING = (
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
)
TOUCH = "__import__('os').environ.__setitem__('TEXTENVS_CANARY', '1')"


def judge(dataset, answer, index=0):
    tasks = ReasoningGymTasks(dataset, size=5)
    entry = entry_of(tasks[index], dataset)
    with contained(RandomState.seeded(0)):
        return score(tasks.opened(), right_answer(entry) if answer is None else answer, entry)


@pytest.mark.parametrize("dataset", EVALUATING)
def test_answers_are_not_evaluated(dataset):
    for answer in (
        TOUCH,
        f"[{TOUCH}]",
        f"1+{TOUCH}",
        f"x if {TOUCH} else x",
        "9**9**9**9",
        "10**10**10",
        "((9**20)**20)**20",
        "[9**9**9]",
        "factorial(10**9)",
        "exp(exp(exp(exp(exp(x)))))",
        "[0]*10**12",
        "(" * 5000,
        "9" * 10**6,
    ):
        assert judge(dataset, answer).value < 1
    assert "TEXTENVS_CANARY" not in os.environ


@pytest.mark.parametrize("dataset", EVALUATING)
def test_right_answers_pass_in_other_forms(dataset):
    for index in range(3):
        assert judge(dataset, None, index) == Score(1.0)
    gold = right_answer(entry_of(ReasoningGymTasks(dataset, size=5)[0], dataset))
    if dataset in ("simple_integration", "intermediate_integration"):
        assert judge(dataset, f"({gold.replace('+ C', '')}) + 7 + C") == Score(1.0)
    elif dataset in ("polynomial_multiplication", "countdown", "puzzle24"):
        assert judge(dataset, f"(({gold}))") == Score(1.0)


def test_holes_of_the_packages_scorers_are_closed():
    tasks = ReasoningGymTasks("game_of_life_halting", size=30)
    falses = [i for i in range(30) if tasks[i].ground_truth == "False"]
    assert tasks.opened().score_answer("anything", entry_of(tasks[falses[0]], "game_of_life_halting")) == 1.0
    entry = entry_of(tasks[falses[0]], "game_of_life_halting")
    assert [score(tasks.opened(), text, entry).value for text in ("anything", "True", "False")] == [0, 0, 1]
    assert judge("puzzle24", "6*4*1*1").value < 1
    tasks = ReasoningGymTasks("coin_flip", size=9)
    entry = next(entry for entry in (entry_of(tasks[i], "coin_flip") for i in range(9)) if entry["answer"] == "0.125")
    assert tasks.opened().score_answer("0", entry) == 1.0
    assert [score(tasks.opened(), text, entry).value for text in ("0", "0.12", "0.125", "1/8")] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "N a N + nan i"),
        ("number_sorting", str(["nan"] * 9)),
        ("countdown", "164e0 + 0e0*(66 + 34 + 98 + 54 + 6)"),
        ("countdown", "0xA4 + 0x0*(66 + 34 + 98 + 54 + 6)"),
        ("polynomial_multiplication", "-2*(3*x + 1)"),
    ],
)
def test_answers_without_work_are_wrong(dataset, answer):
    tasks = ReasoningGymTasks(dataset, size=5)
    entry = entry_of(tasks[0], dataset)
    if dataset == "polynomial_multiplication":
        entry["answer"] = "-6*x - 2"
    assert tasks.opened().score_answer(answer, entry) == 1.0
    assert score(tasks.opened(), answer, entry) == Score(0.0)


@pytest.mark.parametrize(
    ("answer", "package", "right"),
    [
        ("(9 - 5 + 2) * 4", 1.0, 1.0),
        ("((9-5)+2)*4\n", 1.0, 1.0),
        ("(5 * 9 + 4) / 2", 1.0, 0.0),  # 24.5
        ("9 - 5 + 2 * 4 + 12e0", 1.0, 0.0),
        ("2**5 - 4 * (9 - 7e0)", 1.0, 0.0),
        ("9.5 + 2.4 + 12.1e0", 0.01, 0.0),
        ("(9 - 5 + 2) * 4.0", 0.01, 0.0),
    ],
)
def test_whole_numbers_make_24_and_nothing_near_it(answer, package, right):
    tasks = ReasoningGymTasks("puzzle24", size=1)
    metadata = {"source_dataset": "puzzle24", "numbers": [5, 9, 4, 2]}
    entry = {"question": "", "answer": "(9 - 5 + 2)*4", "metadata": metadata}
    assert tasks.opened().score_answer(answer, entry) == package
    assert (score(tasks.opened(), answer, entry).value == 1.0) == right


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("coin_flip", "1e999999999"),
        ("coin_flip", "1e9_9_9_9_9_9_9"),
        ("coin_flip", "1e9,999,999"),
        ("coin_flip", "0e9,999,999"),
        ("coin_flip", "1e-9,999,999"),
        ("coin_flip", "1e,9999,999"),
        ("coin_flip", "1e" + "\N{ARABIC-INDIC DIGIT NINE}" * 9),
        ("coin_flip", "\N{FULLWIDTH DIGIT ONE}e-" + "\N{FULLWIDTH DIGIT NINE}" * 9),
        ("rubiks_cube", "U999999999"),
        ("rubiks_cube", "U" + "\N{ARABIC-INDIC DIGIT NINE}" * 9),
        ("rush_hour", "A+999999999"),
        ("rush_hour", "A+" + "\N{ARABIC-INDIC DIGIT NINE}" * 9),
    ],
)
def test_numbers_without_end_are_refused(dataset, answer):
    assert judge(dataset, answer) == Score(0.0, refused=True)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("[[0, 1], [1, 0]]", True),
        ("ABCD", True),
        ("-1", True),
        ("1 2 3", True),
        ("f()", False),
        ("[i for i in range(10**9)]", False),
        ("9**9", False),
        ("'a'*10**9", False),
    ],
)
def test_literals(text, safe):
    assert is_literal(text) == safe


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("3*x**2 + 2*x - 1/2 + C", True),
        ("-x**(-3)/3", True),
        ("exp(2*x)*sin(x)", True),
        ("sqrt(x**2 + 1)", True),
        ("x**(1/2)", True),
        ("x^2", False),
        ("x[0]", False),
        ("sin", False),
        ("eval(x)", False),
        ("sin(x)(x)", False),
        ("exp(x, evaluate=False)", False),
        ("x**1000", False),
        ("x**(2*9)", False),
        ("(x**9)**9", False),
        ("2**-(3**9)", False),
        ("10000000000000", False),
        ("x if y else z", False),
        ("", False),
        ("+".join("x" * 1500), False),
    ],
)
def test_small_expressions(text, safe):
    assert is_small_expression(text) == safe


def test_what_an_expression_may_hold():
    assert is_small_expression("(1+2)*3/4", ())
    assert not is_small_expression("1+x", ())
    assert is_small_expression("1+x", ("variables",))
    assert not is_small_expression("sin(x)", ("variables",))


@given(st.text(st.sampled_from("x9*+-/().,[]'\"sinexp_ \n"), max_size=40))
def test_safe_expressions_call_only_allowed_functions(text):
    class Names(dict):
        def __missing__(self, name):
            assert name in ("sin", "exp") or len(name) <= 2
            return Value()

    class Value(float):
        def __call__(self, *arguments):
            return Value()

    if is_small_expression(text):
        import contextlib

        with contextlib.suppress(ArithmeticError, TypeError):
            eval(text.strip(), {"__builtins__": {}}, Names())


class Faulty:
    def __init__(self, *readable):
        self.readable = readable

    def score_answer(self, answer, entry):
        if answer not in self.readable:
            raise KeyError(answer)
        return 1.0


def test_unreadable_answer_is_wrong_if_gold_is_readable():
    entry = {"question": "?", "answer": "4", "metadata": {"source_dataset": "mine"}}
    assert score(Faulty("4"), "four", entry) == Score(0.0, unread=True)
    assert score(Faulty("4"), "4", entry) == Score(1.0)
    with pytest.raises(ScorerError, match="scorer of 'mine' raised KeyError"):
        score(Faulty(), "four", entry)
    with pytest.raises(ScorerError):
        score(Faulty(), "4", entry)
    assert score(Faulty(), "four", {**entry, "answer": None}) == Score(0.0, unread=True)
    assert score(Faulty("4"), "4" * (MAX_CHARS + 1), entry) == Score(0.0, refused=True)


def test_datasets_paying_without_work_are_refused():
    part = {"name": "propositional_logic", "weight": 1, "config": {}}
    for dataset, options in (
        ("propositional_logic", {}),
        ("composite", {"config": {"datasets": [part]}}),
        ("game_of_life", {"scoring": "partial"}),
        ("time_intervals", {"scoring": "partial"}),
        ("composite", {"scoring": "partial", "config": {"datasets": [{**part, "name": "time_intervals"}]}}),
    ):
        with pytest.raises(ValueError, match="is refused"):
            ReasoningGym(dataset, **options)
    assert "propositional_logic" not in datasets()


def test_margin_counts_the_most_frequent_answer():
    assert ReasoningGym("chain_sum").attack_margin > 0.8
    assert ReasoningGym("isomorphic_strings").attack_margin < 0.55


@pytest.mark.parametrize("dataset", ["coin_flip", "string_synthesis"])
def test_margin_counts_repeated_questions(dataset):
    """A memoriser of a hundred right answers stays below the limit that the margin leaves."""
    env, memory = ReasoningGym(dataset), ReasoningGymTasks(dataset, seed=1000)
    answers = {memory[index].question: memory[index].ground_truth for index in range(100)}
    tasks = [env.tasks[index] for index in range(100)]
    earned = np.mean([answers.get(task.question) == task.ground_truth for task in tasks])
    assert 0.3 < earned < 1 - env.attack_margin
