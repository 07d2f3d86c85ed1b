"""The environment contract, on toy environments with plain, asynchronous and blocking hooks."""

import asyncio
import contextvars
import copy
import pickle
import threading

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_envs import KINDS, AsyncGuess, BlockingGuess, Guess, ToyTasks

from textenvs import EnvironmentFailure, EpisodeState, Task, TaskError, TextEnv, Turn
from textenvs.event_loop import submit
from textenvs.messages import assistant, system, user

kinds = pytest.mark.parametrize("kind", KINDS)
words = st.sampled_from(["no", "tool", "quit", "fail", "", "secret3word", "\ud800 odd", "<think>a</think>b"])
scripts = st.lists(words, max_size=6)


def play(env, script, seed=3, options=None):
    """Everything that can be seen of an episode."""
    seen = [env.reset(seed=seed, options=options)]
    for action in script:
        if env.state.done:
            break
        seen.append(env.step(action))
    return seen


# ------------------------------------------------------------------ what a step gives


@given(kind=st.sampled_from(KINDS), script=scripts, seed=st.integers(0, 9))
def test_seed_and_actions_determine_the_episode(kind, script, seed):
    async def play_async(env):
        seen = [await env.areset(seed=seed)]
        for action in script:
            if env.state.done:
                break
            seen.append(await env.astep(action))
        await env.aclose()
        return seen

    expected = play(Guess(), script, seed)
    assert play(kind(), script, seed) == expected
    assert asyncio.run(play_async(kind())) == expected


def budget_oracle(script, max_assistant, max_user):
    """The stop and the roles after the opening, from the documented rule and nothing else."""
    roles, users = [], 0
    for turn, word in enumerate(script, start=1):
        roles.append("assistant")
        if word == "quit":
            return "gave_up", roles
        if word != "tool" and max_user is not None and users == max_user:
            return "max_user_turns", roles
        roles.append("tool" if word == "tool" else "user")
        users += word != "tool"
        if turn == max_assistant:
            return "max_assistant_turns", roles
    return None, roles


@given(
    script=st.lists(st.sampled_from(["no", "tool", "quit"]), max_size=6),
    max_assistant=st.none() | st.integers(1, 4),
    max_user=st.none() | st.integers(1, 3),
)
def test_budgets(script, max_assistant, max_user):
    env = Guess(max_assistant_turns=max_assistant, max_user_turns=max_user)
    seen = play(env, script)
    stop, roles = budget_oracle(script, max_assistant, max_user)
    conversation = seen[-1][0]
    assert [message["role"] for message in conversation[2:]] == roles
    assert env.state.stop == stop
    assert env.state.user_turns == roles.count("user")
    assert env.state.terminated == (stop == "gave_up")
    assert env.state.truncated == (stop in ("max_assistant_turns", "max_user_turns"))


@pytest.mark.parametrize("limits", [{"max_assistant_turns": 1}, {"max_user_turns": 1, "max_assistant_turns": None}])
def test_last_action_is_judged_before_truncation(limits):
    env = Guess(**limits)
    env.reset(seed=0, options={"task_index": 2})
    if "max_user_turns" in limits:
        env.step("no")
    _, reward, terminated, truncated, info = env.step("secret2word")
    assert (terminated, truncated, info["stop"], info["terms"]["correct"]) == (True, False, "solved", 1.0)
    assert reward >= 1.0


def test_failure_text_is_encodable():
    class Loud(Guess):
        def respond(self, reply):
            raise EnvironmentFailure("tool_failed", "it said \ud83d")

    env = Loud()
    env.reset(seed=0)
    assert ascii(env.step("x")[-1]["failure"]) == ascii("it said \ufffd")


@kinds
def test_a_failed_simulator_truncates_and_marks_the_episode(kind):
    env = kind()
    env.reset(seed=0)
    conversation, reward, terminated, truncated, info = env.step("fail")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["stop"], info["failed"], info["failure"]) == ("user_failed", True, "no answer after 3 tries")
    assert conversation[-1] == assistant("fail")
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        env.step("again")


def test_observations_belong_to_who_receives_them():
    env, other = Guess(), Guess()
    for twin in (env, other):
        conversation, info = twin.reset(seed=1)
        if twin is env:
            conversation[0]["content"] = "changed"
            info["task_key"] = "changed"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    action = assistant("no", [call])
    conversation, *_, info = env.step(action)
    action["content"] = call["function"]["name"] = conversation[2]["content"] = "changed"
    info["terms"].clear()
    call2 = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    other.step(assistant("no", [call2]))
    assert env.step("tool") == other.step("tool")


# ------------------------------------------------------------------ a turn happens as a whole or not at all


@given(kind=st.sampled_from(KINDS), script=scripts, at=st.integers(0, 5), seed=st.integers(0, 9))
def test_raising_hook_leaves_episode_unchanged(kind, script, at, seed):
    env, expected = kind(), play(kind(), script, seed)
    seen = [env.reset(seed=seed)]
    seed_before = env.np_random_seed
    for i, action in enumerate(script):
        if env.state.done:
            break
        if i >= at:
            with pytest.raises(RuntimeError, match="boom"):
                env.step("boom")
        seen.append(env.step(action))
    assert seen == expected
    assert env.np_random_seed == seed_before
    assert env.state.return_so_far == pytest.approx(sum(result[1] for result in seen[1:]))


@given(kind=st.sampled_from(KINDS), script=scripts, seed=st.integers(0, 9))
def test_default_conversation_score_is_the_return(kind, script, seed):
    env = kind()
    rewards = [result[1] for result in play(env, script, seed)[1:]]
    assert env.conversation_score() == {"return": pytest.approx(sum(rewards))}
    assert pickle.loads(pickle.dumps(env)).fork().conversation_score() == env.conversation_score()
    env.reset()
    assert env.conversation_score() == {"return": 0.0}


def test_rng_is_made_lazily_from_seed():
    env, other = Guess(), Guess()
    env._np_random, env._np_random_seed = None, 5
    other.reset(seed=5, options={"task_index": 1})
    assert env.reset(options={"task_index": 1}) == other.reset(seed=5, options={"task_index": 1})
    assert env.np_random_seed == 5
    assert env.step("no") == other.step("no")
    env.np_random = np.random.default_rng(7)
    assert env.np_random.random() == np.random.default_rng(7).random()
    assert env.np_random_seed == -1


async def test_cancelled_turn_leaves_episode_unchanged():
    class Slow(Guess):
        hang = True

        async def respond(self, reply):
            self.state.guesses.append("half a turn")
            self.np_random.random()
            if self.hang:
                await asyncio.Event().wait()
            self.state.guesses.pop()
            return Guess.respond(self, reply)

    env, other = Slow(), Slow()
    other.hang = False
    for twin in (env, other):
        await twin.areset(seed=0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(env.astep("no"), 0.01)
    env.hang = False
    assert env.snapshot() == (await other.areset(seed=0), other.snapshot())[1]
    assert await env.astep("no") == await other.astep("no")


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, TypeError), ("text", TypeError), (Turn(reward=1.0), ValueError)],
)
def test_invalid_turn_is_refused_and_undone(answer, error):
    class Nonsense(Guess):
        def respond(self, reply):
            return answer

    env = Nonsense()
    env.reset(seed=0)
    before = env.snapshot()
    with pytest.raises(error, match="Nonsense.respond"):
        env.step("hello")
    assert env.snapshot() == before


@pytest.mark.parametrize("opening", [[], "text", [{"role": "user"}], None, [{"role": "oracle", "content": ""}]])
def test_failed_opening_leaves_no_episode(opening):
    class Bad(Guess):
        def opening(self, task):
            return opening

    env = Bad()
    with pytest.raises(ValueError, match=r"Bad\.opening"):
        env.reset(seed=0)
    with pytest.raises(gymnasium.error.ResetNeeded, match="not started"):
        env.step("hello")


@kinds
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"index": 3}, ValueError, "unknown reset options.*task_index"),
        ({"task_index": 7}, ValueError, "has 7 tasks"),
        ({"task_index": -1}, ValueError, "must be an integer of at least 0, not -1"),
        ({"task_index": True}, ValueError, "integer"),
        ({"task_index": "3"}, ValueError, "integer"),
        ({"task": {"data_source": "x"}}, TaskError, "prompt"),
        ({"task": ToyTasks()[0], "task_index": 0}, ValueError, "not both"),
    ],
)
def test_bad_options_leave_no_episode(kind, options, error, message):
    env = kind()
    env.reset(seed=0)
    with pytest.raises(error, match=message):
        env.reset(options=options)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("hello")


@pytest.mark.parametrize(
    "action", [None, 3, b"x", {}, user("x"), {"role": "assistant"}, {"role": "assistant", "content": 1}]
)
def test_invalid_action_changes_nothing(action):
    env = Guess()
    env.reset(seed=0)
    before = env.snapshot()
    with pytest.raises(gymnasium.error.InvalidAction):
        env.step(action)
    assert env.snapshot() == before


# ------------------------------------------------------------------ randomness and tasks


@kinds
def test_unseeded_resets_continue_the_random_stream(kind):
    def keys(env):
        return [env.reset(seed=5)[1], *(env.reset()[1] for _ in range(6))]

    first = keys(kind())
    assert keys(kind()) == first
    assert len({info["task_index"] for info in first}) > 1


def test_option_overrides_the_seeded_task():
    env = Guess()
    drawn = {env.reset(seed=seed)[1]["task_index"] for seed in range(60)}
    assert drawn == set(range(7))
    for index in (0, np.int64(6)):
        conversation, info = env.reset(seed=0, options={"task_index": index})
        assert (info["task_index"], info["task_key"]) == (int(index), f"toy/{index}")
        assert conversation[0] == user(f"Guess word {index}.")


def test_reset_takes_a_row_or_task():
    env = Guess(ToyTasks(None))
    own = Task("mine", "here", (user("Which word?"),), ground_truth="abc")
    for task in (own, own.to_row()):
        _, info = env.reset(seed=0, options={"task": task})
        assert info == {"task_key": "mine", "task_index": -1, "data_source": "here"}
        assert env.step("abc")[4]["stop"] == "solved"


def test_an_endless_task_set_is_drawn_from_widely():
    env = Guess(ToyTasks(None))
    indices = [env.reset(seed=seed)[1]["task_index"] for seed in range(100)]
    assert len(set(indices)) == 100
    assert max(indices) > 10**8


# ------------------------------------------------------------------ snapshots and forks


@given(kind=st.sampled_from(KINDS), script=scripts, rest=scripts, seed=st.integers(0, 9))
def test_a_snapshot_and_a_fork_continue_alike(kind, script, rest, seed):
    def go_on(env):
        return [env.step(action) for action in rest if not env.state.done]

    env = kind()
    play(env, script, seed)
    saved, fork = env.snapshot(), env.fork()
    expected = go_on(env)
    assert go_on(fork) == expected
    other = kind()
    for _ in range(2):  # the snapshot itself is not used up
        other.restore(saved)
        assert go_on(other) == expected
    moved = kind()
    moved.restore(pickle.loads(pickle.dumps(saved)))
    assert go_on(moved) == expected


@kinds
def test_a_fork_shares_nothing_that_changes(kind):
    env = kind()
    env.reset(seed=0)
    env.step("no")
    before, space_before = env.snapshot(), copy.deepcopy(env.action_space.np_random.bit_generator.state)
    fork = env.fork()
    fork.step("no")
    fork.action_space.sample()
    fork.reset(seed=9)
    assert env.snapshot() == before
    assert env.action_space.np_random.bit_generator.state == space_before
    assert fork.tasks is env.tasks


def test_fork_with_a_seed_reseeds_as_reset_does():
    env = Guess()
    env.reset(seed=0)
    a, b, c = env.fork(seed=1), env.fork(seed=1), env.fork(seed=2)
    assert a.step("no") == b.step("no") != c.step("no")
    fresh = Guess()
    fresh.reset(seed=2)
    assert env.fork(seed=2).np_random.random() == np.random.default_rng(2).random()
    assert env.fork(seed=2).np_random_seed == 2


def test_seeded_restore_equals_seeded_fork():
    env, other = Guess(), Guess()
    env.reset(seed=0)
    env.step("no")
    for seed in (1, 2):
        other.restore(env.snapshot(), seed)
        fork = env.fork(seed)
        assert other.np_random_seed == seed
        assert [other.step("no"), other.step("no")] == [fork.step("no"), fork.step("no")]


def test_restore_says_what_it_needs():
    env = Guess()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="GuessState"):
        env.restore(EpisodeState())
    with pytest.raises(ValueError, match="snapshot"):
        env.restore(env.state)


# ------------------------------------------------------------------ asynchronous hooks under the synchronous interface


async def test_step_works_inside_a_running_loop():
    assert play(AsyncGuess(), ["no", "tool"]) == play(Guess(), ["no", "tool"])


def test_all_asynchronous_hooks_run_on_one_loop():
    class Where(Guess):
        loops = []

        async def respond(self, reply):
            self.loops.append(asyncio.get_running_loop())
            return Guess.respond(self, reply)

    for _ in range(2):
        play(Where(), ["no", "no"])
    assert len(Where.loops) == 4
    assert len(set(map(id, Where.loops))) == 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_synchronous_call_in_async_hook_raises():
    class Outer(AsyncGuess):
        inner = AsyncGuess()

        async def respond(self, reply):
            if reply["content"] == "sync":
                self.inner.reset(seed=0)
            await self.inner.areset(seed=0)
            return Guess.respond(self, reply)

    env = Outer()
    env.reset(seed=0)
    before = env.snapshot()
    with pytest.raises(RuntimeError, match="areset, astep"):
        env.step("sync")
    assert env.snapshot() == before
    env.step("no")


CALLER = contextvars.ContextVar("CALLER")


class Waiting(BlockingGuess):
    """Wait for the background loop in each hook, and note what it finds in the caller's context variable."""

    def __init__(self, **options):
        super().__init__(**options)
        self.noted = []

    def wait(self):
        submit(asyncio.sleep(0)).result(60)
        self.noted.append(CALLER.get("nobody"))

    def opening(self, task):
        self.wait()
        return super().opening(task)

    def respond(self, reply):
        self.wait()
        return super().respond(reply)

    def cleanup(self):
        self.wait()
        super().cleanup()


def test_blocking_environment_never_blocks_the_loop():
    class Outer(AsyncGuess):
        inner = Waiting()

        async def respond(self, reply):
            CALLER.set("outer")
            await self.inner.areset(seed=0)
            await self.inner.astep("no")
            await self.inner.fork().aclose()
            await self.inner.aclose()
            return Guess.respond(self, reply)

    env = Outer()
    env.reset(seed=0)
    env.step("no")
    assert env.inner.state.assistant_turns == 1
    assert env.inner.noted == ["outer"] * 3  # the fork cleans nothing up


@pytest.mark.parametrize("times", [1, 3])
async def test_cancelled_blocking_turn_is_undone(times):
    class Slow(BlockingGuess):
        began, goes_on = threading.Event(), threading.Event()

        def respond(self, reply):
            self.state.guesses.append("half a turn")
            self.began.set()
            assert self.goes_on.wait(60)
            return super().respond(reply)

    env = Slow()
    await env.areset(seed=0)
    before = env.snapshot()
    step = asyncio.ensure_future(env.astep("no"))
    while not env.began.is_set():
        await asyncio.sleep(0.001)
    for _ in range(times):
        step.cancel()
        await asyncio.sleep(0.001)
    assert not step.done()  # the thread is in the environment
    env.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert env.snapshot() == before
    await env.astep("no")
    assert env.state.guesses == ["half a turn", "no"]


# ------------------------------------------------------------------ closing and rendering


@kinds
def test_close_is_idempotent_and_forks_release_nothing(kind):
    env = kind()
    env.reset(seed=0)
    fork = env.fork()
    fork.close()
    fork.fork().close()
    asyncio.run(fork.aclose())
    assert env.cleaned == []
    env.close()
    env.close()
    assert env.cleaned == [True, True]


def test_rendering(capsys):
    env = Guess(render_mode="ansi")
    conversation, _ = env.reset(seed=0)
    assert env.render() == f"user: {conversation[0]['content']}\nuser: {conversation[1]['content']}"
    env.step("no")
    assert "assistant: no\nuser: No (" in env.render()
    assert capsys.readouterr().out == ""

    human = Guess(render_mode="human")
    human.reset(seed=0)
    human.step("no")
    fork = human.fork()
    fork.step("tool")
    assert fork.render() is None
    assert capsys.readouterr().out.strip() == transcript_of(fork)
    human.reset(seed=0)
    assert capsys.readouterr().out == "".join(f"user: {m['content']}\n" for m in conversation)
    human.step("no")
    assert capsys.readouterr().out.startswith("assistant: no\nuser: No ("), "a step shows what is new by itself"
    silent = Guess()
    silent.reset(seed=0)
    assert silent.render() is None
    assert capsys.readouterr().out == ""


def transcript_of(env):
    return "\n".join(f"{m['role']}: {m['content']}" for m in env.state.messages)


# ------------------------------------------------------------------ construction


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True])
@pytest.mark.parametrize("name", ["max_assistant_turns", "max_user_turns"])
def test_a_bad_limit_is_named(name, limit):
    with pytest.raises(ValueError, match=name):
        Guess(**{name: limit})


def test_bad_constructions():
    with pytest.raises(ValueError, match="render_mode"):
        Guess(render_mode="rgb_array")
    with pytest.raises(ValueError, match="nothing at all has no tasks"):
        Guess(ToyTasks(0, name="nothing at all"))


def test_system_prompt_is_prepended_once():
    conversation, _ = Guess(system_prompt="Be brief.").reset(seed=0)
    assert [m["role"] for m in conversation] == ["system", "user", "user"]
    own = Task("k", "s", (system("Mine."), user("Q")), ground_truth="g")
    conversation, _ = Guess(system_prompt="Be brief.").reset(seed=0, options={"task": own})
    assert [m["content"] for m in conversation[:2]] == ["Mine.", "Q"]


def test_missing_hooks_say_so():
    env = TextEnv(ToyTasks())
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="respond"):
        env.step("x")
    with pytest.raises(NotImplementedError, match="demonstrations"):
        env.demonstration(np.random.default_rng(0))
