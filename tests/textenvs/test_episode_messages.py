"""The messages of an episode in the order of time: each once, and no reply lost or doubled, whatever its contexts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import Contexts, Guess

from textenvs.compaction import Compact
from textenvs.messages import assistant, system, user
from textenvs.turn import EpisodeMessages, messages_of_turn

COMMANDS = st.sampled_from(["more", "anew", "answered", "branch", "back 0", "back 1", "back 2"])


def play(env, replies, seed=0):
    """Return the episode's messages, and the state's contexts."""
    observation, info = env.reset(seed=seed)
    episode = EpisodeMessages.begin(observation)
    for reply in replies:
        size, contexts = len(env.state.messages), env.state.contexts
        observation, _, terminated, truncated, info = env.step(reply)
        added, context = messages_of_turn(env.state, size, contexts)
        assert info.get("closing") == (None if context is None else added)
        episode = episode.step(assistant(reply), observation, info.get("closing"))
        if terminated or truncated:
            break
    return episode


@given(commands=st.lists(COMMANDS, max_size=12), seed=st.integers(0, 99))
def test_each_message_stands_once_in_order_of_time(commands, seed):
    """Every turn of this environment says one new message, and ``answered`` one more before it."""
    env, turns = Contexts(), []
    observation, _ = env.reset(seed=seed)
    episode, expected = EpisodeMessages.begin(observation), [*observation]
    for number, wish in enumerate(commands):
        command = wish if not wish.startswith("back") or int(wish[5:]) < len(env.state.contexts) else "more"
        observation, *_, info = env.step(command)
        episode = episode.step(assistant(command), observation, info.get("closing"))
        turns.append(assistant(command))
        expected += [turns[-1], *[user("Well.")] * (command == "answered"), observation[-1]]
        assert observation[-1]["content"].startswith(f"Message {number + 1}")
    assert list(episode.messages) == expected
    assert list(episode.replies) == turns
    if not env.state.contexts:
        assert episode.messages == observation


@given(replies=st.lists(st.text("abc", max_size=20), max_size=10), keep=st.integers(0, 4), seed=st.integers(0, 9))
@settings(max_examples=40)
def test_compaction_loses_and_doubles_no_reply(replies, keep, seed):
    """Replies that a summary keeps are there once: a score of all replies is neither evaded nor collected twice."""
    episode = play(Compact(Guess(max_assistant_turns=None), tokens=30, keep=keep, count=len), replies, seed)
    assert [message["content"] for message in episode.replies] == replies[: len(episode.replies)]
    assert episode.earlier or len(replies) < 4
    assert [message for message in episode.messages if message["role"] == "assistant"] == list(episode.replies)


def test_edited_history_adds_only_what_is_new():
    """A program that writes its history anew at each call; the policy's own words count."""
    first, reply, edited = user("Q"), assistant("my words"), assistant("its words")
    episode = EpisodeMessages.begin((first,))
    episode = episode.step(reply, (first, edited, user("A")), (reply,))
    episode = episode.step(
        assistant("more"), (first, edited, user("A"), assistant("MORE"), user("B")), (assistant("more"),)
    )
    texts = [message["content"] for message in episode.messages]
    assert texts == ["Q", "my words", "A", "more", "B"]


def test_call_made_twice_has_its_question_twice():
    opening = (system("S"), user("Q"))
    episode = EpisodeMessages.begin(opening).step(assistant("a"), opening, (assistant("a"),))
    episode = episode.step(assistant("b"), (*opening, assistant("a"), user("R")), (assistant("b"),))
    assert [m["content"] for m in episode.messages] == ["S", "Q", "a", "Q", "b", "R"]
    assert [m["content"] for m in episode.replies] == ["a", "b"]


@pytest.mark.parametrize("observation", [(user("Q"),), (user("Q"), user("other")), (user("else"),)])
def test_reply_that_is_not_shown_is_there(observation):
    episode = EpisodeMessages.begin((user("Q"),)).step(assistant("a"), observation)
    assert episode.messages[:2] == (user("Q"), assistant("a"))
    assert episode.messages[2:] == observation[-1:]
