"""Self-correction: the paper's rewards, what its figures need, and not a word about the first attempt."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.self_correct.env import ALPHA, FEEDBACK, SelfCorrect
from textenvs.messages import user

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def nothing_prepared(tmp_path, monkeypatch):
    """Tests must not see what the machine's user has prepared."""
    monkeypatch.setenv("TEXTENVS_DATA", str(tmp_path / "data"))


def play(env, *right, seed=0):
    """An episode in which the attempts are right or wrong as told; the results of its steps."""
    env.reset(seed=seed)
    truth = env.state.task.ground_truth
    return [env.step(f"#### {truth}" if each else f"#### {int(truth) + 1}") for each in right]


@given(
    first=st.booleans(),
    second=st.booleans(),
    alpha=st.floats(0, 20),
    rewarded=st.sampled_from(("both", "second")),
    shaped=st.sampled_from(("second", "both")),
    seed=st.integers(0, 99),
)
def test_the_rewards_are_the_papers_formulas(first, second, alpha, rewarded, shaped, seed):
    one, two = play(SelfCorrect(alpha=alpha, rewarded=rewarded, shaped=shaped), first, second, seed=seed)
    r1, r2 = float(first), float(second)
    assert one[4]["terms"] == {
        "correct": r1 if rewarded == "both" else 0.0,
        "bonus": pytest.approx(alpha * r1 if shaped == "both" else 0.0),
    }
    assert two[4]["terms"] == {"correct": r2, "bonus": pytest.approx(alpha * (r2 - r1))}
    assert [step[1] for step in (one, two)] == [pytest.approx(sum(step[4]["terms"].values())) for step in (one, two)]


def test_the_default_is_stage_two_with_alpha_ten():
    returns = {
        (first, second): tuple(step[1] for step in play(SelfCorrect(), first, second))
        for first in (False, True)
        for second in (False, True)
    }
    assert ALPHA == 10.0
    assert returns == {
        (False, False): (0.0, 0.0),
        (False, True): (0.0, 11.0),
        (True, False): (1.0, -10.0),
        (True, True): (1.0, 1.0),
    }


@given(alpha=st.floats(0, 50), rewarded=st.sampled_from(("both", "second")))
def test_with_a_potential_failing_first_never_pays(alpha, rewarded):
    env = SelfCorrect(alpha=alpha, rewarded=rewarded, shaped="both")
    total = {pair: sum(step[1] for step in play(env, *pair)) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert total[1, 1] >= total[0, 1] - 1e-9
    assert total[0, 1] >= total[1, 0] - 1e-9
    assert total[1, 0] >= total[0, 0] - 1e-9


def test_the_metrics_average_to_the_papers_figures():
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


def test_two_turns_and_the_same_words_between_them_whatever_the_first_was():
    env = SelfCorrect()
    for first in (False, True):
        for second in (False, True):
            one, two = play(env, first, second)
            assert one[0][-1] == user(FEEDBACK)
            assert (one[2], one[3], one[4]["stop"]) == (False, False, None)
            assert (two[2], two[3], two[4]["stop"]) == (True, False, "solved" if second else "wrong")
            assert len(two[0]) == len(one[0]) + 1  # the user has nothing to add
    assert play(SelfCorrect(feedback="Again?"), True)[0][0][-1] == user("Again?")


def test_the_conversation_as_it_stands_is_worth_its_last_attempt():
    env = SelfCorrect()
    env.reset(seed=1)
    assert env.conversation_score() == {"accuracy": 0.0}
    for right in (True, False):
        play(env, right)
        assert env.conversation_score() == {"accuracy": float(right)}
        env.step(env.demonstration(RNG))
        assert env.conversation_score() == {"accuracy": 1.0}


def test_strict_and_flexible():
    for method, right in (("strict", 0.0), ("flexible", 1.0)):
        env = SelfCorrect(method=method)
        env.reset(seed=2)
        assert env.step(f"It is {env.state.task.ground_truth}.")[4]["metrics"] == {"accuracy_t1": right}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": "generated:easy", "level": "easy"}, "give either tasks or level, not both"),
        ({"method": "loose"}, "method must be one of strict, flexible, not 'loose'"),
        ({"rewarded": "first"}, "rewarded must be one of both, second, not 'first'"),
        ({"shaped": "none"}, "shaped must be one of second, both, not 'none'"),
        ({"alpha": -1}, "alpha must be at least 0, not -1"),
        ({"alpha": float("inf")}, "alpha must be a finite number"),
        ({"alpha": None}, "alpha must be a finite number, not None"),
        ({"feedback": " "}, "feedback must be what the user says"),
        ({"feedback": None}, "feedback must be what the user says"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        SelfCorrect(**options)
