"""Compaction: what the policy sees, what the environment within sees, and copies in the middle of it."""

import asyncio
import pickle
from dataclasses import dataclass

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import AsyncGuess, Contexts, Guess

import textenvs
from textenvs import EpisodeState, Task, TextEnv, Turn
from textenvs.compaction import HEADING, REQUEST, Compact
from textenvs.messages import system, user
from textenvs.two_sides import TwoSides
from textenvs.wrappers import RewardTerms


@dataclass
class TalkState(EpisodeState):
    replies_within: tuple[str, ...] = ()


class Talk(TextEnv[TalkState]):
    """Answers each reply at random length; ``end`` ends it; the last turn pays the first, too."""

    state_type = TalkState

    def __init__(self, **options):
        super().__init__([Task("talk", "toy", (system("Rules."), user("Question?")), "secret")], **options)

    def respond(self, reply):
        self.state.replies_within = (*self.state.replies_within, reply["content"])
        if reply["content"] == "end":
            earlier = {0: {"reward": 0.5}} if self.state.assistant_turns > 1 else None
            return Turn(terminated=True, stop="done", terms={"reward": 1.0}, earlier=earlier)
        return Turn([user("x" * int(self.np_random.integers(1, 40)))], terms={"reward": 0.25})

    def demonstration(self, rng):
        return "end" if self.state.assistant_turns == 4 else "go on"


def compacted(**options):
    return Compact(Talk(), **{"tokens": 90, "count": len, **options})


def is_request(observation):
    return observation[-1]["content"].endswith(REQUEST)


@given(
    replies=st.lists(st.text("abc", max_size=30), max_size=12),
    tokens=st.integers(1, 400),
    keep=st.integers(0, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_environment_within_hears_all_but_summaries(replies, tokens, keep, seed):
    env, twin = compacted(tokens=tokens, keep=keep), Talk()
    observation, _ = env.reset(seed=seed)
    twin.reset(seed=seed)
    replies_within, after_summary, views = [], False, [observation]
    for reply in [*replies, "end", "end"]:
        if env.state.done:
            break
        if request := is_request(observation):
            assert not after_summary, "a turn is between two summaries"
            observation, reward, terminated, truncated, info = env.step(reply)
            assert (reward, terminated, truncated, set(info["terms"].values())) == (0.0, False, False, {0.0})
            assert observation[0] == system("Rules.")
            head, *kept = observation[1:]
            assert head["role"] == "user"
            assert head["content"].startswith(f"Question?\n\n{HEADING}\n")
            assert len(head["content"]) <= len(f"Question?\n\n{HEADING}\n(nothing)") + tokens // 2
            assert tuple(kept) == twin.state.messages[len(twin.state.messages) - len(kept) :]
            assert len(kept) >= keep
            assert not kept or kept[0]["role"] == "assistant"
            assert len(kept) < len(twin.state.messages) - 2, "it shortens the conversation"
        else:
            replies_within.append(reply)
            observation, reward, *_ = env.step(reply)
            expected = twin.step(reply)
            assert (reward, *_[:2]) == expected[1:4]
        after_summary = request
        views.append(observation)
    assert list(env.env.state.replies_within) == replies_within == list(twin.state.replies_within)
    assert env.env.state.messages == twin.state.messages
    assert env.state.return_so_far == twin.state.return_so_far
    for before, after in zip(views, views[1:], strict=False):
        # An observation extends the last one, or that one is kept as a conversation that was left.
        assert after[: len(before)] == before or any(left[: len(before)] == before for left in env.state.contexts)


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=10), st.data())
@settings(max_examples=40)
def test_copies_go_on_alike(replies, data):
    env = compacted(tokens=60)
    env.reset(seed=data.draw(st.integers(0, 99)))
    middle = data.draw(st.integers(0, len(replies)))
    for reply in replies[:middle]:
        env.step(reply)
    other = pickle.loads(pickle.dumps(env))
    other.restore(pickle.loads(pickle.dumps(env.snapshot())))
    fork, again = env.fork(), compacted(tokens=60)
    again.restore(env.snapshot())
    results = [[copy.step(reply) for reply in replies[middle:]] for copy in (env, other, fork, again)]
    assert results[0] == results[1] == results[2] == results[3]
    assert env.state.contexts == other.state.contexts == fork.state.contexts


def test_late_rewards_name_turns_with_summaries_counted():
    env = compacted(tokens=1, keep=0)
    observation, _ = env.reset(seed=0)
    env.step("a")
    env.step("summary")
    env.step("b")
    env.step("summary")
    *_, info = env.step("end")
    assert info["earlier"] == {0: {"reward": 0.5}}
    assert env.state.turns == (0, 2, 4)
    assert env.state.assistant_turns == info["assistant_turns"] == 5


def test_failed_turn_leaves_all_as_it_was():
    env = Compact(Guess(max_assistant_turns=None), tokens=1, keep=0)
    env.reset(seed=1)
    env.step("a")
    env.step("summary")
    before = env.snapshot()
    with pytest.raises(RuntimeError, match="boom"):
        env.step("boom")
    assert env.snapshot() == before
    assert env.step("b")[0][-1]["content"].endswith(REQUEST)


def test_budgets_do_not_count_summaries():
    env = Compact(Guess(max_assistant_turns=3), tokens=1, keep=0)
    env.reset(seed=1)
    steps = 0
    truncated = False
    while not truncated:
        _, _, _, truncated, info = env.step("word")
        steps += 1
    assert (steps, info["stop"]) == (5, "max_assistant_turns")


def test_async_environments_play_alike():
    plain, asynchronous = (Compact(kind(max_assistant_turns=None), tokens=30) for kind in (Guess, AsyncGuess))

    async def episode(env):
        results = [await env.areset(seed=5)]
        return [*results, *[await env.astep(word) for word in "abcdef"]]

    assert asyncio.run(episode(plain)) == asyncio.run(episode(asynchronous))
    assert plain.state.summaries > 0


def test_each_context_within_is_compacted():
    env = Compact(Contexts(max_assistant_turns=None), tokens=20)
    env.reset(seed=3)
    views = []
    for action in ("more", "more", "more", "anew", "more", "more", "back 0", "more"):
        if env.state.awaits_summary:
            views.append(env.step("summary")[0])
        observation, *_ = env.step(action)
        assert observation == env.state.messages
    assert len(observation) < len(env.env.state.messages), "a conversation that continues stays compacted"
    assert views
    assert all(any(HEADING in message["content"] for message in view) for view in views)
    assert env.env.state.assistant_turns == 8


def test_expert_writes_summaries():
    env, rewards = compacted(tokens=60), []
    env.reset(seed=0)
    while not env.state.done:
        rewards.append(env.step(env.demonstration(env.np_random))[1])
    assert env.state.summaries > 0
    assert sum(rewards) == pytest.approx(1.0 + 0.5 + 4 * 0.25)
    assert env.scripts == {"demonstration"}


def test_script_reads_what_the_policy_sees():
    views = []
    env = compacted(tokens=60, keep=0, script=lambda messages: views.append(messages) or f"summary {len(views)}")
    observation, _ = env.reset(seed=0)
    while not env.state.done:
        if is_request(observation):
            request = observation
        summarises = env.state.awaits_summary
        observation, *_ = env.step(env.demonstration(env.np_random))
        if summarises:
            assert views[-1][:-1] == request[:-1]
            assert request[-1]["content"] == f"{views[-1][-1]['content']}\n\n{REQUEST}"
    assert len(views) > 1
    assert views[1][1]["content"].endswith(f"{HEADING}\nsummary 1")


def test_default_summaries_quote_those_before():
    env = compacted(tokens=400, keep=0)
    env.reset(seed=0)
    messages = []
    while env.state.summaries < 2:
        if env.state.awaits_summary:
            env.step(env.demonstration(env.np_random))
        else:
            messages.append(env.step("x" * 120)[0][-1]["content"].removesuffix(f"\n\n{REQUEST}"))
    assert env.state.head[-1]["content"].endswith("\n".join(reversed(messages)))


def test_every_turn_reports_the_summaries_so_far():
    env = compacted(tokens=60)
    env.reset(seed=0)
    counts = []
    while not env.state.done:
        *_, info = env.step(env.demonstration(env.np_random))
        counts.append(info["metrics"]["summaries"])
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == env.state.summaries > 0


def test_made_by_option_and_by_wrapper():
    env = textenvs.make("textenv/clarify", compact={"tokens": 50})
    assert isinstance(env, Compact)
    assert env.tokens == 50
    assert env.user_view, "what it does not have is that of the environment within"
    wrapped = RewardTerms(Compact(gymnasium.make("textenv/clarify"), tokens=1, keep=0), {})
    assert wrapped.unwrapped.blocking == env.blocking
    with pytest.raises(TypeError, match="compact has no option 'token'"):
        textenvs.make("textenv/clarify", compact={"token": 50})
    with pytest.raises(ValueError, match="tokens"):
        textenvs.make("textenv/clarify", compact={"tokens": 0})
    with pytest.raises(TypeError, match="a text environment itself"):
        Compact(wrapped, tokens=5)
    with pytest.raises(ValueError, match="trained alone"):
        TwoSides("textenv/clarify", {"compact": {"tokens": 50}}, user={})


class Closing(Talk):
    closed = 0

    def close(self):
        type(self).closed += 1


def test_what_is_within_is_closed():
    Compact(Closing(), tokens=5).close()
    asyncio.run(Compact(Talk(), tokens=5).aclose())
    assert Closing.closed == 1


def test_private_reasoning_of_summaries_stays_private():
    env = Compact(Talk(reasoning_marks=[["[[", "]]"]]), tokens=20, keep=0, count=len)
    env.reset(seed=0)
    env.step("a long enough reply to be left out")
    observation, *_ = env.step("[[private]]public")
    assert observation[-1]["content"].endswith(f"{HEADING}\npublic")
    assert env.state.contexts[-1][-1]["reasoning_content"] == "private"


def test_no_summary_where_it_cannot_shorten():
    env = Compact(Talk(), tokens=60, count=len, keep=2)
    env.reset(seed=0)
    for _ in range(3):
        env.step("x" * 100)
        assert not env.state.awaits_summary, "the opening and the last messages are longer than a summary could save"
        break
