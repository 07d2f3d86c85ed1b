"""Evaluation beside collection and updates: one version per score, one limit for all, no waiter starves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from collector_helpers import collector_of, engine_of, says, slow_env, wordy
from hypothesis import given
from hypothesis import strategies as st
from rollout_fakes import AsyncEnv
from simulated_time import simulated

from benchmarks.simulation.clock import run_simulated
from benchmarks.simulation.scripted import Call, Reply
from trainers.config.rollout import RolloutSection
from trainers.engines.base import EngineError, Sampling
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.eval_gate import EvalGate
from trainers.rollout.group_scheduler import CollectionError, GroupScheduler
from trainers.rollout.weight_lock import WeightLock
from trainers.trajectory import Trajectory

evaluations = st.lists(
    st.tuples(
        st.floats(0, 200),  # when it begins
        st.integers(1, 6),  # tasks
        st.one_of(st.none(), st.floats(0, 60)),  # after so long it is cancelled
    ),
    max_size=8,
)


@given(
    evaluations=evaluations,
    staleness=st.integers(0, 2),
    max_running=st.one_of(st.none(), st.integers(1, 8)),
    mode=st.sampled_from(["keep", "wait", "abort"]),
    seed=st.integers(0, 2**16),
)
def test_evaluation_has_one_version_within_limit(
    evaluations: list[Any], staleness: int, max_running: int | None, mode: Any, seed: int
) -> None:
    """Any number of evaluations at any time, cancelled or not, beside a trainer that trains for random times."""
    updates, most, rng = 8, 0, random.Random(seed)

    async def run() -> list[list[Trajectory]]:
        def script(call: Call, version: int) -> Reply:
            nonlocal most
            most = max(most, int(engine.stats()["running"]))
            return wordy(call, version)

        engine = engine_of(script)

        async def evaluation(begin: float, tasks: int, patience: float | None) -> Any:
            await asyncio.sleep(begin)
            work = collector.evaluate(range(tasks))
            try:
                return await (work if patience is None else asyncio.wait_for(work, patience))
            except TimeoutError:
                return []

        async with (
            Backend(slow_env()) as backend,
            collector_of(engine, backend, staleness=staleness, max_running=max_running) as collector,
        ):
            waiting = [asyncio.ensure_future(evaluation(*one)) for one in evaluations]
            for _ in range(updates):
                batch = await collector.next_batch()
                await asyncio.sleep(rng.random() * 30)
                await collector.update_weights(None, batch.version + 1, mode)
            results = await asyncio.gather(*waiting)
            assert collector.stats()["evaluating"] == 0
            assert engine.version == updates
            return list(results)

    for trajectories in run_simulated(run()):
        assert len({int(v) for t in trajectories for v in t.weight_version[t.action_mask]}) <= 1
    assert max_running is None or most <= max_running


@simulated
async def test_update_and_evaluation_run_in_order() -> None:
    engine = engine_of(says("1 end", latency=10.0))
    loop = asyncio.get_running_loop()
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, max_running=8) as collector:
        batch = await collector.next_batch()
        began = loop.time()
        first = asyncio.ensure_future(collector.evaluate([1, 2]))
        await asyncio.sleep(4)
        update = asyncio.ensure_future(collector.update_weights("new", batch.version + 1))
        await asyncio.sleep(4)
        second = asyncio.ensure_future(collector.evaluate([3]))
        await update
        assert loop.time() - began == pytest.approx(10)
        assert first.done()
        assert {t.oldest_version for t in first.result()} == {0}
        assert {t.oldest_version for t in await second} == {1}
        assert loop.time() - began == pytest.approx(20)


@simulated
async def test_wrong_version_is_refused_before_evaluation_ends() -> None:
    engine = engine_of(says("1 end", latency=10.0))
    loop = asyncio.get_running_loop()
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
        await collector.next_batch()
        began = loop.time()
        playing = asyncio.ensure_future(collector.evaluate([1]))
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="version"):
            await collector.update_weights(None, 0)
        assert loop.time() - began == pytest.approx(1)
        await playing


@simulated
async def test_second_waiting_update_is_refused() -> None:
    engine = engine_of(says("1 end", latency=10.0))
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, staleness=1) as collector:
        await collector.next_batch()
        playing = asyncio.ensure_future(collector.evaluate([1]))
        await asyncio.sleep(1)
        one, other = (asyncio.ensure_future(collector.update_weights(None, 1)) for _ in range(2))
        await one
        with pytest.raises(ValueError, match="version"):
            await other
        await playing
        assert engine.version == 1


@simulated
async def test_collector_closed_while_update_waits_says_so() -> None:
    engine = engine_of(says("1 end", latency=10.0))
    async with Backend(EnvSpec(AsyncEnv)) as backend:
        collector = collector_of(engine, backend)
        await collector.next_batch()
        playing = asyncio.ensure_future(collector.evaluate([1]))
        await asyncio.sleep(1)
        update = asyncio.ensure_future(collector.update_weights(None, 1))
        await asyncio.sleep(1)
        await collector.close()
        with pytest.raises(CollectionError, match="closed"):
            await update
        assert engine.version == 0
        assert len(await playing) == 1


@simulated
async def test_update_that_fails_lets_evaluation_go_on() -> None:
    engine = engine_of(says("1 end"))

    async def broken(*arguments: Any) -> None:
        raise EngineError("no such weights")

    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
        await collector.next_batch()
        whole, engine.update_weights = engine.update_weights, broken  # type: ignore[method-assign,assignment]
        with pytest.raises(EngineError, match="no such weights"):
            await collector.update_weights(None, 1)
        assert len(await collector.evaluate([1, 2])) == 2
        engine.update_weights = whole  # type: ignore[method-assign]
        await collector.update_weights(None, 1)


@simulated
async def test_evaluation_takes_free_places_before_training() -> None:
    """Training has all four places; each that an episode leaves is the evaluation's until all of it has begun."""
    order: list[str] = []

    def script(call: Call, version: int) -> Reply:
        order.append("training" if call.sampling.temperature else "evaluation")
        return Reply([*map(ord, "1 end"), 2], latency=1.0 + len(order) / 100)

    engine = engine_of(script)
    options = {"max_running": 4, "n": 4, "groups_per_batch": 3}
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend, **options) as collector:
        batch = asyncio.ensure_future(collector.next_batch())
        await asyncio.sleep(0.5)
        now = collector.stats()
        assert (now["running"], now["evaluating"]) == (4, 0)
        await collector.evaluate(range(3), samples=2, sampling=Sampling(temperature=0.0, max_new_tokens=40))
        await batch
    assert order[:4] == ["training"] * 4
    assert order[4:10] == ["evaluation"] * 6
    assert order[10:] == ["training"] * 8


@simulated
async def test_evaluation_alone_starts_no_training() -> None:
    engine = engine_of(says("1 end", latency=1.0))
    async with Backend(EnvSpec(AsyncEnv)) as backend, collector_of(engine, backend) as collector:
        assert len(await collector.evaluate([1, 2])) == 2
        await collector.update_weights(None, 1)
        await asyncio.sleep(100)
        assert collector.stats()["running"] == collector.stats()["in_flight"] == 0
        assert len(engine.calls) == 2
        assert len((await collector.next_batch()).groups) == 3


# ---------------------------------------------------------------- the parts by themselves


class Blocks:
    """Tasks in blocks that end when told to."""

    def __init__(self) -> None:
        self.inside: list[str] = []

    def enter(self, name: str, block: Callable[[], Any]) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._enter(name, block))

    async def _enter(self, name: str, block: Callable[[], Any]) -> None:
        async with block():
            self.inside.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                self.inside.remove(name)


async def settled(*tasks: Awaitable[Any]) -> None:
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task
    for _ in range(5):
        await asyncio.sleep(0)


async def test_cancelled_waiter_blocks_nothing() -> None:
    lock, blocks = WeightLock(), Blocks()
    reader = blocks.enter("first", lock.shared)
    await settled()
    writer = blocks.enter("update", lock.exclusive)
    await settled()
    later = blocks.enter("second", lock.shared)
    await settled()
    assert blocks.inside == ["first"]
    writer.cancel()
    await settled(writer)
    assert blocks.inside == ["first", "second"]
    writer = blocks.enter("update", lock.exclusive)
    await settled()
    reader.cancel()
    later.cancel()
    await settled(reader, later)
    assert blocks.inside == ["update"]
    writer.cancel()
    await settled(writer)
    again = blocks.enter("third", lock.shared)
    await settled()
    assert blocks.inside == ["third"]
    again.cancel()
    await settled(again)


async def test_lock_granted_during_cancellation_is_released() -> None:
    """The holder leaves and the waiter is cancelled in the same step of the event loop."""
    for first, second in (("shared", "exclusive"), ("exclusive", "shared"), ("exclusive", "exclusive")):
        lock, blocks = WeightLock(), Blocks()
        holder = blocks.enter("holder", getattr(lock, first))
        await settled()
        waiter = blocks.enter("waiter", getattr(lock, second))
        await settled()
        holder.cancel()
        await asyncio.sleep(0)  # the holder's end gives the waiter its turn, which it has not seen
        waiter.cancel()
        await settled(holder, waiter)
        for name in ("exclusive", "shared"):
            after = blocks.enter(name, getattr(lock, name))
            await settled()
            assert blocks.inside == [name]
            after.cancel()
            await settled(after)


async def test_place_granted_during_cancellation_is_released() -> None:
    scheduler, blocks, freed = GroupScheduler(RolloutSection(n=1, groups_per_batch=2, max_running=1)), Blocks(), []
    gate = EvalGate(scheduler, lambda: freed.append(scheduler.evaluations))
    one = blocks.enter("one", gate.place)
    await settled()
    two, three = blocks.enter("two", gate.place), blocks.enter("three", gate.place)
    await settled()
    assert (blocks.inside, gate.inside, scheduler.evaluations) == (["one"], 1, 3)
    assert scheduler.start() is None
    three.cancel()
    await settled(three)
    assert (gate.inside, scheduler.evaluations) == (1, 2)
    one.cancel()
    await asyncio.sleep(0)
    two.cancel()
    await settled(one, two)
    assert (blocks.inside, gate.inside, scheduler.evaluations) == ([], 0, 0)
    assert freed == [2, 1, 0]
    assert scheduler.start() is not None


async def test_evaluations_enter_when_limit_grows() -> None:
    scheduler, blocks = GroupScheduler(RolloutSection(n=1, groups_per_batch=4, max_running=2)), Blocks()
    gate = EvalGate(scheduler, lambda: None)
    assert scheduler.start()
    assert scheduler.start()
    tasks = [blocks.enter(str(n), gate.place) for n in range(3)]
    await settled()
    assert gate.inside == 0
    scheduler.max_running = 4
    gate.admit()
    await settled()
    assert blocks.inside == ["0", "1"]
    for task in tasks:
        task.cancel()
    await settled(*tasks)
