"""Rewards of earlier turns that are known only later: in the step's reward, and named by turn."""

from dataclasses import replace

import gymnasium
import pytest
from toy_envs import ToyTasks

from textenvs import TextEnv, Turn
from textenvs.evaluate.baselines import play_policy
from textenvs.evaluate.plan import Job
from textenvs.evaluate.policies import Reply
from textenvs.external import Answer
from textenvs.messages import user
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
    assert "earlier" not in results[0][-1]
    assert env.state.return_so_far == 3.25
    info["earlier"][0].clear()
    assert played(env)[-1][-1]["earlier"] == LATE


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
