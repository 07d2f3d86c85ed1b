"""TextVectorEnv equals single environments and Gymnasium's SyncVectorEnv, in every autoreset mode."""

import asyncio
import gc
import multiprocessing
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import KINDS, AsyncGuess, BlockingGuess, Guess, ToyTasks

from textenvs import TextVectorEnv
from textenvs.messages import assistant, user
from textenvs.wrappers import TextObservation

NEXT, SAME, OFF = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
kinds = pytest.mark.parametrize("kind", KINDS)
modes = pytest.mark.parametrize("mode", [NEXT, SAME, OFF])
words = st.sampled_from(["no", "tool", "quit", "fail", "secret3word"])


def same(a, b):
    return data_equivalence(a, b, exact=True)


@st.composite
def runs(draw, max_steps=8):
    count = draw(st.integers(1, 3))
    return draw(st.lists(st.tuples(*[words] * count), min_size=1, max_size=max_steps)), draw(st.integers(0, 20))


def play(envs, steps, seed):
    """Return all that a run shows; with autoreset disabled, ended episodes are reset by mask."""
    seen = [envs.reset(seed=seed)]
    for actions in steps:
        seen.append(envs.step(actions))
        over = seen[-1][2] | seen[-1][3]
        if envs.metadata["autoreset_mode"] == OFF and over.any():
            seen.append(envs.reset(options={"reset_mask": over}))
    envs.close()
    return seen


@modes
@given(kind=st.sampled_from(KINDS), run=runs())
@settings(max_examples=12)
def test_it_equals_gymnasiums_sync_vector_env(kind, mode, run):
    steps, seed = run
    expected = play(SyncVectorEnv([Guess for _ in steps[0]], autoreset_mode=mode), steps, seed)
    actual = play(TextVectorEnv([kind() for _ in steps[0]], autoreset_mode=mode), steps, seed)
    assert len(actual) == len(expected)
    for actual_step, expected_step in zip(actual, expected, strict=True):
        assert same(actual_step, expected_step)


# ------------------------------------------------------------------ seeds and options


def test_seeds():
    def keys(envs, seed):
        return envs.reset(seed=seed)[1]["task_index"].tolist()

    alone = [Guess().reset(seed=seed)[1]["task_index"] for seed in (5, 6, 7)]
    envs = TextVectorEnv.of(Guess(), 3)
    assert keys(envs, 5) == keys(envs, [5, 6, 7]) == keys(envs, np.int64(5)) == alone
    assert envs.np_random_seed == (5, 6, 7)
    assert envs.np_random[2].bit_generator.state == envs.envs[2].np_random.bit_generator.state
    with pytest.raises(ValueError, match="2 values for 3 environments"):
        envs.reset(seed=[1, 2])


@pytest.mark.parametrize("indices", [[4, 0, 2], (4, 0, 2), np.array([4, 0, 2])])
def test_each_environment_its_own_task(indices):
    envs = TextVectorEnv.of(Guess(), 3)
    options = {"task_index": indices}
    assert envs.reset(options=options)[1]["task_index"].tolist() == [4, 0, 2]
    assert list(options) == ["task_index"]
    own = ToyTasks()[5]
    infos = envs.reset(seed=0, options={"task": [own, None, own.to_row()]})[1]
    assert infos["task_index"].tolist() == [-1, Guess().reset(seed=1)[1]["task_index"], -1]
    assert envs.reset(options={"task_index": 6})[1]["task_index"].tolist() == [6, 6, 6]
    assert envs.reset(options={"task": own})[1]["task_key"].tolist() == ["toy/5"] * 3


def test_options_without_a_value_for_each_are_refused():
    envs = TextVectorEnv.of(Guess(), 3)
    with pytest.raises(ValueError, match="'task_index'.*2 values for 3"):
        envs.reset(options={"task_index": [1, 2]})
    with pytest.raises(ValueError, match="unknown reset options"):
        envs.reset(options={"index": 3})


def test_a_mask_resets_only_what_it_names():
    envs = TextVectorEnv.of(Guess(), 3, autoreset_mode="Disabled")
    with pytest.raises(gymnasium.error.ResetNeeded, match="all"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset(seed=0)
    before = envs.step(["no", "quit", "no"])[0]
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"\[1\]"):
        envs.step(["no"] * 3)
    before[0][0]["content"] = "changed by its owner"
    after, infos = envs.reset(options={"reset_mask": np.array([False, True, False]), "task_index": 5})
    assert [len(conversation) for conversation in after] == [4, 2, 4]
    assert after[0][0]["content"] != "changed by its owner"
    assert infos["_task_index"].tolist() == [False, True, False]
    assert infos["task_index"][1] == 5
    envs.step(["no"] * 3)


@pytest.mark.parametrize(
    "mask", [np.array([1, 0]), np.array([True]), np.array([False, False]), [[True, False]], "ab", 3]
)
def test_bad_masks(mask):
    envs = TextVectorEnv.of(Guess(), 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})


# ------------------------------------------------------------------ actions and errors


@pytest.mark.parametrize("actions", ["no", ["no"], ["no"] * 3, {"role": "assistant", "content": ""}, None, 2])
def test_one_action_for_each(actions):
    envs = TextVectorEnv.of(Guess(), 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="sequence of 2"):
        envs.step(actions)


@kinds
def test_invalid_action_plays_nothing(kind):
    envs = TextVectorEnv.of(kind(), 2)
    envs.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="environment 1"):
        envs.step(["no", user("not an assistant")])
    assert [env.state.assistant_turns for env in envs.envs] == [0, 0]
    envs.step([assistant("no"), "no"])


def test_actions_are_ignored_before_due_reset():
    envs = TextVectorEnv.of(Guess(), 2)
    envs.reset(seed=0)
    envs.step(["quit", "no"])
    conversations, rewards, terminations, *_ = envs.step([None, "no"])
    assert (rewards[0], terminations[0], len(conversations[0])) == (0.0, False, 2)


@kinds
def test_error_names_environment_and_needs_reset(kind):
    envs = TextVectorEnv.of(kind(), 3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(["no"] * 3)
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="boom") as caught:
        envs.step(["no", "boom", "no"])
    assert "environment 1 of 3" in caught.value.__notes__[0]
    envs.reset(seed=0)
    with pytest.raises(RuntimeError, match="boom") as caught:
        envs.step(["no", "boom", "boom"])
    assert "environment 1 of 3" in caught.value.__notes__[0], "the first one"
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(["no"] * 3)
    assert same(envs.reset(seed=0), TextVectorEnv.of(Guess(), 3).reset(seed=0))
    envs.step(["no"] * 3)


# ------------------------------------------------------------------ concurrency


def test_asynchronous_hooks_wait_together():
    class Meet(AsyncGuess):
        barrier = None

        async def respond(self, reply):
            if Meet.barrier is None:
                Meet.barrier = asyncio.Barrier(3)
            await asyncio.wait_for(Meet.barrier.wait(), 60)  # passes only if all three are here at once
            return Guess.respond(self, reply)

    envs = TextVectorEnv.of(Meet(), 3)
    envs.reset(seed=0)
    envs.step(["no"] * 3)
    envs.close()


def test_blocking_hooks_run_in_parallel():
    class Meet(BlockingGuess):
        barrier = threading.Barrier(3)

        def respond(self, reply):
            self.barrier.wait(60)
            return super().respond(reply)

    class Plain(Guess):
        def respond(self, reply):
            assert threading.current_thread() is threading.main_thread()
            return super().respond(reply)

    envs = TextVectorEnv([Meet(), Plain(), Meet(), AsyncGuess(), Meet()])
    envs.reset(seed=0)
    envs.step(["no"] * 5)
    envs.close()


async def test_it_works_inside_a_running_loop():
    steps = [("no", "quit"), ("no", "no")]
    expected = play(TextVectorEnv.of(Guess(), 2), steps, 0)
    assert same(play(TextVectorEnv.of(AsyncGuess(), 2), steps, 0), expected)


# ------------------------------------------------------------------ construction, rendering, closing


@kinds
def test_close_releases_once_what_is_shared(kind):
    envs = TextVectorEnv.of(kind(), 3)
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert envs.envs[0].cleaned == [True]


def test_construction():
    first = Guess(render_mode="ansi")
    envs = TextVectorEnv.of(first, 2, autoreset_mode="Disabled")
    assert envs.envs[0] is first
    assert envs.envs[1].tasks is first.tasks
    assert envs.metadata["autoreset_mode"] is OFF
    assert "autoreset_mode" not in Guess.metadata
    assert envs.single_action_space == first.action_space
    envs.reset(seed=0)
    assert envs.render() == tuple(env.render() for env in envs.envs)
    with pytest.raises(ValueError, match="at least one"):
        TextVectorEnv([])
    with pytest.raises(ValueError, match="num_envs"):
        TextVectorEnv.of(first, 0)
    assert TextVectorEnv.of(first, 1).envs == (first,)
    with pytest.raises(ValueError, match="Sometimes"):
        TextVectorEnv([first], autoreset_mode="Sometimes")


# ------------------------------------------------------------------ Gymnasium's own vector environments


@pytest.fixture
def toy_id():
    gymnasium.register("toy/guess", "toy_envs:AsyncGuess", vector_entry_point="textenvs.vector:toy/guess")
    yield "toy/guess"
    del gymnasium.registry["toy/guess"]


@pytest.mark.filterwarnings("error")
def test_make_vec_modes_are_equal(toy_id):
    mode = "SameStep"
    play(TextVectorEnv.of(AsyncGuess(), 2), [("no", "no")], 0)  # the parent's loop runs when the workers fork
    steps = [("no", "quit"), ("quit", "no"), ("no", "no"), ("tool", "no")]
    vector = gymnasium.make_vec(toy_id, num_envs=2, autoreset_mode=mode)
    sync = gymnasium.make_vec(toy_id, num_envs=2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode})
    processes = gymnasium.make_vec(
        toy_id,
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"autoreset_mode": mode, "shared_memory": False},
    )
    assert isinstance(vector, TextVectorEnv)
    assert isinstance(processes, AsyncVectorEnv)
    expected = play(vector, steps, 3)
    for other in (sync, processes):
        for actual, reference in zip(play(other, steps, 3), expected, strict=True):
            assert same(actual, reference)


def test_processes_share_texts_and_end():
    envs = gymnasium.make_vec(
        "textenv/gsm8k",
        num_envs=2,
        vectorization_mode="async",
        wrappers=[TextObservation],
        vector_kwargs={"context": "spawn"},
    )
    first, _ = envs.reset(seed=1)
    assert first in envs.observation_space
    long = "é" * 3_000_000
    second, *_ = envs.step((long, "#### 1"))
    assert second == (f"{first[0]}\nassistant: {long}", f"{first[1]}\nassistant: #### 1")
    envs.close()
    del envs
    gc.collect()
    assert multiprocessing.active_children() == []


def test_make_vec_spec_reproduces_it(toy_id):
    envs = gymnasium.make_vec(toy_id, num_envs=3, max_assistant_turns=1)
    assert [env.max_assistant_turns for env in envs.envs] == [1, 1, 1]
    again = gymnasium.make_vec(gymnasium.envs.registration.EnvSpec.from_json(envs.spec.to_json()))
    assert (again.num_envs, again.envs[0].max_assistant_turns) == (3, 1)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        __import__("textenvs.vector").vector.nothing  # noqa: B018
