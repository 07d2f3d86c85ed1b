"""A turn sums its terms, and refuses what makes no sense."""

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs import EnvironmentFailure, Turn
from textenvs.messages import assistant, tool, user

finite = st.floats(-1e6, 1e6)


@given(terms=st.dictionaries(st.text(max_size=5), finite, max_size=5))
def test_a_turn_sums_its_terms(terms):
    turn = Turn(terms=terms)
    assert turn.reward == pytest.approx(sum(terms.values()), abs=1e-6)
    assert sum(turn.terms.values()) == pytest.approx(turn.reward, abs=1e-6)
    assert turn.terms


@given(reward=finite)
def test_a_turn_without_terms_has_one(reward):
    assert Turn(reward=reward).terms == {"reward": reward}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reward": 1.0, "terms": {"a": 0.5}}, "sum to 0.5"),
        ({"reward": float("nan")}, "finite"),
        ({"reward": 1e308}, "at most 1e\\+12"),
        ({"terms": {"a": 1e308, "b": -1e308}}, "at most 1e\\+12"),
        ({"metrics": {"a": -1e308}}, "at most 1e\\+12"),
        ({"terms": {"a": float("inf")}}, "finite"),
        ({"metrics": {"seconds": float("nan")}}, "metrics.*finite"),
        ({"terminated": True}, "needs a stop"),
        ({"stop": "solved"}, "terminated is not set"),
        ({"terminated": True, "stop": "max_user_turns"}, "set by TextEnv"),
        ({"terminated": True, "stop": "judge_failed"}, "raise EnvironmentFailure"),
        ({"messages": [{"role": "user"}]}, "message 0: content"),
        ({"messages": user("one message, not a list")}, "sequence"),
        ({"messages": [user("ok"), assistant("mine")]}, "not as assistant"),
    ],
)
def test_a_turn_that_makes_no_sense_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Turn(**fields)


def test_a_turn_is_a_value():
    turn = Turn([user("no")], 1, terms={"a": 1}, metrics={"b": 2})
    assert turn == Turn((user("no"),), terms={"a": 1.0}, metrics={"b": 2.0}) != Turn([user("no")])
    assert pickle.loads(pickle.dumps(turn)) == copy.deepcopy(turn) == dataclasses.replace(turn) == turn
    assert dataclasses.replace(turn, terminated=True, stop="solved", messages=()).stop == "solved"
    assert dataclasses.replace(turn, reward=None, terms={"c": 2.0}).reward == 2.0
    assert eval(repr(turn)) == turn
    with pytest.raises(dataclasses.FrozenInstanceError):
        turn.reward = 2.0


def test_turn_keeps_a_clean_copy():
    message = tool("lone \ud800", "id")
    turn = Turn([message])
    assert turn.messages[0]["content"] == "lone \ufffd"
    message["content"] = "changed"
    assert turn.messages[0]["content"] == "lone \ufffd"


def test_an_environment_failure_survives_pickling():
    failure = pickle.loads(pickle.dumps(EnvironmentFailure("judge_failed", "timed out")))
    assert (failure.stop, failure.reason, str(failure)) == ("judge_failed", "timed out", "judge_failed: timed out")
    with pytest.raises(ValueError, match="one of"):
        EnvironmentFailure("solved", "no")
