"""Rewards of earlier turns that are known only later: in the step's reward, and named by turn."""

import json
import urllib.request
from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import ToyTasks

import textenvs
from textenvs import Task, TextEnv, Turn
from textenvs.compaction import Compact
from textenvs.evaluate.baselines import play_policy
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import Reply
from textenvs.external import Answer
from textenvs.messages import user
from textenvs.turn import check_own_terms, own_terms, payment
from textenvs.two_sides import TwoSides
from textenvs.wrappers import RewardTerms

LATE = {0: {"right": 2.0, "style": -0.5}, 1: {"right": 1.0}}


class Late(TextEnv):
    """Two turns of no reward; the third pays all three."""

    def __init__(self, **options):
        super().__init__(ToyTasks(), **options)

    def respond(self, reply):
        if self.state.assistant_turns < 3:
            return Turn([user("Go on.")], terms={"right": 0.0, "style": 0.0})
        return Turn(terms={"right": 0.5, "style": 0.25}, terminated=True, stop="solved", earlier=LATE)


def played(env):
    env.reset(seed=0)
    return [env.step("x") for _ in range(3)]


def test_step_has_the_sum_and_names_turns():
    env = Late()
    results = played(env)
    assert [result[1] for result in results] == [0.0, 0.0, 3.25]
    info = results[-1][-1]
    assert (info["terms"], info["earlier"]) == ({"right": 3.5, "style": -0.25}, LATE)
    assert not {"earlier", "own_terms"} & set(results[0][-1])
    assert (own_terms(info), own_terms(results[0][-1])) == ({"right": 0.5, "style": 0.25}, {"right": 0.0, "style": 0.0})
    assert env.state.return_so_far == 3.25
    info["earlier"][0].clear()
    info["own_terms"].clear()
    again = played(env)[-1][-1]
    assert (again["earlier"], again["own_terms"]) == (LATE, {"right": 0.5, "style": 0.25})


@pytest.mark.parametrize("number", [-1, "0", True, 1.0])
def test_earlier_turn_is_named_by_its_number(number):
    with pytest.raises(ValueError, match="by the number of a turn"):
        Turn(earlier={number: {"a": 1.0}})


def test_earlier_terms_are_checked():
    with pytest.raises(ValueError, match="earlier turn 2"):
        Turn(earlier={2: {"a": float("nan")}})

    class Ahead(Late):
        def respond(self, reply):
            return Turn([user("Go on.")], earlier={self.state.assistant_turns - 1: {"a": 1.0}})

    env = Ahead()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="earlier has terms of turn 0, and this is turn 0"):
        env.step("x")
    assert (env.state.assistant_turns, env.state.return_so_far) == (0, 0.0)


def test_cut_turn_pays_earlier_turns():
    answer = Answer(cut="max_turns", earlier=LATE)
    assert (answer.earlier, answer.reward) == (LATE, 0.0)


def test_weights_apply_to_earlier_turns():
    env = RewardTerms(gymnasium.wrappers.OrderEnforcing(Late()), {"right": 2.0}, others=0.0)
    _, reward, *_, info = played(env)[-1]
    assert (reward, info["terms"]) == (7.0, {"right": 7.0, "style": 0.0})
    assert info["earlier"] == {0: {"right": 4.0, "style": 0.0}, 1: {"right": 2.0}}
    assert info["own_terms"] == {"right": 1.0, "style": 0.0}
    check_own_terms(info, reward)


def agent(task, url, key):
    """Call the model three times; the end pays each turn."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    for number in range(3):
        body = json.dumps({"messages": [user(f"Question {number}")]}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers), timeout=60).close()
    return [0.5, {"style": -1.0, "reward": 1.0}, 2.0]


def self_play():
    return textenvs.make("textenv/textarena", game="TicTacToe-v0", opponent="self")


def two_sides():
    return TwoSides("textenv/clarify", {"ambiguous": 1.0}, user={"prompt": "short"})


def from_numbers(env, number):
    return str(number)


def expert(env, number):
    return env.demonstration(env.np_random)


def talker(env, number):
    """Play both sides: the user's first message is refused."""
    if env._side == "assistant":
        return env.env.demonstration(np.random.default_rng(0))
    request = env.env._request
    return "" if number == 1 else str(request.values[request.missing[0]])


PAYING = {
    "late": (Late, from_numbers),
    "weights": (lambda: RewardTerms(Late(), {"right": 0.5}, others=-1.0), from_numbers),
    "summaries": (lambda: Compact(Late(), tokens=1, keep=0, count=len), from_numbers),
    "programs": (
        lambda: textenvs.make("textenv/agent", agent=agent, tasks=[Task("t", "toy", (user("?"),), "")]),
        from_numbers,
    ),
    "self-play": (self_play, expert),
    "two sides": (two_sides, talker),
}


@pytest.mark.parametrize(("make", "policy"), PAYING.values(), ids=list(PAYING))
def test_payments_sum_to_the_episodes_reward(make, policy):
    env = make()
    env.reset(seed=0)
    steps, by_turn, earned, payments = 0.0, [], Counter(), 0
    for number in range(40):
        _, reward, terminated, truncated, info = env.step(policy(env, number))
        check_own_terms(info, reward)
        steps += reward
        earned.update(info["terms"])
        by_turn.append(Counter(own_terms(info)))
        for turn, terms in info.get("earlier", {}).items():
            assert turn < number
            by_turn[turn].update(terms)
            payments += 1
        if terminated or truncated:
            break
    assert terminated
    assert payments
    assert sum(sum(terms.values()) for terms in by_turn) == pytest.approx(steps, abs=1e-12)
    summed = Counter()
    for terms in by_turn:
        summed.update(terms)
    assert summed == pytest.approx(dict(earned))


@given(
    own=st.dictionaries(st.sampled_from("ab"), st.floats(-1e11, 1e11)),
    earlier=st.dictionaries(st.integers(0, 1), st.dictionaries(st.sampled_from("ac"), st.floats(-1e11, 1e11))),
)
def test_payments_that_cancel_are_consistent(own, earlier):
    turn = Turn(terms=own, earlier=earlier, terminated=True, stop="solved")
    reward, _ = payment(turn, 2)
    check_own_terms({"own_terms": turn.terms, "earlier": earlier}, reward)


@given(own=st.floats(-100, 100), earlier=st.floats(-100, 100), amount=st.floats(1e-3, 100))
def test_payment_changed_alone_is_refused(own, earlier, amount):
    info = {"own_terms": {"a": own}, "earlier": {0: {"a": earlier}}}
    for changed in ({"own_terms": {"a": own + amount}}, {"earlier": {0: {"a": earlier, "b": amount}}}):
        with pytest.raises(ValueError, match="changes all three"):
            check_own_terms({**info, **changed}, own + earlier)


def test_evaluation_gives_turns_what_they_earned():
    class Policy:
        def start(self, env, seed):
            async def reply(conversation, tools):
                return Reply("x")

            return reply

    (record,) = play_policy(Late(), Policy(), [Job(0, 0, 3, 1)])
    assert record.turn_rewards == (1.5, 1.0, 0.75)
    assert (record.terms, record.total) == ({"right": 3.5, "style": -0.25}, 3.25)


def test_replaced_turn_keeps_context_and_earlier():
    turn = Turn(context=[user("x")], earlier=LATE)
    assert replace(turn, metrics={"m": 1.0}).earlier == LATE
    assert replace(turn, reward=turn.reward).context == (user("x"),)
