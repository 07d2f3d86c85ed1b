"""Limits of what simulated users see and answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.messages import assistant, system, tool, user, visible_conversation
from textenvs.users.base import UserTurn, take_turn
from textenvs.users.llm import FEWEST_PIECES, PIECE, leaked

RNG = np.random.default_rng(0)
call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "SECRET"}'}}

any_message = st.one_of(
    st.builds(system, st.text()),
    st.builds(user, st.text()),
    st.builds(lambda a, b: assistant(f"<think>SECRET {a}</think>{b}"), st.text("xyz <>/"), st.text("ab ")),
    st.builds(lambda a: assistant(a, [call]), st.text("ab ")),
    st.builds(lambda a: {**assistant(a), "reasoning_content": "SECRET"}, st.text("ab ")),
    st.just(tool("SECRET", "c", "look_up")),
    st.just(system("SECRET")),
)


@given(st.lists(any_message))
def test_users_see_nothing_private_and_roles_alternate(messages):
    seen = visible_conversation(messages)
    assert "SECRET" not in str(seen)
    assert all(set(message) == {"role", "content"} for message in seen)
    roles = [message["role"] for message in seen]
    assert set(roles) <= {"user", "assistant"}
    assert all(one != two for one, two in zip(roles, roles[1:], strict=False))
    assert roles[-1:] == [m["role"] for m in messages if m["role"] in ("user", "assistant")][-1:]
    assert visible_conversation(seen) == seen


def test_visible_conversation_with_tools():
    messages = (
        system("rules"),
        user("hello"),
        assistant("<think>hm</think>", [call]),
        tool("42", "c", "look_up"),
        assistant("<think>no</think>It is 42."),
        user("ok"),
        assistant("<think>what now"),
    )
    assert visible_conversation(messages) == (
        user("hello"),
        assistant("It is 42."),
        user("ok"),
        assistant(""),  # silence, too, is something to answer
    )
    with_calls = '[calls look_up({"q": "SECRET"})]\n[result of look_up: 42]\nIt is 42.'
    assert visible_conversation(messages, tools=True)[1] == assistant(with_calls)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"text": ""}, "must say something"),
        ({"text": " \n"}, "must say something"),
        ({"text": "x", "ends": True}, "says why"),
        ({"text": "x", "why": "satisfied"}, "says why"),
        ({"text": "x", "ends": True, "why": ""}, "says why"),
    ],
)
def test_invalid_turns_are_refused(options, error):
    with pytest.raises(ValueError, match=error):
        UserTurn(**options)


def test_turns_are_clean():
    assert UserTurn(" lone \ud800 ").text == "lone \ufffd"
    assert UserTurn("", ends=True, why="gave_up").text == ""


class Echo:
    """A scripted user: says what it saw."""

    def speak(self, conversation, goal, rng):
        return UserTurn(f"{goal} {conversation[-1]['content']} {rng.integers(10)}")


class SlowEcho(Echo):
    async def speak(self, conversation, goal, rng):
        return super().speak(conversation, goal, rng)


@pytest.mark.parametrize("who", [Echo(), SlowEcho()])
async def test_scripted_users_see_only_visible_messages(who):
    messages = (system("s"), user("a"), assistant("<think>SECRET</think>b", [call]))
    turns = [await take_turn(who, messages, "goal", np.random.default_rng(seed)) for seed in (1, 1)]
    assert turns[0] == turns[1]
    assert turns[0].text[:-1] == "goal b "


async def test_other_return_types_are_refused():
    class Wrong:
        def speak(self, conversation, goal, rng):
            return "hello"

    with pytest.raises(TypeError, match=r"Wrong.speak must return a UserTurn, not str"):
        await take_turn(Wrong(), (), "goal", RNG)


# ------------------------------------------------------------------ leaks

words = st.lists(st.sampled_from([f"w{i}" for i in range(50)]), min_size=12, max_size=60, unique=True)


def talk_of(*messages):
    return tuple({"role": role, "content": text} for role, text in messages)


@given(words, st.data())
def test_leaked_share_of_goal(goal, data):
    text = " ".join(goal)
    assert leaked(talk_of(("user", text)), text) == 1.0
    assert leaked(talk_of(("user", f"Well: {text.upper()}!")), text) == 1.0
    assert leaked(talk_of(("user", "nothing of it")), text) == 0.0
    assert leaked(talk_of(("assistant", text), ("user", text)), text) == 0.0  # the assistant knew it
    cut = data.draw(st.integers(0, len(goal)))
    pieces = len(goal) - PIECE + 1
    part = " ".join(goal[:cut])
    assert leaked(talk_of(("user", part)), text) == pytest.approx(max(0, cut - PIECE + 1) / pieces)
    # other words, or the same in another order, are no copy
    assert leaked(talk_of(("user", " ".join(reversed(goal)))), text) == 0.0


@given(words, st.data())
def test_pieces_leak_whole_goal(goal, data):
    """However it is cut up, and whatever the assistant answers, even with what it was just told."""
    talk, rest = [], list(goal)
    while rest:
        size = data.draw(st.integers(1, 5))
        piece, rest = " ".join(rest[:size]), rest[size:]
        talk += [("user", piece), ("assistant", data.draw(st.sampled_from(["go on", f"You said: {piece}"])))]
    assert leaked(talk_of(*talk), " ".join(goal)) == 1.0


def test_short_goals_are_not_guarded():
    goal = " ".join(f"w{i}" for i in range(FEWEST_PIECES + PIECE - 2))
    assert leaked(talk_of(("user", goal)), goal) == 0.0
    assert leaked(talk_of(("user", f"{goal} more")), f"{goal} more") == 1.0
