"""The clarify environment: rewards of asking, answering and guessing, and the observations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.data import Rows, Task, TaskError
from textenvs.envs.clarify.env import Clarify
from textenvs.envs.clarify.tasks import KINDS, GeneratedRequests, Request
from textenvs.messages import user
from textenvs.users.moves import move_metrics

RNG = np.random.default_rng(0)
TABLE = KINDS["easy"]["table"]


def request_in(env):
    return Request.from_task(env.state.task)


def find(env, condition):
    """Start an episode whose request fulfils ``condition``."""
    for index in range(1000):
        env.reset(options={"task_index": index})
        if condition(request_in(env)):
            return request_in(env)
    raise AssertionError("no such request")


def ambiguous(request):
    return bool(request.missing)


def clear(request):
    return not request.missing


@given(st.sampled_from(("easy", "medium")), st.sampled_from(("train", "test")), st.integers(0, 2**31))
def test_expert_asks_for_missing_slots_then_answers(level, split, seed):
    env = Clarify(level=level, split=split)
    observation, info = env.reset(seed=seed)
    request = request_in(env)
    rewards, score = [], 0.0
    while not env.state.done:
        assert env.conversation_score() == {"accuracy": score}
        observation, reward, *_, info = env.step(env.demonstration(RNG))
        rewards.append(reward)
    assert rewards == [-0.1] * len(request.missing) + [1.0]
    assert info["stop"] == "solved"
    assert env.conversation_score() == {"accuracy": 1.0}
    first = "asked_when_needed" if request.missing else "answered_when_clear"
    assert info["metrics"] == {
        "asked": float(bool(request.missing)),
        "needed": float(bool(request.missing)),
        "needless": 0.0,
        first: 1.0,
        **move_metrics("confirms"),
    }


@pytest.mark.parametrize("level", ["easy", "medium"])
def test_guess_loses_on_average(level):
    """Exactly: every value that the missing slots can have is guessed once."""
    env = Clarify(level=level, ambiguous=1.0)
    for index in range(20):
        env.reset(options={"task_index": index})
        request = request_in(env)
        for missing in request.missing:
            slot = next(slot for slot in request.kind.slots if slot.name == missing)
            earned = []
            for value in slot.values:
                guess = Request(request.kind, "", "", {**request.values, missing: value}, ())
                env.reset(options={"task_index": index})
                earned.append(env.step(f"#### {' '.join(guess.answer)}")[1])
            assert np.mean(earned) < 0
            assert sorted(set(earned)) == [-0.25, 1.0]


def test_careless_replies_solve_only_clear_requests():
    env = Clarify()
    right = {True: [], False: []}
    for index in range(300):
        env.reset(options={"task_index": index})
        missing = bool(request_in(env).missing)
        info = env.step(env.careless_reply(RNG))[4]
        right[missing].append(info["stop"] == "solved")
        assert info["metrics"]["asked"] == 0.0
        assert info["metrics"].get("asked_when_needed", 0.0) == 0.0
    assert all(right[False])
    assert np.mean(right[True]) < 0.25


@pytest.mark.parametrize(
    ("condition", "replies", "rewards"),
    [
        (ambiguous, ("good", "right"), (-0.1, 1.0)),
        (ambiguous, ("good", "good", "right"), (-0.1, -0.3, 1.0)),
        (ambiguous, ("known", "good", "right"), (-0.3, -0.1, 1.0)),
        (ambiguous, ("vague", "good", "right"), (-0.1, -0.1, 1.0)),
        (ambiguous, ("wrong",), (-0.25,)),
        (ambiguous, ("idle", "idle", "idle", "right"), (-0.1, -0.1, -0.1, 1.0)),
        (clear, ("right",), (1.0,)),
        (clear, ("known", "right"), (-0.3, 1.0)),
        (clear, ("vague", "right"), (-0.3, 1.0)),
        (clear, ("idle", "wrong"), (-0.1, -0.25)),
    ],
)
def test_rewards_of_replies(condition, replies, rewards):
    env = Clarify(kinds=["cap", "change"])
    request = find(env, condition)
    slots = {slot.name: slot for slot in request.kind.slots}
    texts = {
        "good": request.question(slots[request.missing[0]]) if request.missing else None,
        "known": request.question(next(slot for name, slot in slots.items() if name not in request.missing)),
        "vague": "What else?",
        "idle": "Hello.",
        "right": f"#### {' '.join(request.answer)}",
        "wrong": "#### 999",
    }
    results = [env.step(texts[reply]) for reply in replies]
    assert [result[1] for result in results] == pytest.approx(list(rewards))
    assert all(set(r[4]["terms"]) == {"correct", "wrong", "question", "needless"} for r in results)
    assert results[-1][2] == (replies[-1] in ("right", "wrong"))
    metrics = results[-1][4]["metrics"]
    assert metrics["asked"] == float(any(reply in ("good", "known", "vague") for reply in replies))
    needless = sum(reward == pytest.approx(-0.3) for reward in rewards)
    assert metrics["needless"] == needless
    first = "asked_when_needed" if request.missing else "answered_when_clear"
    assert metrics[first] == float(replies[0] == "good" if request.missing else replies[0] in ("right", "wrong"))


@pytest.mark.parametrize("level", Clarify.levels)
def test_asking_everything_first_costs_more(level):
    """Also for a policy that then does all that the expert does."""
    returns = {True: [], False: []}
    for index in range(100):
        for asks_all in returns:
            env = Clarify(level=level)
            env.reset(options={"task_index": index})
            request = request_in(env)
            everything = " ".join(map(request.question, request.kind.slots))
            earned = env.step(everything)[1] if asks_all else 0.0
            while not env.state.done:
                earned += env.step(env.demonstration(RNG))[1]
            returns[asks_all].append(earned)
    assert np.mean(returns[True]) < np.mean(returns[False]) - 0.2
    assert all(all_at_once <= careful - 0.19 for all_at_once, careful in zip(*returns.values(), strict=True))


def test_observations_hide_undisclosed_values():
    """Two requests that differ in the hidden value alone look the same until it is asked for."""
    replies = ("Hello.", "What else?", "How many people?", "#### 999")
    seen = []
    for hour in range(1, 10):
        request = Request(TABLE, "Mia", "", {"people": 4, "day": "Monday", "hour": hour}, ("hour",))
        options = {"task": request.to_task("k", "s")}
        env = Clarify()
        seen.append([env.reset(seed=0, options=options), *map(env.step, replies)])
        env.reset(seed=0, options=options)
        assert env.step("What time?")[0][-1] == user(f"At {hour}.")
    assert all(observations == seen[0] for observations in seen)


def test_answer_is_secret_unless_a_slot():
    env = Clarify(kinds=["left"])
    for half in (True, False):
        request = find(env, lambda r, half=half: r.missing and (2 * r.values["gone"] == r.values["have"]) == half)
        hidden = {str(request.values[name]) for name in request.missing}
        assert (request.answer[0] in hidden) == (half and request.missing == ("gone",))
        assert env.secrets() == (() if request.answer[0] in hidden else request.answer)


def test_custom_rows():
    request = Request.from_task(GeneratedRequests("medium", 1.0)[3])
    env = Clarify(Rows("mine", [request.to_task("a", "mine")]))
    assert env.reset(seed=0)[1]["data_source"] == "mine"
    assert env.step(env.demonstration(RNG))[1] == -0.1
    with pytest.raises(TaskError, match="kind is None"):
        env.reset(options={"task": Task("k", "s", (user("How many?"),), "4")})
    with pytest.raises(ValueError, match="give either tasks or level"):
        Clarify(Rows("mine", [request.to_task("a", "mine")]), level="medium")
    with pytest.raises(ValueError, match="row 1 is a str; give Task"):
        Clarify("rows.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "hard"}, "level should be 'easy' or 'medium'"),
        ({"kinds": ["trip"]}, "kinds must be a list out of sum, left"),
        ({"correct": 0.1, "wrong": 0.0}, "a guess .* pays as much as a question"),
        ({"question": -2.0}, "make the question cheaper"),
    ],
)
def test_bad_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Clarify(**options)
