"""GSM8K with a reward tool: what each way through an episode earns, and that guessing is never the better one."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data.word_problems import LEVELS
from textenvs.envs.gsm8k_tool.env import TOOL, Gsm8kTool
from textenvs.messages import user
from textenvs.task import Rows, Task, TaskError
from textenvs.tools import FORMATS, call


def started(truth="7", **options):
    env = Gsm8kTool(Rows("one", [Task("a", "test", (user("What?"),), truth)]), **options)
    env.reset(seed=0)
    return env


def play(env, moves):
    """The rewards of ``moves``: numbers are submitted, texts are said."""
    rewards = []
    for move in moves:
        if env.state.done:
            break
        reply = move if isinstance(move, str) else env.format.write("", [call(TOOL, answer=move)])
        rewards.append(env.step(reply)[1])
    return rewards


@pytest.mark.parametrize(
    ("moves", "rewards", "stop"),
    [
        ([7, "#### 7"], [0.2, 0.8], "solved"),
        (["#### 7"], [0.8], "solved"),
        (["#### 8"], [0.0], "wrong"),
        ([8, 7, "#### 7"], [-0.2, 0.2, 0.8], "solved"),
        ([8, 9, "#### 7"], [-0.2, -0.2, 0.8], "solved"),
        ([7, 7, "#### 7"], [0.2, -0.2, 0.8], "solved"),
        ([7, 8, "#### 8"], [0.2, -0.2, 0.0], "wrong"),
        (["hello", 7, "#### 7"], [0.0, 0.2, 0.8], "solved"),
        ([1, 2, 3, 4, 7], [-0.2, -0.2, -0.2, -0.2, 0.2], "max_assistant_turns"),
    ],
)
def test_what_each_way_earns(moves, rewards, stop):
    env = started()
    assert play(env, moves) == pytest.approx(rewards)
    assert env.state.stop == stop


@pytest.mark.parametrize("answer", ["7", "$7.00", "7.", 7, 7.0, " 7 "])
def test_a_submission_is_compared_by_value(answer):
    env = started()
    assert play(env, [env.format.write("", [call(TOOL, answer=answer)])]) == [0.2]


@pytest.mark.parametrize("answer", ["seven", "6 or 7", "", "7e0", "1e999"])
def test_a_submission_that_is_no_number_is_wrong(answer):
    env = started()
    assert play(env, [env.format.write("", [call(TOOL, answer=answer)])]) == [-0.2]


moves = st.sampled_from([7, 7, 8, 9, "#### 7", "#### 8", "hm", "<tool_call>{", "<tool_call>{}</tool_call>"])


@given(st.lists(moves, max_size=6), st.integers(0, 5))
def test_an_early_miss_lowers_every_return(plan, where):
    plan = [*plan, "#### 7"]
    without = sum(play(started(max_assistant_turns=None), plan))
    assert without <= 1.0 + 1e-9
    where = min(where, len(plan) - 1)
    final = next(i for i, move in enumerate(plan) if str(move).startswith("####"))
    extra = sum(play(started(max_assistant_turns=None), [*plan[:where], 8, *plan[where:]]))
    assert extra == pytest.approx(without - 0.2 * (where <= final))


def test_guesses_in_one_reply_are_one_submission():
    env = started()
    reply = env.format.write("", [call(TOOL, answer=str(guess)) for guess in (6, 7, 8)])
    conversation, reward, *_ = env.step(reply)
    assert reward == -0.2
    assert env.state.accepted is False
    assert "Right" not in str(conversation[-3:])


@pytest.mark.parametrize("candidates", range(8, 13))
def test_blind_guessing_loses(candidates):
    """With eight or more equally likely answers, submitting guesses lowers the expected return."""
    for submitted in range(1, 5):
        earned = [
            sum(play(started(str(truth)), [*itertools.takewhile(lambda g, t=truth: g < t, range(submitted)),
                                           *([truth, f"#### {truth}"] if truth < submitted else [])]))
            for truth in range(candidates)
        ]  # fmt: skip
        assert np.mean(earned) < 0


def test_reply_without_call_or_answer_gets_a_hint():
    env = started()
    conversation, reward, terminated, _, info = env.step("It is 7.")
    assert (reward, terminated) == (0.0, False)
    assert conversation[-1] == user("Check your answer with calc_gsm8k_reward. End with #### and the number.")
    assert started(method="flexible").step("It is 7.")[1] == 0.8
    assert started().step("It is \\boxed{7}.")[1] == 0.8


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", LEVELS)
def test_expert_earns_everything_in_every_format(name, level):
    env = Gsm8kTool(level=level, call_format=name)
    for seed in range(3):
        env.reset(seed=seed)
        rng, earned = np.random.default_rng(seed), []
        while not env.state.done:
            earned.append(env.step(env.demonstration(rng))[1])
        assert earned == pytest.approx([0.2, 0.8])


def row(**extra):
    truth = {"ground_truth": "7"}
    return {"data_source": "openai/gsm8k", "prompt": [user("What?")], "reward_model": truth, "extra_info": extra}


def test_rows_made_for_verls_tool_are_played():
    env = Gsm8kTool()
    env.reset(
        options={"task": row(need_tools_kwargs=True, tools_kwargs={TOOL: {"create_kwargs": {"ground_truth": "7"}}})}
    )
    assert play(env, [7]) == [0.2]


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        ({"search": {"create_kwargs": {}}}, r"asks for the tools \['search'\]"),
        ({TOOL: {"create_kwargs": {"ground_truth": "8"}}}, "the tool's ground_truth is '8', but reward_model has '7'"),
        ("search", "must be a mapping"),
    ],
)
def test_rows_with_other_tools_are_refused(tools, error):
    with pytest.raises(TaskError, match=error):
        Gsm8kTool().reset(options={"task": row(tools_kwargs=tools)})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": "loose"}, "method should be"),
        ({"submission": 0.3}, "guessing would pay"),
        ({"call_format": "morse"}, "call_format must be one of"),
    ],
)
def test_options_are_checked(options, error):
    with pytest.raises(ValueError, match=error):
        Gsm8kTool(**options)
