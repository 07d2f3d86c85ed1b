"""Self-correction: the paper's rewards and figures, and no verdict on the first attempt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.self_correct.env import FEEDBACK, SelfCorrect
from textenvs.messages import user

RNG = np.random.default_rng(0)


def play(env, *right, seed=0):
    """Play an episode in which the attempts are right or wrong as in ``right``; return the results of its steps."""
    env.reset(seed=seed)
    truth = env.state.task.ground_truth
    return [env.step(f"#### {truth}" if correct else f"#### {int(truth) + 1}") for correct in right]


@given(
    first=st.booleans(),
    second=st.booleans(),
    alpha=st.floats(0, 20),
    rewarded=st.sampled_from(("both", "second")),
    shaped=st.sampled_from(("second", "both")),
    seed=st.integers(0, 99),
)
def test_rewards_follow_the_formulas(first, second, alpha, rewarded, shaped, seed):
    one, two = play(SelfCorrect(alpha=alpha, rewarded=rewarded, shaped=shaped), first, second, seed=seed)
    r1, r2 = float(first), float(second)
    assert one[4]["terms"] == {
        "correct": r1 if rewarded == "both" else 0.0,
        "bonus": pytest.approx(alpha * r1 if shaped == "both" else 0.0),
    }
    paper = alpha * (r2 - r1)
    shaped_both = -alpha * r1 * (1 - r2) + alpha / 4 * r2 * (1 - r1)
    assert two[4]["terms"] == {"correct": r2, "bonus": pytest.approx(paper if shaped == "second" else shaped_both)}
    assert [step[1] for step in (one, two)] == [pytest.approx(sum(step[4]["terms"].values())) for step in (one, two)]


def totals(env):
    return {pair: sum(step[1] for step in play(env, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}


@given(alpha=st.floats(0, 50), rewarded=st.sampled_from(("both", "second")))
def test_failing_first_never_pays(alpha, rewarded):
    total = totals(SelfCorrect(alpha=alpha, rewarded=rewarded))
    assert total[1, 1] >= total[0, 1] - 1e-9
    assert total[0, 1] >= total[0, 0] + 1
    assert total[1, 1] >= total[1, 0] + 1 - 1e-9


@given(alpha=st.floats(0.01, 50))
def test_deliberate_mistake_earns_less_than_half(alpha):
    total = totals(SelfCorrect(alpha=alpha))
    assert total[0, 0] == 0
    assert total[0, 1] < 0.5 * total[1, 1]


def test_fail_then_succeed_at_the_defaults():
    """Failing first earned 11 with the paper's bonus, and two right attempts 2."""
    env = SelfCorrect()
    earned = []
    for first in ("#### 0.5", None):
        env.reset(seed=0)
        expert = env.demonstration(RNG)
        earned.append(env.step(first or expert)[1] + env.step(expert)[1])
    assert earned == [3.5, 12.0]


def test_metrics_average_to_the_papers_figures():
    pairs = [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (1, 1), (1, 1), (0, 1)]
    last = [play(SelfCorrect(), *pair, seed=seed)[-1][4]["metrics"] for seed, pair in enumerate(pairs)]
    mean = {name: np.mean([metrics[name] for metrics in last]) for name in last[0]}
    before, after = np.array(pairs).T
    assert mean == {
        "accuracy_t1": before.mean(),
        "accuracy_t2": after.mean(),
        "delta_t1_t2": after.mean() - before.mean(),
        "delta_i_to_c": (after > before).mean(),
        "delta_c_to_i": (after < before).mean(),
    }


def test_feedback_is_independent_of_first_attempt():
    env = SelfCorrect()
    for first in (False, True):
        for second in (False, True):
            one, two = play(env, first, second)
            assert one[0][-1] == user(FEEDBACK)
            assert (one[2], one[3], one[4]["stop"]) == (False, False, None)
            assert (two[2], two[3], two[4]["stop"]) == (True, False, "solved" if second else "wrong")
            assert len(two[0]) == len(one[0]) + 1  # the user has nothing to add
    assert play(SelfCorrect(feedback="Again?"), True)[0][0][-1] == user("Again?")


def test_conversation_score_is_the_last_attempts():
    env = SelfCorrect()
    env.reset(seed=1)
    assert env.conversation_score() == {"accuracy": 0.0}
    for right in (True, False):
        play(env, right)
        assert env.conversation_score() == {"accuracy": float(right)}
        env.step(env.demonstration(RNG))
        assert env.conversation_score() == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "generated:easy", "level": "easy"}, "give either tasks or level, not both"),
        ({"rewarded": "first"}, "rewarded should be 'both' or 'second', not 'first'"),
        ({"feedback": " "}, "feedback .*, not ' '"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        SelfCorrect(**options)
