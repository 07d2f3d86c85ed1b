"""Environments inline, in threads and in processes: one interface, and no failure reaches further than its episode."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable
from typing import Any, get_args

import pytest
from rollout_fakes import AsyncEnv, BlockingEnv, SyncEnv, made, recorded
from skip_time import skip

from trainers.rollout.environments import Backend, EnvError, EnvSpec, EnvTimeoutError, Kind
from trainers.rollout.workers import Worker

#: All but Ray, whose actors take seconds to start: test_ray.py has that one.
KINDS = tuple(kind for kind in get_args(Kind) if kind != "ray")
LIMIT_S = 60.0


def backend(kind: Kind, env: Any = None, **limits: Any) -> Backend:
    limits = {"workers": 2, "step_timeout": LIMIT_S, "reset_timeout": LIMIT_S} | limits
    return Backend(EnvSpec(env or AsyncEnv), kind, **limits)


async def reset_and_step(pool: Backend, action: str, options: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """A lease, one reset and one step: what the reset told, and what the step returned."""
    async with pool.lease() as env:
        _, info = await env.reset(0, options)
        return info, *await env.step(action)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when a call begins that hangs."""
    began, call = asyncio.Event(), Worker.call

    async def seen(self: Worker, method: str, timeout: float | None, /, *args: Any, **kwargs: Any) -> Any:
        if args in (("hang",), ("stubborn",)) or "hang" in kwargs.get("options", ()):
            began.set()
        return await call(self, method, timeout, *args, **kwargs)

    monkeypatch.setattr(Worker, "call", seen)
    return began


async def late(work: Awaitable[Any], hanging: asyncio.Event) -> Any:
    """Let the time limit pass as soon as a call hangs."""
    working = asyncio.ensure_future(work)
    while not (hanging.is_set() or working.done()):
        await asyncio.sleep(0.001)
    hanging.clear()
    skip(asyncio.get_running_loop(), LIMIT_S)
    return await working


@pytest.mark.parametrize("kind", KINDS)
async def test_environment_is_reused_after_episode(kind: Kind) -> None:
    async with backend(kind, workers=1) as pool:
        for episode in (1, 2):
            async with pool.lease() as env:
                conversation, info = await env.reset(11, {"task_index": 4})
                assert conversation == ({"role": "user", "content": "task 4 seed 11"},)
                assert info["episodes"] == episode
                for turn in range(3):
                    conversation, reward, terminated, truncated, _info = await env.step("hello")
                    assert (reward, terminated, truncated) == (1.0, turn == 2, False)
                assert len(conversation) == 6, "opening, three replies, two answers"
        assert pool.stats() == {"made": 1, "hung": 0, "leased": 0, "idle": 1, "ending": 0}
    assert pool.stats()["idle"] == pool.stats()["ending"] == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_hang_is_timeout_without_blocking_others(kind: Kind, hanging: asyncio.Event) -> None:
    async with backend(kind) as pool:
        async with pool.lease() as healthy:
            await healthy.reset(0)
            stuck = asyncio.ensure_future(reset_and_step(pool, "hang"))
            await hanging.wait()
            assert (await healthy.step("hello"))[1] == 1.0
            assert not stuck.done()
            with pytest.raises(EnvTimeoutError, match="step took longer than 60 s"):
                await late(stuck, hanging)
            assert (await reset_and_step(pool, "hello"))[2] == 1.0, "its place is free for another"
        assert pool.stats()["hung"] == 1
        assert pool.stats()["made"] == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_hanging_reset_is_timeout(kind: Kind, hanging: asyncio.Event) -> None:
    async with backend(kind) as pool:
        with pytest.raises(EnvTimeoutError, match="reset took longer than 60 s"):
            await late(reset_and_step(pool, "hello", {"hang": True}), hanging)


@pytest.mark.parametrize("kind", KINDS)
async def test_raising_environment_is_replaced_with_traceback(kind: Kind) -> None:
    async with backend(kind) as pool:
        with pytest.raises(EnvError, match=r"(?s)rollout_fakes.py.*KeyError: 'a bug in the environment'"):
            await reset_and_step(pool, "raise")
        assert (await reset_and_step(pool, "hello"))[0]["episodes"] == 1, "a new environment"
        assert pool.stats()["hung"] == 0


@pytest.mark.parametrize("kind", ["inline", "thread"])
@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("pair", r"should return \(observation, reward, terminated, truncated, info\)"),
        ("nan", "reward is nan"),
        ("huge", r"reward is 1e\+308, not a finite number of at most 1e\+12"),
        ("text", "observation is a tuple of at least one message, not 'an obs"),
        ("empty", "at least one message"),
        ("role", "role is 'boss'"),
        ("noinfo", "info is a mapping, not None"),
        ("unclosed", r"info\['closing'\] is what a turn added to a conversation, the reply first"),
        ("unpaid", r"sum to 1\.25, and the reward is 1\.5"),
        ("unowned", r"info\['own_terms'\] comes with info\['earlier'\]"),
    ],
)
async def test_nonsense_is_error_that_says_what_is_wrong(kind: Kind, word: str, complaint: str) -> None:
    async with backend(kind) as pool:
        with pytest.raises(EnvError, match=complaint):
            await reset_and_step(pool, word)
        assert pool.stats()["idle"] == 0, "an environment that returns nonsense is not used again"


async def test_terminated_wins_over_truncated() -> None:
    async with backend("inline") as pool, pool.lease() as env:
        await env.reset(0)
        assert (await env.step("both"))[2:4] == (True, False)


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
async def test_sys_exit_in_environment_is_its_own_error(kind: Kind) -> None:
    async with backend(kind) as pool:
        with pytest.raises(EnvError, match="SystemExit: 3"):
            await reset_and_step(pool, "sysexit")
        assert (await reset_and_step(pool, "hello"))[2] == 1.0


async def test_dead_process_is_reported_at_once() -> None:
    async with backend("process", step_timeout=None) as pool:
        with pytest.raises(EnvError, match="process died with exit code 7"):
            await reset_and_step(pool, "die")
        assert (await reset_and_step(pool, "hello"))[2] == 1.0


async def test_result_that_cannot_travel_is_error() -> None:
    async with backend("process") as pool:
        with pytest.raises(EnvError, match="cannot pickle"):
            await reset_and_step(pool, "unpicklable")


async def test_hung_process_is_gone_after_close(hanging: asyncio.Event) -> None:
    pool = backend("process", workers=1)
    pid = (await reset_and_step(pool, "hello"))[0]["pid"]
    with pytest.raises(EnvTimeoutError):
        await late(reset_and_step(pool, "hang"), hanging)  # in the same process: it was idle
    await pool.close(timeout=60.0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.stats()["ending"] == 0


async def test_threads_own_their_environment_and_end_with_it() -> None:
    def live_threads() -> set[threading.Thread]:  # threads of other tests end when they like
        return {thread for thread in threading.enumerate() if thread.name == "textenvs-env"}

    before = live_threads()
    async with backend("thread", env=SyncEnv, workers=None) as pool:
        async with pool.lease() as one, pool.lease() as other:
            homes = set()
            for env in (one, other):
                await env.reset(0)
                infos = [(await env.step("hello"))[4] for _ in range(2)]
                assert {info["thread"] for info in infos} == {infos[0]["home"]}, "made and stepped by one thread"
                homes.add(infos[0]["home"])
            assert len(homes) == 2
            assert threading.get_ident() not in homes
        assert len(live_threads() - before) == 2
    assert len(live_threads() - before) <= 2
    for thread in threading.enumerate():
        if thread.name == "textenvs-env" and thread.ident in homes:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
async def test_environment_that_cannot_be_made_says_why(kind: Kind) -> None:
    spec = EnvSpec(AsyncEnv, {"fail_to_make": True})
    async with Backend(spec, kind) as pool:
        with pytest.raises(EnvError, match="RuntimeError: no such data"):
            await reset_and_step(pool, "hello")
        assert pool.stats()["idle"] == pool.stats()["leased"] == 0


async def test_inline_refuses_what_would_block_loop() -> None:
    for env, complaint in ((SyncEnv, "no async areset and astep"), (BlockingEnv, "says that its steps block")):
        async with backend("inline", env=env) as pool:
            with pytest.raises(EnvError, match=complaint):
                await reset_and_step(pool, "hello")


async def test_swallowed_cancellation_blocks_nothing(hanging: asyncio.Event) -> None:
    made.clear()
    async with backend("inline", env=recorded) as pool:
        with pytest.raises(EnvTimeoutError):
            await late(reset_and_step(pool, "stubborn"), hanging)
        with pytest.raises(EnvError, match="cancelled from inside"):
            await reset_and_step(pool, "cancel")
        await pool.close(timeout=0.2)
        assert pool.stats()["ending"] == 1, "left behind, and counted"
    made[0].closed = True  # lets it go, so that the test's own loop can end


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_episode_frees_place_not_environment(kind: Kind, hanging: asyncio.Event) -> None:
    async with backend(kind, workers=1, step_timeout=None) as pool:
        task = asyncio.ensure_future(reset_and_step(pool, "hang"))
        await hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await reset_and_step(pool, "hello"))[0]["episodes"] == 1


async def test_leases_wait_for_place() -> None:
    async with backend("inline", workers=2) as pool:
        most = now = 0

        async def episode() -> None:
            nonlocal most, now
            async with pool.lease():
                now += 1
                most = max(most, now)
                await asyncio.sleep(0)
                now -= 1

        await asyncio.gather(*(episode() for _ in range(10)))
        assert most == 2
        assert pool.stats()["made"] == 2


async def test_close_survives_unclosable_environments() -> None:
    made.clear()
    pool = backend("inline", env=recorded)
    async with pool.lease(), pool.lease():
        pass
    made[0].fail_to_close = True
    await pool.close()
    await pool.close()
    assert [env.closed for env in made] == [True, True]
    with pytest.raises(RuntimeError, match="closed"):
        await reset_and_step(pool, "hello")


async def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="kind should be 'inline', 'thread', 'process' or 'ray', not 'fiber'"):
        Backend(EnvSpec(AsyncEnv), "fiber")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_timeout should be greater than 0, not 0.0"):
        Backend(EnvSpec(AsyncEnv), step_timeout=0.0)
