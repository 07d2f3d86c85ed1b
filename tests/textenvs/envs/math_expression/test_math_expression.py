"""Expressions worked out with tools: what a step earns, and that only the shortest way earns everything."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.math_expression.env import MathExpression
from textenvs.envs.math_expression.tasks import LEVELS
from textenvs.messages import user
from textenvs.task import Rows, Task, TaskError
from textenvs.tools import FORMATS, call
from textenvs.tools.jsontext import read_object


def started(expression="3 * (4 + 5) - 6", truth="21", made_up=None, **options):
    extra = {"expression": expression} | ({"made_up": made_up} if made_up else {})
    env = MathExpression(Rows("one", [Task("a", "test", (user("Go."),), truth, extra=extra)]), **options)
    env.reset(seed=0)
    return env


def step(env, *calls):
    return env.step(env.format.write("", [call(name, a=a, b=b) for name, a, b in calls]))[1]


def test_operations_are_paid_once_other_calls_cost():
    env = started()
    share = pytest.approx(0.2 / 3)
    assert step(env, ("multiply", 3, 4)) == -0.05, "not an operation of two numbers of the expression"
    assert step(env, ("add", 5, 4)) == share, "a sum may be written either way round"
    assert step(env, ("add", 4, 5)) == -0.05, "paid already"
    assert step(env, ("multiply", 3, 9), ("subtract", 27, 6)) == pytest.approx(0.4 / 3), "two at once"
    assert step(env, ("subtract", 27, 6)) == -0.05
    assert env.step("Final Answer: #### 21")[1:3] == (0.8, True)


def test_swapped_difference_is_no_progress():
    env = started("5 - 3", "2")
    assert step(env, ("subtract", 3, 5)) == -0.05
    assert step(env, ("subtract", 5.0, 3)) == 0.2


@pytest.mark.parametrize(
    "reply", ["Action: add\nAction Input: {", "Action: add\nAction Input: {}", "Action: plus\nAction Input: {}"]
)
def test_calls_that_fail_cost_as_much(reply):
    assert started().step(reply)[1] == -0.05


@pytest.mark.parametrize("tools", ["operators", "calculator"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_expert_plays_shortest_in_every_format(level, name, tools):
    if (level, tools) == ("made-up", "calculator"):
        with pytest.raises(ValueError, match="does not know what @ means"):
            MathExpression(level=level, tools=tools)
        return
    env = MathExpression(level=level, tools=tools, call_format=name)
    for seed in range(3):
        env.reset(seed=seed)
        rng, earned = np.random.default_rng(seed), 0.0
        while not env.state.done:
            earned += env.step(env.demonstration(rng))[1]
        assert earned == pytest.approx(1.0)
        assert env.state.stop == "solved"
        assert env.state.tool_errors == 0


numbers = st.sampled_from([3, 4, 5, 6, 9, 27, 21, 2.5])
some_calls = st.tuples(st.sampled_from(["add", "subtract", "multiply", "divide", "at"]), numbers, numbers)


@given(st.lists(st.lists(some_calls, min_size=1, max_size=3), max_size=5))
def test_no_play_earns_more_than_the_shortest(plan):
    env = started()
    earned = [step(env, *calls) for calls in plan]
    calls = sum(len(turn_calls) for turn_calls in plan)
    assert sum(earned) <= 0.2 + 1e-9
    final = env.step("Final Answer: #### 21")
    total = sum(earned) + final[1]
    assert total <= 1.0 - 0.05 * max(0, calls - 3) + 1e-9
    assert final[1] == 0.8


def test_only_the_tool_knows_the_made_up_operation():
    tasks = MathExpression(level="made-up").tasks
    meanings = {tuple(tasks[i].extra["made_up"]) for i in range(50)}
    assert len(meanings) > 20
    for p, q in ((2, 9), (5, 3)):
        env = started("4 @ 1", str(4 * p - q), made_up=[p, q])
        conversation, *_ = env.step(env.format.write("", [call("at", a=4, b=1)]))
        assert conversation[-1]["content"] == f"Observation: {4 * p - q}"
        assert str(p) not in conversation[0]["content"]


@pytest.mark.parametrize("name", FORMATS)
def test_an_expression_that_is_no_whole_number(name):
    env = started("1 / 4 + 0.1 - 2", "-1.65", call_format=name)
    rng, total = np.random.default_rng(0), 0.0
    while not env.state.done:
        total += env.step(env.demonstration(rng))[1]
    assert total == pytest.approx(1.0)


def test_answer_without_number_gets_a_request():
    env = started()
    conversation, reward, terminated, *_ = env.step("Final Answer: twenty-one")
    assert (reward, terminated) == (0.0, False)
    assert conversation[-1] == user("Use a tool. End with #### and the number.")
    assert started(method="flexible").step("Final Answer: it is 21.")[1] == 0.8
    for form in ("21", "\\boxed{21}", "3*(4+5)-6 = 21 #### 21"):
        assert started().step(f"Final Answer: {form}")[1] == 0.8


@pytest.mark.parametrize(
    ("extra", "truth", "error"),
    [
        ({}, "1", "there is no 'expression'"),
        ({"expression": "1 +"}, "1", "not an arithmetic expression"),
        ({"expression": "abs(1)"}, "1", "not arithmetic"),
        ({"expression": "1 / (2 - 2)"}, "1", "divides by zero"),
        ({"expression": "1 / 3 * 3"}, "1", "1 / 3 in the expression comes to no decimal"),
        ({"expression": "1 + 1"}, "3", "ground_truth is 3, but '1 \\+ 1' comes to 2"),
        ({"expression": "1 + 1"}, "two", "not a number"),
        ({"expression": "1 @ 1", "made_up": [1]}, "0", "made_up must be two integers"),
    ],
)
def test_rows_that_cannot_be_played_are_refused(extra, truth, error):
    rows = Rows("one", [Task("a", "test", (user("Go."),), truth, extra=extra)])
    with pytest.raises(TaskError, match=error):
        MathExpression(rows).reset(seed=0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tools": "abacus"}, "tools should be 'operators' or 'calculator'"),
        ({"tasks": "generated:harder"}, "known are generated:easy"),
        ({"tasks": "rows.jsonl", "level": "easy"}, "either tasks or level"),
    ],
)
def test_options_are_checked(options, error):
    with pytest.raises(ValueError, match=error):
        MathExpression(**options)


def test_the_calculator_is_paid_for_the_whole():
    env = started(tools="calculator")
    made = call("calculate", expression="4 + 5")
    assert env.step(env.format.write("", [made]))[1] == -0.05
    made = call("calculate", expression="3*9-6")
    assert env.step(env.format.write("", [made]))[1] == 0.2
    assert read_object(made["function"]["arguments"])["expression"] == "3*9-6"
    assert Fraction(21) == env.state.remaining
