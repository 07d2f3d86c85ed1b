"""textenv/remote: the same episodes as directly."""

import asyncio
import copy
import dataclasses
import multiprocessing
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import adapter_kit
import gymnasium
import numpy as np
import pytest
from served import TOKEN, TOYS, running, soon
from test_late_rewards import Late
from toy_envs import ROLES, Contexts, Guess, Talk, ToyTasks

import textenvs
from textenvs import EnvironmentFailure, Task, TextVectorEnv, Turn
from textenvs import event_loop as background
from textenvs.episodes import play_episodes
from textenvs.evaluate.plan import fingerprint
from textenvs.messages import assistant, user
from textenvs.serve.client import Client, RemoteError, shared_client
from textenvs.serve.host import Offer
from textenvs.serve.remote import Remote


@pytest.fixture(params=TOYS)
def kind(request):
    return request.param


# ------------------------------------------------------------------ as directly


@pytest.mark.parametrize("env_id", adapter_kit.ENVIRONMENTS)
def test_remote_results_equal_direct_ones(shipped, env_id):
    direct, remote = textenvs.make(env_id), shipped.remote(env_id)
    assert (remote.max_assistant_turns, remote.max_user_turns) == (direct.max_assistant_turns, direct.max_user_turns)
    assert (remote.observation_space, remote.action_space) == (direct.observation_space, direct.action_space)
    assert (remote.tasks.name, remote.tasks.size) == (direct.tasks.name, direct.tasks.size)
    for seed in range(6):
        options = {"task_index": np.int64(seed)} if seed % 2 else None
        assert remote.reset(seed=seed, options=options) == direct.reset(seed=seed, options=options)
        direct_rng, remote_rng = np.random.default_rng(seed), np.random.default_rng(seed)
        while not direct.state.done:
            script = "demonstration" if direct_rng.random() < 0.5 else "careless_reply"
            assert remote_rng.random() >= 0
            reply = getattr(direct, script)(direct_rng)
            assert getattr(remote, script)(remote_rng) == reply
            result = direct.step(reply)
            assert remote.step(reply) == result
            assert type(remote.state.messages) is tuple
            assert asyncio.run(remote.conversation_score()) == direct.conversation_score()
        assert remote.state.return_so_far == direct.state.return_so_far
        assert remote.state.done
    assert remote.secrets() == ()
    assert (remote.tasks[3].ground_truth, remote.tasks[3].prompt) == (None, ())
    for index in (-1, direct.tasks.size):
        if index is not None:
            with pytest.raises(IndexError, match="outside its"):
                remote.tasks[index]


def test_contexts_are_those_of_the_direct_episode():
    actions = ["more", "answered", "branch", "back 0", "back 1", "more"]
    with running({"contexts": Contexts}) as server:
        direct, remote = Contexts(), server.remote("contexts")
        assert remote.reset(seed=2) == direct.reset(seed=2)
        for action in actions:
            for env in (remote.fork(), remote):  # a fork is played again on the server
                result = env.step(action)
                after = env.state.messages, env.state.contexts, env.state.user_turns
                if env is remote:
                    assert result == direct.step(action)
                    assert after == (direct.state.messages, direct.state.contexts, direct.state.user_turns)
        saved = remote.snapshot()
        assert remote.step("back 0")[0] == direct.step("back 0")[0]
        saved.contexts = saved.contexts[:1]
        remote.restore(saved)
        with pytest.raises(RemoteError, match="it went otherwise"):
            remote.step("more")


def test_roles_are_those_of_the_direct_episode():
    with running({"talk": Talk}) as server:
        direct, remote = Talk(), server.remote("talk")
        assert remote.roles == ROLES
        assert remote.reset(seed=2) == direct.reset(seed=2)
        for action in ("critic", "critic", "solver", "judge", "critic", "end"):
            fork = remote.fork()
            result = direct.step(action)
            for env in (fork, remote):  # a fork is played again on the server
                assert env.step(action) == result
                for name in ("messages", "contexts", "context_roles", "role"):
                    assert getattr(env.state, name) == getattr(direct.state, name)


def test_late_rewards_name_their_turns():
    with running({"late": Late}) as server:
        direct, remote = Late(), server.remote("late")
        for env in (direct, remote):
            env.reset(seed=0)
        assert [remote.step("x") for _ in range(3)] == [direct.step("x") for _ in range(3)]


def test_task_keys_depend_on_served_rows():
    class Others(ToyTasks):
        def __getitem__(self, index):
            return dataclasses.replace(super().__getitem__(index), key=f"other/{index}")

    with running({"guess": Guess, "again": Guess, "other": lambda: Guess(Others())}) as server:
        first, again, other = (fingerprint(server.remote(name).tasks, range(7)) for name in server.host.offers)
    assert first == again != other


def test_scripts_work_in_every_state(shipped):
    """Also in a coroutine on the loop that all connections live on, where waiting for that loop would never end."""
    direct = textenvs.make("textenv/clarify")
    direct.reset(seed=2)
    expected = [direct.demonstration(np.random.default_rng(0)), direct.step("x")]
    expected += [direct.careless_reply(np.random.default_rng(1))]
    remote = shipped.remote("textenv/clarify")

    async def play():
        await remote.areset(seed=2)
        results = [remote.demonstration(np.random.default_rng(0)), await remote.astep("x")]
        remote._drop()  # its session is lost
        results += [remote.careless_reply(np.random.default_rng(1))]
        assert shipped.remote("textenv/clarify").tasks.size is None
        with pytest.raises(RemoteError, match=r"no connection.*tried for"):
            textenvs.make("textenv/remote", url="http://127.0.0.1:9", retry_s=0.2)
        return results

    assert background.submit(play()).result(timeout=60) == expected
    assert asyncio.run(play()) == expected


def test_any_reply_comes_back_unchanged(toys, kind):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    replies = [
        assistant("x", [call]),
        {**assistant("é 数 \ud800 \x00"), "reasoning_content": "why \udfff"},
        "lone \ud800",
        "tool",
    ]
    direct, remote = TOYS[kind](), Remote(url=toys.url, env=kind)
    assert remote.reset(seed=2) == direct.reset(seed=2)
    for reply in replies:
        assert remote.step(reply) == direct.step(reply)
    assert direct.state.stop == "max_assistant_turns"


def test_failed_simulator_fails_episode(toys, kind):
    direct, remote = TOYS[kind](), toys.remote(kind)
    for env in (direct, remote):
        env.reset(seed=0)
    result = remote.step("fail")
    assert result == direct.step("fail")
    assert result[2:4] == (False, True)
    assert result[4]["failed"]
    assert result[4]["stop"] == "user_failed"


def test_own_task_is_sent_without_returning_answer(toys):
    task = Task("mine", "somewhere", (user("What is it?"),), ground_truth="my own secret")
    remote = toys.remote("guess")
    conversation, info = remote.reset(seed=1, options={"task": task})
    assert (info["task_key"], info["task_index"], info["data_source"]) == ("mine", -1, "somewhere")
    assert conversation == Guess().reset(seed=1, options={"task": task})[0]
    assert remote.state.task.ground_truth is None
    results = [remote.step("x"), remote.step("my own secret")]
    assert "secret" not in repr(results[0])
    assert results[1][1] > 1.0


def test_no_secret_crosses_the_wire(toys, monkeypatch):
    crossed, send = [], Client._send

    async def watched(self, op, body):
        status, answer = await send(self, op, body)
        crossed.append(answer.decode())
        return status, answer

    monkeypatch.setattr(Client, "_send", watched)
    remote, direct = toys.remote("guess"), Guess()
    for seed in range(5):
        direct.reset(seed=seed)
        remote.reset(seed=seed)
        for reply in ("tool", "x", "fail"):
            remote.step(reply)
        for secret in direct.secrets():
            assert secret not in " ".join(crossed)
    assert len(crossed) > 20


# ------------------------------------------------------------------ errors


def test_errors_arrive_as_what_they_were(toys, kind):
    remote = toys.remote(kind)
    with pytest.raises(gymnasium.error.ResetNeeded, match="not started"):
        remote.step("x")
    with pytest.raises(ValueError, match="unknown reset options"):
        remote.reset(options={"nonsense": 1})
    with pytest.raises(ValueError, match="7 tasks"):
        remote.reset(options={"task_index": 700})
    with pytest.raises(ValueError, match="must be JSON"):
        remote.reset(options={"task": {"a": object()}})
    with pytest.raises(gymnasium.error.ResetNeeded):  # a reset that failed leaves no episode
        remote.step("x")
    direct = TOYS[kind]()
    assert remote.reset(seed=0) == direct.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction, match="role 'assistant'"):
        remote.step(user("me"))
    with pytest.raises(RuntimeError, match="raised RuntimeError; the server's log has it") as raised:
        remote.step("boom")
    assert "boom" not in str(raised.value)  # what an exception says may be a secret
    assert remote.step("x") == direct.step("x")  # the turn that raised was none
    assert remote.step("quit") == direct.step("quit")
    with pytest.raises(gymnasium.error.ResetNeeded, match="over"):
        remote.step("x")
    with running(TOYS, allow=["expert"]) as server:
        careless_player = server.remote(kind)
        careless_player.reset(seed=0)
        with pytest.raises(NotImplementedError, match="the environment has no careless_reply"):
            careless_player.careless_reply(np.random.default_rng(0))


def test_refused_reply_keeps_other_sessions(kind):
    """Check that an unrepeatable episode continues after a refused reply."""
    with running() as server:
        remote, direct = server.remote(kind), TOYS[kind]()
        for env in (remote, direct):
            env.reset(seed=0)
            for wrong in ("boom", user("me")):
                with pytest.raises((RuntimeError, gymnasium.error.InvalidAction)):
                    env.step(wrong)
        assert remote.step("x") == direct.step("x")
        assert server.metrics()["opened"] == 1


class Unopenable(Guess):
    def opening(self, task):
        raise EnvironmentFailure("judge_failed", "not today")


def test_failure_in_opening_is_reported():
    with running({"sad": Unopenable}) as server, pytest.raises(EnvironmentFailure, match="judge_failed: not today"):
        server.remote("sad").reset(seed=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"url": None}, "needs url"),
        ({"url": "localhost:1"}, "url must be"),
        ({"url": "ftp://localhost"}, "url must be"),
        ({"url": "http://u:p@localhost"}, "password"),
        ({"timeout_s": 0}, "timeout_s should be greater than 0, not 0"),
        ({"env": "gues"}, "offers guess, async, blocking; it does not offer 'gues'"),
        ({"env": None}, "which one is meant"),
    ],
)
def test_invalid_argument_is_named(toys, monkeypatch, options, match):
    for name in ("TEXTENVS_URL", "TEXTENVS_REMOTE_ENV", "TEXTENVS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=match):
        textenvs.make("textenv/remote", **{"url": toys.url, "env": "guess", **options})


# ------------------------------------------------------------------ forks, snapshots, copies


def test_forks_snapshots_and_copies_agree(toys, kind):
    direct, remote = TOYS[kind](), toys.remote(kind)
    for turn in range(4):
        for env in (direct, remote):
            env.reset(seed=5)
            for i in range(turn):
                env.step(f"reply {i}")
        expected = [direct.fork().step("a"), direct.fork(9).step("a"), direct.fork(9).fork(10).step("a")]
        saved = pickle.loads(pickle.dumps(remote.snapshot()))
        elsewhere = toys.remote(kind)
        elsewhere.restore(saved)
        moved = pickle.loads(pickle.dumps(remote))
        forks = [remote.fork(), remote.fork(9), remote.fork(9).fork(10)]
        assert [fork.step("a") for fork in forks] == expected
        reseeded = toys.remote(kind)
        reseeded.restore(saved, 9)
        assert reseeded.step("a") == expected[1]
        later = [direct.step(f"reply {i}") for i in range(turn, 4)]
        for env in (elsewhere, moved, copy.deepcopy(remote), remote):
            assert [env.step(f"reply {i}") for i in range(turn, 4)] == later


def test_dropped_forks_leave_no_session():
    with running() as server:
        remote = server.remote("guess")
        remote.reset(seed=0)
        for seed in range(20):
            remote.fork(seed).step("x")
        soon(lambda: server.metrics()["sessions"] == 1, "one session")
        remote.reset(seed=1)
        soon(lambda: server.metrics()["sessions"] == 1, "the one before is closed")
        remote.close()
        soon(lambda: server.metrics()["sessions"] == 0, "no session")
        assert remote.step("after closing") == _stepped(Guess(), 1, "after closing")


def _stepped(env, seed, reply):
    env.reset(seed=seed)
    return env.step(reply)


class Unsteady(Guess):
    """Not deterministic, against the contract."""

    def respond(self, reply):
        return Turn([user(f"Now it is {np.random.default_rng().random()}.")])


def test_diverging_replay_is_not_continued():
    offers = {"declared": Offer(Unsteady, nondeterministic=True), "undeclared": Offer(Unsteady)}
    with running(offers) as server:
        for env, match in (("declared", "not deterministic"), ("undeclared", "went otherwise")):
            remote = server.remote(env)
            remote.reset(seed=0)
            remote.step("a")
            with pytest.raises(RemoteError, match=match):
                remote.fork().step("b")
            remote.step("b")  # the episode itself continues


# ------------------------------------------------------------------ many


def test_concurrent_remote_episodes_equal_direct_ones(shipped):
    def policy(conversation):
        return f"#### {len(conversation) + len(conversation[0]['content']) % 7}"

    async def played(env):
        return sorted(
            [episode async for episode in play_episodes(env, policy, 60, concurrency=20, seed=3)], key=_number
        )

    direct = asyncio.run(played(textenvs.make("textenv/gsm8k-interact")))
    assert asyncio.run(played(shipped.remote("textenv/gsm8k-interact"))) == direct


def _number(episode):
    return episode.number


def test_a_vector_environment_and_awaited_twins(toys, kind):
    async def awaited(env):
        results = [await env.areset(seed=4)]
        for reply in ("a", "b", "tool"):
            results.append(await env.astep(reply))
        await env.aclose()
        return results

    assert asyncio.run(awaited(toys.remote(kind))) == asyncio.run(awaited(TOYS[kind]()))

    def lockstep(env):
        envs = TextVectorEnv.of(env, 5)
        results = [envs.reset(seed=6)[0]]
        for step in range(3):
            conversations, rewards, *_ = envs.step([f"{step} {i}" for i in range(5)])
            results.append((conversations, rewards.tolist()))
        envs.close()
        return results

    assert lockstep(toys.remote(kind)) == lockstep(TOYS[kind]())


def test_concurrent_environments_share_one_client(toys, monkeypatch):
    """Each would drop its session for the other's client, which an episode with a model cannot survive."""
    made, together = Client.__init__, threading.Barrier(2, timeout=60)

    def slowly(self, *arguments):
        made(self, *arguments)
        together.wait()

    monkeypatch.setattr(Client, "__init__", slowly)
    arguments = (toys.url, TOKEN, 61.0, 30.0)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(shared_client, [arguments[0]] * 2, *([argument] * 2 for argument in arguments[1:]))
    assert first is second is shared_client(*arguments)


def _in_a_child(env, result):
    result.put([env.step("in a child"), env.reset(seed=8)])


def test_forked_process_opens_own_connection(toys):
    remote, direct = toys.remote("guess"), Guess()
    for env in (remote, direct):
        env.reset(seed=1)
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    child = context.Process(target=_in_a_child, args=(remote, result))
    child.start()
    child_results = result.get(timeout=60)
    child.join()
    fork = direct.fork()
    assert child_results == [fork.step("in a child"), fork.reset(seed=8)]
    assert remote.step("here") == direct.step("here")


def test_exiting_process_closes_its_sessions():
    with running() as server:
        code = (
            "import textenvs\n"
            f"envs = [textenvs.make('textenv/remote', url={server.url!r}, env='guess') for _ in range(3)]\n"
            "for env in envs: env.reset(seed=0)"
        )
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert server.metrics()["ended"] == {"closed": 3}
