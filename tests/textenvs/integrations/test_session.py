"""The core of all adapters: a description of an episode that survives JSON, and its episode."""

import asyncio
import json
import threading
from contextlib import closing

import adapter_kit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import Contexts

from textenvs.env import TextEnv, Turn
from textenvs.integrations import EpisodeSpec, Session, SpecError, episode_specs
from textenvs.integrations.rows import episode_rows
from textenvs.integrations.session import SeveralContextsError
from textenvs.integrations.trl import environment_class
from textenvs.messages import assistant, user
from textenvs.registry import make
from textenvs.task import Rows, Task
from textenvs.users.moves import METRIC

TALK = "toy_envs:Talk"


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_a_session_is_the_environment_message_by_message(env_id):
    ends = set()
    for played in adapter_kit.episodes(env_id, 8):
        session, opening = Session.of(EpisodeSpec.from_row(json.dumps(played.spec.to_row())))
        with closing(session):
            assert opening == played.opening
            turns = [session.reply(reply) for reply in played.replies]
            assert [turn.messages for turn in turns] == played.observations
            assert session.turn_rewards == played.rewards
            assert session.reward == sum(played.rewards)
            assert session.stop == played.stop
            last = turns[-1]
            assert (last.terminated, last.truncated, session.done) == (played.terminated, played.truncated, True)
            assert session.messages == session.env.state.messages
        ends.add(played.stop)
    assert len(ends) > 1, "these scripts end in one way only, and prove less than they seem to"


def test_contexts_are_given_or_refused_in_words():
    session = Session(Contexts(), contexts=True)
    opening = session.start(seed=0)
    more, anew = session.reply("more"), session.reply("answered")
    assert (len(more.messages), more.context) == (1, None)
    assert (anew.messages, anew.context) == ((user("Well."),), session.messages)
    assert session.env.state.contexts == (
        (*opening, assistant("more"), *more.messages, assistant("answered"), user("Well.")),
    )
    back = session.reply("back 0")
    assert back.messages == ()
    assert back.context == session.messages
    one = Session(Contexts())
    one.start(seed=0)
    one.reply("more")
    with pytest.raises(SeveralContextsError, match="plays one conversation an episode"):
        one.reply("anew")
    assert one.closed


HOSTS = {
    "session": lambda env, options: Session(make(env, **options)),
    "environment_factory": lambda env, options: environment_class(env, env_kwargs=options),
    "skyrl": lambda env, options: next(episode_rows("skyrl", [EpisodeSpec(env, 0, options)])),
    "verl": lambda env, options: next(episode_rows("verl", [EpisodeSpec(env, 0, options)])),
}
ROLES = (TALK, {}, r"several roles \(solver, critic, judge\)")
SUMMARIES = ("textenv/clarify", {"compact": {"tokens": 50}}, "summarised")


@pytest.mark.parametrize(
    ("host", "case"),
    [*((host, ROLES) for host in HOSTS), *((host, SUMMARIES) for host in HOSTS if host != "verl")],  # it takes contexts
)
def test_several_conversations_are_refused_before_training(host, case):
    """A host that takes one says so before the first episode, not in it."""
    env, options, words = case
    with pytest.raises((SeveralContextsError, SpecError), match=f"{words}.*plays one conversation an episode"):
        HOSTS[host](env, options)


def test_both_ways_of_playing_are_one():
    async def awaited(played):
        session, opening = await Session.aof(played.spec)
        turns = [await session.areply(reply) for reply in played.replies]
        await session.aclose()
        return opening, turns

    for played in adapter_kit.episodes("textenv/clarify", 4):
        opening, turns = asyncio.run(awaited(played))
        assert opening == played.opening
        assert [turn.messages for turn in turns] == played.observations
        assert [turn.reward for turn in turns] == played.rewards


def test_blocking_environment_runs_in_a_thread():
    class Blocking(TextEnv):
        blocking = True

        def __init__(self):
            super().__init__(Rows("one", [Task("0", "test", (user("Well?"),), "yes")]))
            self.threads = []

        def opening(self, task):
            self.threads.append(threading.current_thread())
            return task.prompt

        def respond(self, reply):
            self.threads.append(threading.current_thread())
            return Turn(terms={"said": 1.0}, terminated=True, stop="solved")

    async def played():
        session = Session(Blocking())
        opening = await session.astart(0, {"task_index": 0})
        turn = await session.areply("yes")
        await session.aclose()
        return session, opening, turn

    session, opening, turn = asyncio.run(played())
    assert threading.main_thread() not in session.env.threads
    assert len(session.env.threads) == 2
    assert [message["content"] for message in opening] == ["Well?"]
    assert (turn.done, session.turn_rewards) == (True, [1.0])


def test_hosts_get_metrics_without_the_users_move():
    """Hosts average metrics, and a move is the number of one: it stays in the turn's info alone."""
    session = Session(make("textenv/clarify"))
    session.start(0)
    turn = session.reply("Hm.")
    assert turn.info["metrics"].keys() - turn.metrics.keys() == {METRIC}
    assert turn.metrics.items() <= turn.info["metrics"].items()
    session.close()


def test_refused_reply_can_be_retried():
    session, opening = Session.of(EpisodeSpec("textenv/gsm8k-interact", 0))
    with pytest.raises(Exception, match="an action is"):
        session.reply(17)
    assert session.messages == opening
    assert session.turns == []
    session.reply("#### 1")
    assert session.turn_rewards == [1.0]


def test_a_new_episode_forgets_the_one_before():
    session, _ = Session.of(EpisodeSpec("textenv/gsm8k-interact", 0))
    session.reply("#### 1")
    opening = session.start(seed=1)
    assert session.turns == []
    assert session.stop is None
    assert not session.done
    assert session.messages == opening


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.text(min_size=1, max_size=20),
    st.integers(0, 2**63 - 1),
    st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    st.none() | st.integers(0, 2**31),
)
def test_a_description_survives_json(env, seed, kwargs, index):
    spec = EpisodeSpec(env, seed, kwargs, index)
    allowed = {env: kwargs}
    assert EpisodeSpec.from_row(spec.to_row(), environments=allowed) == spec
    assert EpisodeSpec.from_row(json.dumps(spec.to_row()), environments=allowed) == spec


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("{", "row 3: not JSON"),
        ("[" * 100_000, "row 3: not JSON"),
        ("9" * 5000, "row 3: not JSON"),
        (17, "row 3: expected a mapping"),
        ({"env": "textenv/clarify"}, "row 3: .* missing .* 'seed'"),
        ({"env": "textenv/clarify", "seed": 0, "sed": 1}, "row 3: .* unexpected .* 'sed'"),
        ({"env": "", "seed": 0}, "env must be"),
        ({"env": "textenv/clarify", "seed": True}, "seed must be an integer"),
        ({"env": "textenv/clarify", "seed": -1}, "seed must be an integer"),
        ({"env": "textenv/clarify", "seed": 0, "task_index": 1.5}, "task_index must be an integer"),
        ({"env": "textenv/clarify", "seed": 0, "env_kwargs": "[1]"}, "env_kwargs must be a mapping"),
        ({"env": "textenv/clarify", "seed": 0, "env_kwargs": "{"}, "env_kwargs: not JSON"),
        ({"env": "textenv/clarify", "seed": 0, "env_kwargs": {"a": float("nan")}}, "env_kwargs must be JSON"),
    ],
)
def test_a_malformed_description_says_where_and_what(row, match):
    with pytest.raises(SpecError, match=match):
        EpisodeSpec.from_row(row, "row 3")


def test_episodes_in_a_row():
    specs = list(episode_specs("textenv/clarify", 3, seed=5, env_kwargs={"max_user_turns": 2}))
    assert [spec.seed for spec in specs] == [5, 6, 7]
    assert specs[0].make().max_user_turns == 2
    with pytest.raises(SpecError, match="count"):
        list(episode_specs("textenv/clarify", 0))
