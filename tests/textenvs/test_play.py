"""One episode from its reset to its end, and the names that an author imports."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_episodes import alone, policy, slow_policy
from toy_envs import KINDS, Guess

import textenvs
from textenvs import Episode, Task, TaskError, TextEnv, Turn, play, user

kinds = pytest.mark.parametrize("kind", KINDS)
AUTHORS_NAMES = (
    "TextEnv ToolEnv tool user assistant system Task Turn EpisodeState Attack always sequence play play_episodes "
    "visible_text EnvironmentFailure"
)


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 50), task=st.integers(0, 6))
@settings(max_examples=10)
def test_play_gives_what_stepping_gives(kind, seed, task):
    results = []
    episode = asyncio.run(
        play(
            kind(), slow_policy, seed=seed, options={"task_index": task}, on_turn=lambda result: results.append(result)
        )
    )
    whole = (episode.conversation, episode.rewards, episode.terms, episode.info, episode.terminated, episode.truncated)
    assert whole == alone(Guess(), seed, task, policy)
    assert episode.seed == seed
    assert tuple(result[1] for result in results) == episode.rewards


@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 50), first=st.integers(0, 4))
@settings(max_examples=10)
def test_episode_in_two_parts_is_equal(kind, seed, first):
    whole = asyncio.run(play(kind(), policy, seed=seed))
    env = kind()
    begun = asyncio.run(play(env, policy, seed=seed, turns=first))
    ended = asyncio.run(play(env, policy, resume=True))
    assert len(begun.rewards) == min(first, len(whole.rewards))
    assert (*begun.rewards, *ended.rewards) == whole.rewards
    assert (ended.conversation, ended.terminated, ended.truncated) == (
        (whole.conversation, whole.terminated, whole.truncated)
    )


@kinds
def test_error_keeps_the_played_turns(kind):
    def tires(conversation):
        if len(conversation) > 3:
            raise LookupError("no more")
        return "no"

    episode = Episode()
    with pytest.raises(LookupError, match="no more"):
        asyncio.run(play(kind(), tires, seed=1, episode=episode))
    assert len(episode.rewards) == len(episode.terms) >= 1
    assert episode.conversation[-1]["role"] == "user"
    assert episode.task_key is not None


def test_an_author_imports_from_textenvs_alone():
    for name in AUTHORS_NAMES.split():
        assert name in textenvs.__all__
        assert callable(getattr(textenvs, name))


class Echo(TextEnv):
    def respond(self, reply):
        return Turn(reward=float(reply["content"] == self.task.ground_truth), terminated=True, stop="said")


def test_a_list_of_tasks_is_a_task_set():
    tasks = [Task(str(i), "mine", (user(f"Say {i}."),), str(i)) for i in range(3)]
    env = Echo(tasks)
    assert [env.tasks[i] for i in range(env.tasks.size)] == tasks
    for i in range(3):
        episode = asyncio.run(
            play(env, lambda conversation: conversation[0]["content"][4:-1], options={"task_index": i})
        )
        assert (episode.reward, episode.task_key) == (1.0, str(i))


@pytest.mark.parametrize(
    ("tasks", "match"),
    [
        ([], "there is no task in it"),
        ([Task("a", "m", (user("?"),), "1")] * 2, "rows 1 and 2 have the same key 'a'"),
        ([{"prompt": "?"}], r"row 1 is a dict; give Task\(...\) or Task.from_row"),
    ],
)
def test_list_is_no_task_set(tasks, match):
    with pytest.raises(TaskError, match=match):
        Echo(tasks)
