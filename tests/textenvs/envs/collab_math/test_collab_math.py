"""CollabLLM's problems: the equality of answers."""

import pytest

import textenvs
from textenvs.data import Rows, Task
from textenvs.envs.collab_math.env import CollabMath
from textenvs.messages import user
from textenvs.scoring.math import MathVerdict


def rows(gold):
    extra = {"single_turn_prompt": "Take a half. Leave it. What is it?", "answer": f"\\boxed{{{gold}}}"}
    return Rows("a row", [Task("k", "test", (user("Help!"),), f"It is $\\boxed{{{gold}}}$.", extra=extra)])


def accuracy(gold, answer, **options):
    env = CollabMath(rows(gold), token_rate=0.0, **options)
    env.reset(seed=0)
    *_, info = env.step(answer)
    return info["metrics"]["score"]


@pytest.mark.parametrize(
    ("gold", "answer", "value", "symbolic"),
    [
        ("12", "#### 12.0", 1.0, 1.0),
        (r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}", 1.0, 1.0),
        (r"\frac{1}{2}", r"\boxed{0.5}", 0.0, 1.0),
        (r"\frac{1}{2}", "#### 1/2", 0.0, 1.0),
        ("0.5", r"\boxed{\frac12}", 0.0, 1.0),
        (r"(x+1)^2", r"\boxed{x^2+2x+1}", 0.0, 1.0),
        (r"\text{Tuesday}", r"\boxed{Tuesday}", 1.0, 1.0),
        (r"\text{Tuesday}", r"\boxed{Monday}", 0.0, 0.0),
        ("12", "#### 13", 0.0, 0.0),
        ("12", "It is 12.", 0.0, 0.0),
        ("12", "<think>#### 12</think>", 0.0, 0.0),
    ],
)
def test_equality(gold, answer, value, symbolic):
    assert accuracy(gold, answer, equality="value") == value
    pytest.importorskip("math_verify", reason="needs the extra 'math'")
    assert accuracy(gold, answer) == accuracy(gold, answer, equality="symbolic") == symbolic


def test_grader_timeout_counts_as_wrong_and_is_reported(monkeypatch):
    async def slow(*_, **__):
        return MathVerdict("timeout", "9")

    monkeypatch.setattr("textenvs.envs.collab_math.env.judge_math_async", slow)
    pytest.importorskip("math_verify", reason="needs the extra 'math'")
    env = CollabMath(rows("12"))
    env.reset(seed=0)
    assert env.step("Hm.")[-1]["metrics"]["grader_timeout"] == 0.0
    metrics = env.step("#### x")[-1]["metrics"]
    assert (metrics["score"], metrics["grader_timeout"]) == (0.0, 1.0)


def test_generated_problems_need_no_library(monkeypatch):
    for function in ("require_math_verify", "judge_math_async"):
        monkeypatch.delattr(f"textenvs.envs.collab_math.env.{function}")
    env = textenvs.make("textenv/collab-math")
    env.reset(seed=0)
    assert env.step("\\boxed{x+1}")[-1]["stop"] == "user_left"
    env.reset(seed=0)
    while not env.state.done:
        env.step(env.demonstration(None))
    assert env.state.stop == "solved"


def test_rows_without_the_library_say_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"textenvs\[math\]"):
        CollabMath(rows("12"))
    assert CollabMath(rows("12"), equality="value").equality == "value"


def test_unknown_equality_is_an_error():
    with pytest.raises(ValueError, match="equality should be 'value' or 'symbolic', not 'exact'"):
        textenvs.make("textenv/collab-math", equality="exact")


def test_answer_stated_by_condition_is_no_secret():
    env = CollabMath(rows("12"), equality="value")
    env.reset(seed=0)
    assert env.secrets() == ("12",)
    extra = {"single_turn_prompt": "There are 12 eggs. How many eggs are there?"}
    env = CollabMath(Rows("a row", [Task("k", "test", (user("Help!"),), "12", extra=extra)]), equality="value")
    env.reset(seed=0)
    assert env.secrets() == ()


TOLD = [  # the problem, the gold answer, a restated problem, and the computed answer
    (r"Compute $\binom{8}{4}$.", "70", r"\binom{8}{4}", "70"),
    (r"The expression is $99^2 - 98^2 + \log_2 (4^2)$.", "201", r"99^2 - 98^2 + \log_2 (4^2)", "201"),
    ("Expand $(2x+3)(x-5)$.", "2x^2-7x-15", "(2x+3)(x-5)", "2x^2 - 7x - 15"),
    (r"Simplify $\sqrt{50} + \sqrt{18}$.", r"8\sqrt{2}", r"\sqrt{50} + \sqrt{18}", r"8\sqrt{2}"),
]


@pytest.mark.parametrize(("saying", "gold", "restated", "worked_out"), TOLD)
def test_restated_problem_is_no_answer(saying, gold, restated, worked_out):
    pytest.importorskip("math_verify", reason="needs the extra 'math'")
    pieces = [
        {"topic": "expression", "sayings": [saying], "keywords": ["expression"], "question": "Which expression?"},
        {"topic": "form", "sayings": ["In simplest form."], "keywords": ["form"], "question": "In which form?"},
    ]
    extra = {"single_turn_prompt": saying, "pieces": pieces}
    env = CollabMath(Rows("a row", [Task("k", "test", (user("Help!"),), gold, extra=extra)]), equality="symbolic")
    for answer, score in ((restated, 0.0), (worked_out, 1.0)):
        env.reset(seed=0)
        assert env.step("Which expression is it?")[-1]["metrics"]["told"] > 0
        *_, info = env.step(rf"\boxed{{{answer}}}")
        assert (info["metrics"]["score"], info["stop"]) == (score, "solved" if score else "user_left")


def test_generated_answers_are_secrets():
    """The answer of a generated problem is never among the numbers told, though it may be a part of one."""
    env = textenvs.make("textenv/collab-math", level="hard")
    for index in (*range(60), 276):  # 276 disclosed 1x8 where the answer was 18, and had no secrets
        env.reset(seed=0, options={"task_index": index})
        assert env.secrets() == (env.state.task.ground_truth,)
