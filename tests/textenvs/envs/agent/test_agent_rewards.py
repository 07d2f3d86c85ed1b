"""Rewards of programs: what they return and post, what scorers return, and the turns that are paid."""

import asyncio
import contextlib
import json
import queue
import threading
import urllib.error
from collections import Counter

import pytest
from agent_kit import TASKS, ask, make, post, talk
from hypothesis import given, settings
from hypothesis import strategies as st

from textenvs.envs.agent import Agent, episode
from textenvs.gateway.channel import Ended
from textenvs.gateway.model_call import ModelCall, RequestError
from textenvs.messages import assistant, user


def posting(task, url, key):
    first = ask(url, key, user("?"))
    post(url, key, "rewards", {"reward": 0.25})
    post(url, key, "rewards", {"terms": {"reward": 0.25, "style": -1}})
    ask(url, key, user("?"), first, user("And?"))
    post(url, key, "rewards", {"reward": 2})


def test_posted_rewards_are_of_the_turn_before():
    env = make(posting)
    _, reward, *_, info = env.step("a")
    assert (reward, info["terms"]) == (-0.5, {"reward": 0.5, "style": -1.0})
    _, reward, terminated, _, info = env.step("b")
    assert (reward, terminated, info["stop"]) == (2.0, True, "solved")


def returning(value):
    def agent(task, url, key):
        ask(url, key, user("?"))
        return value

    return agent


@pytest.mark.parametrize(
    ("value", "reward", "stop"),
    [(True, 1.0, "solved"), (0, 0.0, "done"), (-0.5, -0.5, "done"), ({"a": 2}, 2.0, "solved")],
)
def test_returned_value_is_the_reward(value, reward, stop):
    _, result, terminated, _, info = make(returning(value)).step("x")
    assert (result, terminated, info["stop"]) == (reward, True, stop)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "gave no reward"),
        ([1.0, 2.0], "2 rewards, and there were 1 turn:"),
        (["a"], "for turn 0, 'a', which is neither"),
        ("1", "neither a number nor named numbers"),
        (float("nan"), "must be finite"),
        ({"a": "b"}, "must be a number"),
        ({}, "a reward is"),
        (10**400, "too large"),
        ([1e13], "the program returned, for turn 0, {'reward': 10000000000000.0}: a reward's terms must be finite"),
        ([float("-inf")], "for turn 0, {'reward': -inf}: a reward's terms must be finite"),
        ({"a": 10**400}, "too large"),
    ],
)
def test_other_values_pay_nothing(value, words):
    _, reward, terminated, truncated, info = make(returning(value)).step("x")
    assert (reward, terminated, truncated, info["stop"]) == (0.0, True, False, "program_error")
    assert words in info["reason"]
    *_, info = make(returning(None), scorer=lambda *_: value).step("x")
    assert (info["stop"], info["failed"]) == ("judge_failed", True)


def test_posts_before_the_program_fails_are_paid():
    def agent(task, url, key):
        for reward in (0.25, 0.5):
            ask(url, key, user("?"))
            post(url, key, "rewards", {"reward": reward})
        raise KeyError("lost")

    env = make(agent)
    assert env.step("x")[1] == 0.25
    _, reward, *_, info = env.step("y")
    assert (reward, info["stop"]) == (0.5, "program_error")


def paying_turns(task, url, key):
    one, *_ = first = [user("One?")], ask(url, key, user("One?"))
    ask(url, key, *one, first[1], user("And?"))
    post(url, key, "rewards", {"reward": 0.125})
    ask(url, key, user("Two?"))
    return [0.5, {"style": -1, "reward": 1}, 2]


def test_returned_list_has_a_reward_for_each_turn():
    env = make(paying_turns)
    assert [env.step("x")[1], env.step("y")[1]] == [0.0, 0.125]
    _, reward, terminated, _, info = env.step("z")
    assert (reward, terminated, info["stop"]) == (2.5, True, "solved")
    assert info["earlier"] == {0: {"reward": 0.5}, 1: {"style": -1.0, "reward": 1.0}}
    assert info["terms"] == {"reward": 3.5, "style": -1.0}
    assert env.state.return_so_far == 2.625


def test_scorer_may_pay_each_turn():
    def scorer(task, messages, files):
        return [1.0, 0.5] if len(messages) == 4 else [0.0]

    env = make(no_answer_in_task, scorer=scorer, max_assistant_turns=2)
    env.step("3")
    _, reward, _, truncated, info = env.step("4")
    assert (reward, truncated, info["earlier"]) == (1.5, True, {0: {"reward": 1.0}})


def delegating(task, url, key):
    """Ask a sub-agent the same twice, and something else at the end; the history of the second call is edited."""
    messages = [user("Q")]
    messages.append(ask(url, key, *messages))
    ask(url, key, user("sub"))
    ask(url, key, user("sub"))
    ask(url, key, messages[0], assistant("edited"), user("and?"))
    ask(url, key, *messages, user("go on"))
    ask(url, key, user("last"))


@pytest.mark.parametrize("options", [{}, {"max_assistant_turns": 6}], ids=["ended", "cut"])
def test_scorer_reads_all_contexts(options):
    """No words hide in a conversation that the program has left; no reply counts twice."""
    calls = []
    program = delegating if not options else lambda *call: (delegating(*call), ask(*call[1:], user("one more")))
    env = make(program, scorer=lambda task, messages, files: calls.append(messages) or 1.0, **options)
    for reply in "abcdef":
        result = env.step(reply)
    assert result[2] != result[3] == bool(options)
    texts = ["Q", "a", "sub", "b", "sub", "c", "and?", "d", "go on", "e", "last", "f"]
    assert [[message["content"] for message in messages] for messages in calls] == [texts]


def score(task, messages, files):
    return {"right": float(messages[-1]["content"] == task.ground_truth), "length": -0.1 * len(messages)}


async def broken_score(task, messages, files):
    raise OSError("the judge is away")


def exiting_score(task, messages, files):
    raise SystemExit(3)


def no_answer_in_task(task, url, key):
    assert task.ground_truth is None
    talk(task, url, key)


def test_scorer_judges_the_end_and_a_spent_budget():
    env = make(no_answer_in_task, scorer=score, max_assistant_turns=2)
    env.step("4")
    _, reward, terminated, _, info = env.step("stop")
    assert (terminated, info["terms"]) == (True, {"right": 0.0, "length": -0.4})
    env.reset(options={"task_index": 0})
    env.step("3")
    _, reward, terminated, truncated, info = env.step("4")
    assert (reward, terminated, truncated, info["stop"]) == (pytest.approx(0.6), False, True, "max_assistant_turns")
    *_, info = make(returning(1), scorer=broken_score).step("x")
    assert (info["stop"], "the judge is away" in info["failure"]) == ("judge_failed", True)
    *_, info = make(returning(1), scorer=exiting_score).step("x")
    assert (info["stop"], "SystemExit: 3" in info["failure"]) == ("judge_failed", True)


def test_reward_before_the_first_reply_is_refused():
    def eager(task, url, key):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            post(url, key, "rewards", {"reward": 5.0})
        refused.append(json.load(refusal.value)["error"]["message"])
        ask(url, key, user("?"))
        return 0.5

    refused = []
    assert make(eager).step("x")[1] == 0.5
    assert refused == ["no call has a reply yet, so there is no turn to reward"]


# ------------------------------------------------------------------ the turns that are paid


class Played(Agent):
    """An environment whose program is the test itself, which calls, posts and ends where it likes."""

    def _start(self, task, url, channel):
        self.channel, self.calls = channel, 0
        self.call()
        return self

    def call(self):
        """Begin a call that waits for its reply, beside those that wait already."""
        self.calls += 1
        call = ModelCall("openai-chat", "policy", (user(f"{self.calls}?"),))
        coroutine = self.channel.ask(call, str(self.calls).encode(), None)
        reply = asyncio.run_coroutine_threadsafe(coroutine, self.channel.loop)
        reply.add_done_callback(lambda reply: reply.exception() and self.refused(reply.exception()))
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.channel.loop).result(60)  # it comes after the call

    def refused(self, error):
        self.channel.program_ended(Ended(error=error))

    def files(self):
        return None

    def stop(self):
        pass


numbers = st.integers(-8, 8).map(lambda number: number / 8)
posts = st.dictionaries(st.sampled_from(["reward", "style"]), numbers, min_size=1)
returns = st.none() | numbers | st.just("a list")


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["call", "step"]) | posts, max_size=12), posts, returns, st.none() | st.integers(1, 4))
def test_posts_pay_the_turn_answered_last(actions, last_post, result, most):
    """Whatever calls wait: each post is paid to the turn of the reply before it, and returns are whole."""
    env = Played(tasks=TASKS, max_assistant_turns=most)
    env.reset(seed=0)
    expected, paid, turns = Counter(), Counter(), 0

    def step():
        *_, reward, _, _, info = env.step("x")
        earlier = info.get("earlier", {})
        assert all(number < turns for number in earlier)
        own = Counter(info["terms"])
        for number, terms in earlier.items():
            paid.update({(number, name): value for name, value in terms.items()})
            own.subtract(terms)
        paid.update({(turns, name): value for name, value in own.items()})
        assert not info["failed"], info["failure"]
        return reward

    total = 0.0
    for action in [*actions, last_post, "end"]:
        if action == "call":
            env.call()
        elif action == "end" or (action == "step" and env.calls > turns + 1):
            if action == "end":
                result = [0.5] * (turns + 1) if result == "a list" else result
                returned = {turns: result} if isinstance(result, float) else dict(enumerate(result or ()))
                expected.update({(number, "reward"): value for number, value in returned.items()})
                env.channel.program_ended(Ended(0.0 if result is None and not turns else result))
            total += step()
            turns += 1
        elif isinstance(action, dict) and turns:
            env.channel.reward(action)
            expected.update({(turns - 1, name): value for name, value in action.items()})
        if env.state.done:
            break
    with pytest.raises(RequestError, match="this episode is over"):
        env.channel.reward({"reward": 1.0})
    assert {key: value for key, value in paid.items() if value} == {k: value for k, value in expected.items() if value}
    assert total == env.state.return_so_far == sum(expected.values())


def test_post_beside_a_waiting_call_pays_its_turn():
    env = Played(tasks=TASKS)
    env.reset(seed=0)
    env.call()
    assert env.step("x")[1] == 0.0
    env.channel.reward({"reward": 0.5})
    env.channel.program_ended(Ended(1.0))
    _, reward, *_, info = env.step("y")
    assert (reward, info["terms"], info["earlier"]) == (1.5, {"reward": 1.5}, {0: {"reward": 0.5}})


def test_post_that_names_a_response_pays_its_turn():
    env = Played(tasks=TASKS)
    env.reset(seed=0)
    env.call(), env.call()
    env.step("x"), env.step("y")
    for form in ("chatcmpl-0", "resp_0", "msg_0"):
        env.channel.reward({"reward": 0.25}, response=form)
    env.channel.reward({"reward": 2.0}, response="chatcmpl-1")
    for unknown in (
        "",
        "chatcmpl-2",
        "chatcmpl-",
        "chatcmpl-00",
        "0",
        "chatcmpl-" + "9" * 5000,
    ):  # the third call waits
        with pytest.raises(RequestError, match="no reply with the id") as refusal:
            env.channel.reward({"reward": 1.0}, response=unknown)
        assert refusal.value.status == 404
    env.channel.program_ended(Ended(1.0))
    info = env.step("z")[-1]
    assert info["earlier"] == {0: {"reward": 0.75}, 1: {"reward": 2.0}}
    assert info["own_terms"] == {"reward": 1.0}


def test_post_naming_a_response_checks_its_role():
    def agent(task, url, key):
        def call(role):
            return post(url, key, "chat/completions", {"model": f"policy/{role}", "messages": [user("?")]})["id"]

        ids = [call("a"), call("b")]
        for body in ({"response": "chatcmpl-7"}, {"response": ids[1], "role": "a"}):
            with pytest.raises(urllib.error.HTTPError) as refusal:
                post(url, key, "rewards", {"reward": 1, **body})
            refused.append(refusal.value.code)
        post(url, key, "rewards", {"reward": 0.5, "response": ids[0]})
        post(url, key, "rewards", {"reward": 2, "response": ids[1], "role": "b"})

    refused = []
    env = make(agent, roles=["a", "b"])
    env.step("x")
    info = env.step("y")[-1]
    assert (refused, info["earlier"], info["own_terms"]) == ([404, 400], {0: {"reward": 0.5}}, {"reward": 2.0})


class PostsWhenRefused(Played):
    """A program of parallel calls: what it makes of the last reply comes after the limit has refused another one."""

    def refused(self, error):
        self.channel.reward({"reward": 0.5})
        super().refused(error)


def test_parallel_post_at_the_limit_is_paid():
    env = PostsWhenRefused(tasks=TASKS, max_assistant_turns=1)
    env.reset(seed=0)
    env.call()
    _, reward, terminated, truncated, info = env.step("x")
    assert (reward, terminated, truncated, info["stop"]) == (0.5, False, True, "max_assistant_turns")
    with pytest.raises(RequestError, match="this episode is over"):
        env.channel.reward({"reward": 1.0})


def test_sequential_program_is_not_waited_for(monkeypatch):
    """It has posted what it has to post for a reply before it calls again, so its refusal is the end."""

    def surviving(task, url, key):
        ask(url, key, user("One?"))
        post(url, key, "rewards", {"reward": 0.5})
        with contextlib.suppress(urllib.error.HTTPError):
            ask(url, key, user("Two?"))
        outlived.put(over.wait(30))

    monkeypatch.setattr(episode, "_GRACE_S", 100.0)
    over, outlived = threading.Event(), queue.SimpleQueue()
    env = make(surviving, max_assistant_turns=1)
    assert env.step("x")[1:4] == (0.5, False, True)
    over.set()
    assert outlived.get(timeout=60), "the step waited for the program's end"


@settings(max_examples=20)
@given(st.lists(posts, min_size=1, max_size=4), numbers, st.booleans())
def test_posts_beside_a_scorer_are_refused_unless_allowed(posted, score, allowed):
    """Commands of the policy in a program's tools have the program's key: they must not write its reward."""
    env = Played(tasks=TASKS, scorer=lambda *_: score, **({"posts": True} if allowed else {}))
    env.reset(seed=0)
    env.call()
    env.step("x")
    for terms in posted:
        if allowed:
            env.channel.reward(terms)
            continue
        with pytest.raises(RequestError, match="option posts=True") as refusal:
            env.channel.reward(terms)
        assert refusal.value.status == 403
    env.channel.program_ended(Ended())
    env.step("y")
    assert env.state.return_so_far == score + (sum(sum(terms.values()) for terms in posted) if allowed else 0.0)


def test_too_large_sums_of_rewards_are_named():
    def agent(task, url, key):
        talk(task, url, key)
        return [7e11, -1.0, 6e11]

    env = make(agent)
    env.step("a"), env.step("b")
    info = env.step("stop")[-1]
    assert (info["stop"], info["terms"]) == ("program_error", {"reward": 0.0})
    assert f"{__name__}:" in info["reason"]
    words = (
        "its rewards 'reward' add up to 1.3e+12, and may add up to 1e+12; scale them (the program returned 7e+11 for"
    )
    assert f"{words} turn 0)" in info["reason"]


def test_no_reward_is_taken_while_a_scorer_judges():
    """It would be lost, so it is refused; the program's waiting call is not, because it may then change its files."""
    events = []

    def scorer(task, messages, files):
        with pytest.raises(RequestError, match="this episode is over"):
            env.channel.reward({"reward": 1.0})
        events.append(env.channel.session.ended)
        return 0.5

    env = Played(tasks=TASKS, scorer=scorer, max_assistant_turns=1)
    env.reset(seed=0)
    env.call()
    assert (env.step("x")[1], events, env.channel.session.ended) == (0.5, [False], True)


@pytest.mark.parametrize("options", [{"roles": 5}, {"command": 5, "agent": None}])
def test_option_that_is_no_list_is_named(options):
    with pytest.raises(ValueError, match=r"^(roles|command): it must be .*, not 5"):
        Agent(**{"agent": talk, "tasks": TASKS, **options})
