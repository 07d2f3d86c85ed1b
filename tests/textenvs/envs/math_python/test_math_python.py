"""math-python: programs run, answers are judged by value, and rows of real data can be played."""

import json

import numpy as np
import pytest

from textenvs.envs.math_python import env as math_python
from textenvs.envs.math_python.env import MathPython
from textenvs.messages import user
from textenvs.sandbox import Sandbox, SandboxUnavailable
from textenvs.scoring.math import MathVerdict
from textenvs.task import Rows, Task, TaskError
from textenvs.tools.formats import FORMATS, call

try:
    Sandbox()
except SandboxUnavailable as refused:  # then test_contract.py checks the refusal
    pytest.skip(f"no sandbox here: {str(refused).splitlines()[1]}", allow_module_level=True)

rng = np.random.default_rng(0)


def rows(*pairs, **extra):
    return Rows("rows", [Task(str(i), "math", (user(q),), a, extra=extra) for i, (q, a) in enumerate(pairs)])


def ask(env, code):
    return env.step(env.format.write("", [call("python", code=code)]))


@pytest.mark.parametrize("level", ["easy", "medium", "hard"])
def test_expert_earns_maximum_with_one_program(level):
    env = MathPython(level=level, split="test")
    for index in range(3):
        env.reset(options={"task_index": index})
        _, reward, terminated, _, info = env.step(env.demonstration(rng))
        assert (reward, terminated, info["metrics"]["tool_calls"]) == (0.0, False, 1.0)
        *_, info = env.step(env.demonstration(rng))
        assert (info["stop"], info["terms"]) == ("solved", {"correct": 1.0, "calls": 0.0})


@pytest.mark.parametrize("call_format", sorted(FORMATS))
def test_every_format_of_calls_works(call_format):
    env = MathPython(call_format=call_format)
    env.reset(seed=0)
    conversation, *_ = env.step(env.demonstration(rng))
    assert env.state.task.ground_truth in conversation[-1]["content"]
    assert env.step(env.demonstration(rng))[-1]["stop"] == "solved"


def test_failing_programs_are_reported_and_cost():
    env = MathPython(call_cost=-0.05)
    env.reset(seed=0)
    conversation, reward, *_ = ask(env, "print(1)\n1 / 0")
    assert reward == -0.05
    assert conversation[-1]["content"].startswith("1\nTraceback")
    assert "ZeroDivisionError" in conversation[-1]["content"]
    conversation, reward, *_ = env.step("so it is 5")
    assert (reward, conversation[-1]["content"]) == (0.0, "Use python, or end with \\boxed{the answer}.")


def test_only_the_answer_ends_the_episode():
    env = MathPython(tasks=rows(("What is 6 * 7?", "42"), grader="number"), max_assistant_turns=4)
    for answer, stop in (
        (r"\boxed{42}", "solved"),
        (r"\boxed{42.0}", "solved"),
        (r"\boxed{41}", "wrong"),
        ("6 * 7 = 42\n#### 42", "solved"),
        ("The answer is 42.", "solved"),
        (r"\boxed{42} The answer is 41.", "wrong"),
        ("42", None),
    ):
        env.reset(seed=0)
        _, reward, terminated, _, info = env.step(answer)
        assert (info["stop"], terminated, reward) == (stop, stop is not None, float(stop == "solved"))
    env.reset(seed=0)
    assert env.step(r"<think>\boxed{42}</think> I do not know")[-1]["stop"] is None
    _, reward, _, _, info = env.step(r"\boxed{6 \cdot 7}")
    assert (info["stop"], reward) == ("wrong", 0.0)  # a number was asked for


def test_real_rows_are_compared_as_mathematics(tmp_path):
    pytest.importorskip("math_verify")
    path = tmp_path / "math.jsonl"
    solution = r"It is $\boxed{\frac{5}{6}}$."
    path.write_text(json.dumps({"problem": "What is $1/2 + 1/3$?", "solution": solution}))
    env = MathPython(path, grader_timeout_s=60)
    for answer, stop in ((r"\frac56", "solved"), ("5/6", "solved"), ("0.83", "wrong"), ("no idea", "wrong")):
        env.reset(seed=0)
        assert env.step(f"So \\boxed{{{answer}}}")[-1]["stop"] == stop
    env.reset(seed=0)
    assert env.demonstration(rng) == solution
    assert env.step(solution)[-1]["stop"] == "solved"
    env.reset(seed=0)
    assert env.step(env.careless_reply(rng))[-1]["stop"] == "wrong"


def test_comparison_timeouts_are_counted():
    pytest.importorskip("math_verify")
    env = MathPython(tasks=rows(("q", "5")), grader_timeout_s=0.3)
    env.reset(seed=0)
    *_, info = env.step(r"\boxed{9^{9^{9^9}}}")
    assert (info["stop"], info["metrics"]["grader_timeout"]) == ("wrong", 1.0)
    env = MathPython(tasks=rows(("q", "5")), grader_timeout_s=60)
    env.reset(seed=0)
    assert env.step(r"\boxed{5.0}")[-1]["stop"] == "solved"


async def test_comparing_does_not_hold_up_the_loop(monkeypatch):
    seen = []

    async def compare(stated, truth, *, timeout_s, problem):
        seen.append((stated, truth, timeout_s, problem))
        return MathVerdict("equal", "x")

    monkeypatch.setattr(math_python, "judge_math_async", compare)
    monkeypatch.setattr(math_python, "require_math_verify", lambda: None)
    env = MathPython(tasks=rows(("q", "x+1")), grader_timeout_s=2)
    await env.areset(seed=0)
    *_, info = await env.astep(r"\boxed{1+x}")
    assert (info["stop"], seen) == ("solved", [(r"\boxed{1+x}", "x+1", 2.0, "q")])


def test_rows_that_cannot_be_graded_are_refused():
    env = MathPython(tasks=rows(("q", "x"), grader="number"))
    with pytest.raises(TaskError, match="is not a number"):
        env.reset(seed=0)
    env = MathPython(tasks=rows(("q", "5"), grader="guess"))
    with pytest.raises(TaskError, match="grader is 'guess'"):
        env.reset(seed=0)


def test_sandbox_has_the_requested_limits():
    env = MathPython(sandbox={"cpu_s": 1, "wall_s": 0.3})
    env.reset(seed=0)
    conversation, *_ = ask(env, "import time; time.sleep(99)")
    assert "more than 0.3 s" in conversation[-1]["content"]
    env = MathPython(sandbox={"cpu_s": 1, "output_bytes": 100})
    env.reset(seed=0)
    conversation, *_ = ask(env, "print('x' * 1000)")
    assert "more than 100 bytes" in conversation[-1]["content"]
    shared = Sandbox()
    assert MathPython(sandbox=shared).tools[0].function.sandbox is shared
