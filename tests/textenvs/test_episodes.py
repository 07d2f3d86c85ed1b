"""Episodes without a barrier: each as if it were alone, whatever the others do."""

import asyncio
import gc
import itertools
import threading
from contextlib import aclosing

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playable import PLAYABLE
from skip_time import skip
from toy_envs import KINDS, AsyncGuess, BlockingGuess, Guess, ToyTasks

import textenvs
from textenvs.episodes import play_episodes

kinds = pytest.mark.parametrize("kind", KINDS)
every_id = pytest.mark.parametrize("env_id", PLAYABLE)
SAID = ("no", "tool", "quit", "fail", "other", "secret3word")


def policy(conversation):
    """Something else every time, but a function of the conversation."""
    return SAID[sum(map(len, (message["content"] for message in conversation))) % len(SAID)]


async def slow_policy(conversation):
    for _ in range(len(conversation[-1]["content"]) % 5):
        await asyncio.sleep(0)
    return policy(conversation)


def alone(env, seed, task, policy=policy):
    """The episode that a seed and a task have, played by itself."""
    options = None if task is None else {"task": task} if not isinstance(task, int) else {"task_index": task}
    conversation, info = env.reset(seed=seed, options=options)
    rewards, terms = [], []
    terminated = truncated = False
    while not (terminated or truncated):
        conversation, reward, terminated, truncated, info = env.step(policy(conversation))
        rewards.append(reward)
        terms.append(info["terms"])
    return conversation, tuple(rewards), tuple(terms), info, terminated, truncated


def seen(episode):
    assert episode.error is None
    names = ("conversation", "rewards", "terms", "info", "terminated", "truncated")
    return tuple(getattr(episode, name) for name in names)


def collect(episodes):
    async def gather():
        return [episode async for episode in episodes]

    return asyncio.run(gather())


# ------------------------------------------------------------------ what is played


@given(
    kind=st.sampled_from(KINDS),
    tasks=st.lists(st.sampled_from([0, 3, 6, None, ToyTasks()[2], ToyTasks()[4].to_row()]), max_size=12),
    count=st.integers(1, 5),
    seed=st.integers(0, 100),
)
@settings(max_examples=10)
def test_each_episode_is_what_it_would_be_alone(kind, tasks, count, seed):
    stream = play_episodes(kind(), slow_policy, tasks, concurrency=count, seed=seed)
    episodes = collect(stream)
    assert sorted(episode.number for episode in episodes) == list(range(len(tasks)))
    for episode in episodes:
        assert episode.seed == seed + episode.number
        assert seen(episode) == alone(Guess(), episode.seed, tasks[episode.number])
        assert episode.reward == sum(episode.rewards)
        assert (episode.stop, episode.failed) == (episode.info["stop"], episode.info["failed"])
        assert episode.task_key == episode.info["task_key"]


@every_id
def test_every_environment(env_id):
    env, other = textenvs.make(env_id), textenvs.make(env_id)
    for episode in collect(play_episodes(env, lambda conversation: "I do not know.", 4, concurrency=2, seed=5)):
        assert seen(episode) == alone(other, episode.seed, None, lambda conversation: "I do not know.")
    assert not env.state.messages  # the environment itself is not played


def test_how_many_and_which():
    assert len(collect(play_episodes(Guess(), policy, 0))) == 0
    assert len(collect(play_episodes(Guess(), policy, np.int64(7), concurrency=2))) == 7
    assert len(collect(play_episodes(Guess(), policy, []))) == 0
    assert {e.task_index for e in collect(play_episodes(Guess(), policy, iter(np.array([1, 5]))))} == {1, 5}
    drawn = [{e.seed for e in collect(play_episodes(Guess(), policy, 3))} for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert [e.seed for e in collect(play_episodes(Guess(), "test_episodes:policy", 1, seed=4))] == [4]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"buffer": 0}, "buffer"),
        ({"seed": -1}, "seed"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"tasks": -1}, "tasks"),
        ({"tasks": "12"}, "tasks"),
        ({"tasks": {"task_index": 3}}, "tasks"),
        ({"policy": None}, "policy"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ValueError, match=match):
        play_episodes(**{"env": Guess(), "policy": policy} | options)


def test_it_takes_the_environment_itself():
    with pytest.raises(TypeError, match="OrderEnforcing; give its unwrapped"):
        play_episodes(gymnasium.make("textenv/gsm8k"), policy)
    with pytest.raises(TypeError, match="str; give textenvs.make"):
        play_episodes("textenv/gsm8k", policy)


# ------------------------------------------------------------------ free running


async def test_episodes_arrive_as_they_end():
    gate = asyncio.Event()

    async def policy(conversation):
        if "word 0" in conversation[0]["content"]:
            await gate.wait()
        return "quit"

    order = []
    async for episode in play_episodes(Guess(), policy, [0, 1, 2, 3, 4, 5], concurrency=2):
        order.append(episode.number)
        if len(order) == 5:
            gate.set()
    assert order == [1, 2, 3, 4, 5, 0]


@kinds
async def test_concurrency_limits_simultaneous_episodes(kind):
    barrier, most, running = asyncio.Barrier(4), 0, 0

    async def policy(conversation):
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.wait_for(barrier.wait(), 60)  # passes only if all four are here
        running -= 1
        return "quit"

    assert len([e async for e in play_episodes(kind(), policy, 12, concurrency=4)]) == 12
    assert most == 4


async def test_blocking_environments_have_a_thread_each():
    class Meet(BlockingGuess):
        barrier = threading.Barrier(3)

        def respond(self, reply):
            self.barrier.wait(60)
            return super().respond(reply)

    async for episode in play_episodes(Meet(), lambda conversation: "quit", 6, concurrency=3):
        assert episode.stop == "gave_up"


async def test_busy_hooks_do_not_block_the_loop():
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    async for _ in play_episodes(Guess(), policy, 200, concurrency=1, buffer=200):
        pass
    ticking.cancel()
    assert ticks >= 10


@pytest.mark.parametrize(("count", "buffer"), [(3, 2), (1, 1), (5, None)])
async def test_back_pressure(count, buffer):
    """No more is started than can run and wait; tasks are read no faster than they are needed."""
    read = 0

    def tasks():
        nonlocal read
        for read in itertools.count(1):  # noqa: B007
            yield read % 7

    stream = play_episodes(Guess(), policy, tasks(), concurrency=count, buffer=buffer)
    async with aclosing(stream):
        received = 0
        async for _ in stream:
            received += 1
            for _ in range(50):
                await asyncio.sleep(0)  # a slow consumer
            assert read <= received + count + (buffer or count)
            if received == 20:
                break
    assert read > 20


# ------------------------------------------------------------------ errors are data


@kinds
def test_error_ends_only_its_named_episode(kind):
    def policy(conversation):
        return "boom" if "word 1" in conversation[0]["content"] else "other"

    stream = play_episodes(kind(), policy, [0, 1, 2, 9, 1, 4], concurrency=2, seed=10)
    episodes = sorted(collect(stream), key=lambda episode: episode.number)
    assert [episode.error is not None for episode in episodes] == [False, True, False, True, True, False]
    boom, unknown = episodes[1], episodes[3]
    assert isinstance(boom.error, RuntimeError)
    assert boom.error.__notes__ == ["(in episode 1, seed 11, task 'toy/1')"]
    assert (boom.failed, boom.stop, boom.rewards) == (True, None, ())
    assert [message["role"] for message in boom.conversation] == ["user", "user", "assistant"]
    assert isinstance(unknown.error, ValueError)
    assert unknown.error.__notes__ == ["(in episode 3, seed 13, task 9)"]
    assert (unknown.task_key, unknown.conversation) == (None, ())
    for number in (0, 2, 5):
        task = [0, 1, 2, 9, 1, 4][number]
        assert seen(episodes[number]) == alone(Guess(), 10 + number, task, policy)


def test_errors_of_the_policy_are_data_too():
    def raises(conversation):
        if len(conversation) > 2:
            raise OSError("no route")
        return "no"

    async def waits(conversation):
        await asyncio.sleep(0)
        return raises(conversation)

    for player, kind in ((raises, OSError), (waits, OSError), (lambda c: 3, gymnasium.error.InvalidAction)):
        (episode,) = collect(play_episodes(Guess(), player, [3]))
        assert isinstance(episode.error, kind)
        assert len(episode.rewards) == (kind is OSError)


def test_failed_simulator_is_a_failed_episode():
    (episode,) = collect(play_episodes(Guess(), lambda conversation: "fail", [3]))
    assert (episode.failed, episode.error, episode.stop, episode.truncated) == (True, None, "user_failed", True)


@kinds
async def test_slow_episode_ends_and_frees_its_place(kind):
    async def policy(conversation):
        if "word 2" in conversation[0]["content"]:
            skip(asyncio.get_running_loop(), 60)
            await asyncio.Event().wait()
        return "quit"

    stream = play_episodes(kind(), policy, [2, 3, 4], concurrency=1, timeout_s=60)
    late, *rest = [episode async for episode in stream]
    assert isinstance(late.error, TimeoutError)
    assert "longer than 60 s" in str(late.error)
    assert [episode.stop for episode in rest] == ["gave_up", "gave_up"]


def test_an_error_of_the_tasks_themselves_is_raised():
    def tasks():
        yield from (1, 2, 3)
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        collect(play_episodes(Guess(), slow_policy, tasks(), concurrency=2))


# ------------------------------------------------------------------ stopping


async def test_closing_cancels_what_is_running():
    waiting = cancelled = 0

    async def policy(conversation):
        nonlocal waiting, cancelled
        if "word 1" in conversation[0]["content"]:
            return "quit"
        waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async with aclosing(play_episodes(AsyncGuess(), policy, [0, 1, 2, 3, 4], concurrency=3)) as stream:
        async for episode in stream:
            assert episode.number == 1
            while waiting < 3:
                await asyncio.sleep(0)
            break
    assert cancelled == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_forgotten_iterator_stops_too():
    stream = play_episodes(AsyncGuess(), policy, concurrency=4)
    async for _ in stream:
        break
    del stream
    gc.collect()
    for _ in range(20):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_thousands_at_a_time():
    finished = 0
    async for episode in play_episodes(Guess(), slow_policy, 2000, concurrency=2000):
        finished += not episode.error
    assert finished == 2000
